"""Names of streams that no other test has."""

from __future__ import annotations

import pytest

from tests.support.broker_fixtures import unique_name


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Of a stream that does not exist yet."""
    return unique_name(request.node.name)
