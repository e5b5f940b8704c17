"""Real brokers, and names of streams that nobody else has."""

from __future__ import annotations

import pytest

from tests.support.broker_fixtures import (
    api,
    broker,
    make_stream,
    nats,
    nats_server,
    pytest_runtest_makereport,
    shared_broker,
    start_broker,
    unique_name,
)

__all__ = [
    "api",
    "broker",
    "make_stream",
    "nats",
    "nats_server",
    "pytest_runtest_makereport",
    "shared_broker",
    "start_broker",
]


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Of a stream that does not exist yet."""
    return unique_name(request.node.name)
