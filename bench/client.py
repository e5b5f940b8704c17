"""The Python client: messages as batches and as objects, publishes with an ack each. It shares the machine with its servers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

from bench.load_tools import Outcome, Running, run
from bench.processes import Usage
from bench.report import Row, at_least, measured
from bench.systems import Broker, Streams, Systems

SIZES: Final = (128, 1024)
READ_MESSAGES: Final = {128: 2_000_000, 1024: 500_000}
PUBLISH_MESSAGES: Final = 400_000
TARGETS: Final = {"batches": 1_000_000, "objects": 300_000, "publish-many": 200_000, "publisher": 200_000}
"""Messages per second of 128 B."""
NAMES: Final = {
    "batches": "subscription, columnar batches",
    "objects": "subscription, an object each",
    "publish-many": "acked publishes, publish_many",
    "publisher": "acked publishes, publisher.send",
}


def rows(systems: Systems) -> Iterator[Row]:
    broker = systems.brokers[0]
    for size in SIZES:
        messages = systems.messages(READ_MESSAGES[size])
        with broker.streams(1) as streams:
            fill(broker, streams, size, messages)
            for mode in ("batches", "objects"):
                yield client_row(broker, streams, mode, size, messages)
        for mode in ("publish-many", "publisher"):
            with broker.streams(1) as streams:
                yield client_row(broker, streams, mode, size, systems.messages(PUBLISH_MESSAGES))


def fill(broker: Broker, streams: Streams, size: int, messages: int) -> None:
    run("nats_load", "blast", port=broker.nats_port, subjects=streams.subjects, messages=messages, size=size)
    stored, _ = broker.await_stored(streams, messages)
    if stored != messages:
        raise RuntimeError(f"{broker.name} stored {stored:,} of {messages:,} messages")


def client_row(broker: Broker, streams: Streams, mode: str, size: int, messages: int) -> Row:
    command = [sys.executable, "-m", "bench.client_load", mode]
    broker.process.begin()
    with Running(
        command, {"port": broker.port, "stream": streams.names[0], "messages": messages, "size": size}
    ) as running:
        outcome = running.outcome()
    conditions = conditions_of(size, outcome, broker.process.usage())
    rate = 0.0 if outcome.failed else outcome.messages / outcome.seconds
    if size == SIZES[0]:
        return at_least(f"client: {NAMES[mode]}", rate, "msg/s", conditions, TARGETS[mode])
    return measured(f"client: {NAMES[mode]}", rate, "msg/s", conditions)


def conditions_of(size: int, outcome: Outcome, broker: Usage) -> str:
    millions = outcome.messages / 1e6
    return f"{size} B; CPU-s/M: client {outcome.client_cpu / millions:.2f}, broker {broker.cpu / millions:.2f}"
