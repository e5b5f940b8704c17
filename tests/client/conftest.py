"""Real brokers, and names of streams that nobody else has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import bascule
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


@pytest.fixture(scope="session", autouse=True)
def patient_clients() -> Iterator[None]:
    """Thirty seconds for every call unless a test says otherwise, not five: a machine that is busy is no failure of ours."""
    with pytest.MonkeyPatch.context() as patch:
        for make in (bascule.connect, bascule.blocking.connect):
            patch.setattr(make, "__kwdefaults__", {**(make.__kwdefaults__ or {}), "timeout": 30.0})
        yield


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Of a stream that does not exist yet."""
    return unique_name(request.node.name)
