"""Brokers as real processes, under attack."""

from __future__ import annotations

from tests.support.broker_fixtures import (
    api,
    broker,
    make_stream,
    nats,
    nats_server,
    pytest_runtest_makereport,
    shared_broker,
    start_broker,
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
