"""Plain NATS publishes at full rate: what arrives in the logs, beside what nats-server alone gives a subscriber that only counts."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Final

from bench.load_row import load_row
from bench.load_tools import Outcome, Running, run, tool
from bench.report import LoadRow, Row, at_least
from bench.systems import Broker, JetStream, Streams, Systems

LOAD: Final = "plain NATS ingest"
SHAPES: Final = ((1, 1), (10, 1), (100, 1), (1, 10), (1, 100))
"""Streams, and partitions of each."""
MESSAGES: Final = {128: 2_000_000, 1024: 500_000}
CPU_MAX: Final = {128: 0.35}
RATIO_MIN: Final = 0.8
PAIRS: Final = 5
"""How often broker and nats-server alone are measured one after the other: a ratio of neighbours is what a shared machine can tell."""


def rows(systems: Systems) -> Iterator[Row | LoadRow]:
    for size, full in MESSAGES.items():
        messages = systems.messages(full)
        yield from _ratio(systems, size, messages)
        for broker in systems.brokers:
            for shape in SHAPES[1:]:
                with broker.streams(*shape) as streams:
                    yield _blast(broker, streams, size, messages)
        yield _jetstream(systems.jetstream, size, messages)


def _ratio(systems: Systems, size: int, messages: int) -> Iterator[Row | LoadRow]:
    """The median run of each, and the median of the ratios of neighbours."""
    ours: list[LoadRow] = []
    alone: list[LoadRow] = []
    for _ in range(1 if systems.quick else PAIRS):
        alone.append(_alone(systems, size, messages))
        with systems.brokers[0].streams(1) as streams:
            ours.append(_blast(systems.brokers[0], streams, size, messages))
    yield _median(alone)
    yield _median(ours)
    for broker in systems.brokers[1:]:
        with broker.streams(1) as streams:
            yield _blast(broker, streams, size, messages)
    ratios = [mine.messages_per_second / theirs.messages_per_second for mine, theirs in zip(ours, alone, strict=True)]
    conditions = f"{size} B, 1 stream; of {len(ratios)} pairs of runs: {', '.join(f'{ratio:.2f}' for ratio in ratios)}"
    yield at_least(f"{LOAD} / nats-server alone", statistics.median(ratios), "×", conditions, RATIO_MIN)


def _median(runs: list[LoadRow]) -> LoadRow:
    return sorted(runs, key=lambda row: row.cpu)[len(runs) // 2]


def _alone(systems: Systems, size: int, messages: int) -> LoadRow:
    """Publisher, nats-server, and a subscriber that does nothing but count."""
    subscriber = {"port": systems.nats_port, "subject": "alone", "messages": messages}
    with Running([tool("nats_load"), "count"], subscriber, ready=True) as counting:
        systems.nats.begin()
        sent = _publish(systems.nats_port, "alone", size, messages)
        counted = counting.outcome()
    return load_row(
        LOAD,
        f"{size} B, to a counter",
        "nats-server alone",
        sent,
        systems.nats.usage(),
        seconds=counted.ended - sent.began,
        lost=messages - counted.messages,
    )


def _blast(broker: Broker, streams: Streams, size: int, messages: int) -> LoadRow:
    broker.process.begin()
    sent = _publish(broker.nats_port, streams.subjects, size, messages)
    stored, seen = broker.await_stored(streams, messages)
    return load_row(
        LOAD,
        f"{size} B, {streams.label}",
        broker.name,
        sent,
        broker.process.usage(),
        seconds=seen - sent.began,
        lost=messages - stored,
        cpu_max=CPU_MAX.get(size) if broker.is_ours else None,
    )


def _jetstream(jetstream: JetStream, size: int, messages: int) -> LoadRow:
    with jetstream.stream() as name:
        jetstream.process.begin()
        sent = _publish(jetstream.port, f"{name}.0", size, messages)
        stored, seen = jetstream.await_stored(name, messages)
        usage = jetstream.process.usage()
    return load_row(
        LOAD,
        f"{size} B, 1 stream",
        jetstream.name,
        sent,
        usage,
        seconds=seen - sent.began,
        lost=messages - stored,
    )


def _publish(port: int, subjects: str, size: int, messages: int) -> Outcome:
    return run("nats_load", "blast", port=port, subjects=subjects, messages=messages, size=size)
