"""Publishing to three replicas: throughput and latency with acks of the leader and of all, beside JetStream with three replicas.

CPU is that of the three brokers (or the three nats-servers of JetStream) together. For the brokers, nats-server is not in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.load_row import load_row
from bench.load_tools import run
from bench.replication_cluster import (
    JetStreamCluster,
    meter_of,
    port_of,
    replicated_cluster,
    replicated_stream,
    subject_of,
)
from bench.report import LoadRow, Row, at_least
from tests.support.cluster import Cluster

THROUGHPUT: Final = "PublishAsync, 3 replicas"
LATENCY: Final = "one publish at a time, 3 replicas"
SIZES: Final = (128, 1024)
WINDOWS: Final = (1_000, 8_000)
POLICIES: Final = {"LEADER": 0, "ALL": 1}
SYNCS: Final = ("interval", "ack")
MESSAGES: Final = 600_000
JETSTREAM_MESSAGES: Final = 100_000
LATENCY_MESSAGES: Final = 3_000
CPU_MAX: Final = 2.5
"""CPU seconds per million messages of 128 B with ALL acks and `sync: interval`, the three brokers together."""
LIFTBRIDGE_RATES: Final = (31_000, 41_000)
"""Messages per second of the Go original: two cores, three replicas, ALL acks."""
RATE_MIN: Final = 5 * LIFTBRIDGE_RATES[0]


def rows(directory: Path, quick: bool) -> Iterator[LoadRow | Row]:
    """JetStream's rows stand with ours of the same load."""
    found = list(_all_rows(directory, 20 if quick else 1))
    yield from (row for row in found if isinstance(row, Row))
    for load in (THROUGHPUT, LATENCY):
        yield from (row for row in found if isinstance(row, LoadRow) and row.load == load)


def _all_rows(directory: Path, part: int) -> Iterator[LoadRow | Row]:
    for sync in SYNCS:
        with replicated_cluster(directory / f"throughput-{sync}", sync=sync) as cluster:
            for size in SIZES:
                for window in WINDOWS:
                    for policy in POLICIES:
                        yield from throughput(cluster, sync, policy, size, window, MESSAGES // part)
            yield latency_unary(cluster, sync, LATENCY_MESSAGES // part)
            yield latency_envelope(cluster, sync, LATENCY_MESSAGES // part)
    yield from _jetstream(directory / "jetstream", part)


def throughput(
    cluster: Cluster, sync: str, policy: str, size: int, window: int, messages: int
) -> Iterator[LoadRow | Row]:
    with replicated_stream(cluster) as stream:
        leader = cluster.leader_of(stream)
        meter = meter_of(cluster)
        outcome = run(
            "grpc_load",
            "publish-async",
            port=port_of(cluster, leader),
            streams=stream,
            messages=messages,
            size=size,
            window=window,
            policy=POLICIES[policy],
        )
        usage = meter.usage()
    conditions = f"{size} B, {policy} acks, sync {sync}, window {window:,}"
    is_target = (sync, policy, size) == ("interval", "ALL", 128)
    yield load_row(THROUGHPUT, conditions, "Bascule", outcome, usage, cpu_max=CPU_MAX if is_target else None)
    if is_target and window == max(WINDOWS):
        rate = (outcome.messages - outcome.failed) / outcome.seconds
        low, high = LIFTBRIDGE_RATES
        yield at_least(
            "3 replicas, ALL acks", rate, "msg/s", f"{conditions}; 5 × the original's {low:,} – {high:,}", RATE_MIN
        )


def latency_unary(cluster: Cluster, sync: str, messages: int) -> LoadRow:
    with replicated_stream(cluster) as stream:
        leader = cluster.leader_of(stream)
        meter = meter_of(cluster)
        outcome = run(
            "grpc_load", "publish", port=port_of(cluster, leader), streams=stream, messages=messages, size=128, policy=1
        )
        usage = meter.usage()
    return load_row(LATENCY, f"128 B, ALL acks, sync {sync}, Publish", "Bascule", outcome, usage, latency=True)


def latency_envelope(cluster: Cluster, sync: str, messages: int) -> LoadRow:
    with replicated_stream(cluster) as stream:
        meter = meter_of(cluster)
        outcome = run(
            "nats_load",
            "acked",
            port=cluster.nats[0].port,
            subjects=subject_of(cluster, stream),
            messages=messages,
            size=128,
            window=1,
            envelope=1,
            policy=1,
        )
        usage = meter.usage()
    return load_row(LATENCY, f"128 B, ALL acks, sync {sync}, envelope", "Bascule", outcome, usage, latency=True)


def _jetstream(directory: Path, part: int) -> Iterator[LoadRow]:
    jetstream = JetStreamCluster(directory)
    try:
        for size in SIZES:
            for window in WINDOWS:
                yield jetstream_row(jetstream, THROUGHPUT, size, window, JETSTREAM_MESSAGES // part)
        yield jetstream_row(jetstream, LATENCY, SIZES[0], 1, LATENCY_MESSAGES // part)
    finally:
        jetstream.close()


def jetstream_row(jetstream: JetStreamCluster, load: str, size: int, window: int, messages: int) -> LoadRow:
    with jetstream.stream() as (subject, port):
        meter = jetstream.meter()
        outcome = run("nats_load", "acked", port=port, subjects=subject, messages=messages, size=size, window=window)
        usage = meter.usage()
    conditions = f"{size} B, an ack each, window {window:,}"
    return load_row(load, conditions, jetstream.name, outcome, usage, latency=window == 1)
