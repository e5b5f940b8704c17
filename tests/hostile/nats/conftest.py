"""Brokers as real processes, and an attacker that reaches their NATS server."""

from __future__ import annotations

from tests.support.broker_fixtures import nats_server, pytest_runtest_makereport, start_broker

__all__ = ["nats_server", "pytest_runtest_makereport", "start_broker"]
