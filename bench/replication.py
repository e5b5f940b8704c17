"""Replication: what it costs under load, how long a partition is without a leader, how fast an empty replica catches up, what a
cluster that does nothing uses."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bench import load_replication
from bench.load_tools import run
from bench.replication_cluster import (
    FACTOR,
    log_bytes,
    meter_of,
    port_of,
    replicated_cluster,
    replicated_stream,
    subject_of,
)
from bench.report import LoadRow, Row, at_most, measured
from tests.support import envelopes
from tests.support.api_client import pb
from tests.support.cluster import SHORT_TIMEOUTS, Cluster
from tests.support.nats_client import NatsClient
from tests.support.waiting import eventually

FAILOVER_SECONDS_MAX: Final = {"1 s": 3.0, "defaults": 20.0}
FAILOVERS: Final = {"1 s": 5, "defaults": 2}
FRESH_STREAMS: Final = 20
FRESH_MS_MAX: Final = 1_000.0
"""A stream is usable the moment its creation returns."""
TRY_SECONDS: Final = 0.02
FAILOVER_PATIENCE_SECONDS: Final = 60.0
CATCH_UP_MESSAGES: Final = 3_000_000
CATCH_UP_SIZE: Final = 128
IDLE_PARTITIONS: Final = 1_000
IDLE_SECONDS: Final = 30.0
IDLE_SETTLE_SECONDS: Final = 10.0
IDLE_PERCENT_MAX: Final = 2.0


def rows(directory: Path, quick: bool) -> Iterator[LoadRow | Row]:
    yield from load_replication.rows(directory / "load", quick)
    yield from fresh_rows(directory / "fresh", quick)
    yield from failover_rows(directory / "failover", quick)
    yield from catch_up_rows(directory / "catch-up", quick)
    yield from idle_rows(directory / "idle", quick)


# ── streams that were just created ───────────────────────────────────────────────────────────────


def fresh_rows(directory: Path, quick: bool) -> Iterator[Row]:
    streams = FRESH_STREAMS if not quick else 3
    with replicated_cluster(directory) as cluster:
        seconds = [_first_ack(cluster, f"fresh-{number}") for number in range(streams)]
    conditions = f"{streams} streams with {FACTOR} replicas, from the answer to CreateStream to the first ALL ack"
    yield at_most("new stream, worst", max(seconds) * 1000, "ms", conditions, FRESH_MS_MAX)
    yield measured("new stream, median", statistics.median(seconds) * 1000, "ms", conditions)


def _first_ack(cluster: Cluster, stream: str) -> float:
    """Publish through the broker that created the stream, whichever broker leads it."""
    api = cluster.api(cluster.well[0])
    api.CreateStream(name=stream, subject=subject_of(cluster, stream), replicationFactor=FACTOR)
    began = time.monotonic()
    api.publish(stream, b"x", ackPolicy=pb.ALL)
    return time.monotonic() - began


# ── failover ─────────────────────────────────────────────────────────────────────────────────────


def failover_rows(directory: Path, quick: bool) -> Iterator[Row]:
    settings: dict[str, Mapping[str, Any]] = {"1 s": SHORT_TIMEOUTS, "defaults": {}}
    for timeouts, config in settings.items():
        times = FAILOVERS[timeouts] if not quick else 1
        with replicated_cluster(directory / timeouts.replace(" ", ""), config=config) as cluster:
            for is_controller in (False, True):
                seconds = [_fail_over(cluster, is_controller) for _ in range(times)]
                victim = "the leader, which is the controller too" if is_controller else "the leader"
                conditions = f"time-outs: {timeouts}; {times} × kill -9 of {victim} until the next ALL ack"
                yield at_most("failover, worst", max(seconds), "s", conditions, FAILOVER_SECONDS_MAX[timeouts])
                yield measured("failover, median", statistics.median(seconds), "s", conditions)


def _fail_over(cluster: Cluster, is_controller: bool) -> float:
    """From the kill to the next ALL ack: an envelope is sent again and again."""
    with replicated_stream(cluster) as stream, NatsClient(cluster.nats[0].url) as nats:
        leader = _lead_from(cluster, stream, is_controller)
        inbox = f"_INBOX.failover.{stream}"
        nats.subscribe(inbox)
        wrapped = envelopes.message(b"x" * 128, ackInbox=inbox, ackPolicy=pb.ALL)
        nats.publish(subject_of(cluster, stream), wrapped)
        nats.next()
        began = time.monotonic()
        cluster.kill(leader)
        while nats.poll(TRY_SECONDS) is None:
            nats.publish(subject_of(cluster, stream), wrapped)
            if time.monotonic() - began > FAILOVER_PATIENCE_SECONDS:
                raise RuntimeError(f"no ack came within {FAILOVER_PATIENCE_SECONDS:g} s of the leader's death")
        seconds = time.monotonic() - began
        cluster.restart(leader)
        cluster.wait_for_members()
        cluster.wait_until_in_sync(stream, timeout=FAILOVER_PATIENCE_SECONDS)
    return seconds


def _lead_from(cluster: Cluster, stream: str, is_controller: bool) -> str:
    """The leader of the stream, once it is the controller, or is not: where needed the controller is restarted until it is."""
    for _ in range(30):
        cluster.wait_until_in_sync(stream)
        leader, controller = cluster.leader_of(stream), cluster.controller()
        if (leader == controller) == is_controller:
            return leader
        cluster.kill(controller)
        cluster.restart(controller)
        cluster.wait_for_members()
    raise RuntimeError("the required server did not become controller")


# ── catching up ──────────────────────────────────────────────────────────────────────────────────


def catch_up_rows(directory: Path, quick: bool) -> Iterator[Row]:
    messages = CATCH_UP_MESSAGES // (20 if quick else 1)
    with replicated_cluster(directory, config=SHORT_TIMEOUTS) as cluster, replicated_stream(cluster) as stream:
        leader = cluster.leader_of(stream)
        follower = cluster.followers_of(stream)[0]
        cluster.stop(follower)
        _empty(cluster, follower, stream)
        run(
            "grpc_load",
            "publish-async",
            port=port_of(cluster, leader),
            streams=stream,
            messages=messages,
            size=CATCH_UP_SIZE,
            window=8_000,
        )
        size = log_bytes(cluster, leader, stream)
        cluster.launch(follower)
        began, begun_bytes = _first_bytes(cluster, follower, stream)
        eventually(lambda: log_bytes(cluster, follower, stream) >= size, "the replica has everything", 120.0)
        seconds = time.monotonic() - began
        cluster.brokers[follower].wait_ready()
    share = (size - begun_bytes) / size
    conditions = f"an empty replica of {messages:,} × {CATCH_UP_SIZE} B, from its first bytes on"
    yield measured("catch-up", share * messages / seconds, "msg/s", conditions)
    yield measured("catch-up", (size - begun_bytes) / seconds / 1e6, "MB/s", conditions)


def _empty(cluster: Cluster, server: str, stream: str) -> None:
    """Nothing of the partition is left on a broker that has stopped."""
    shutil.rmtree(cluster.partition_directory(server, stream), ignore_errors=True)


def _first_bytes(cluster: Cluster, server: str, stream: str) -> tuple[float, int]:
    """When the first bytes were there, and how many: from the start of the process to there is not catching up."""

    def look() -> int:
        try:
            return log_bytes(cluster, server, stream)
        except FileNotFoundError:
            return 0

    found = eventually(look, "the replica begins to catch up", 60.0)
    return time.monotonic(), found


# ── idleness ─────────────────────────────────────────────────────────────────────────────────────


def idle_rows(directory: Path, quick: bool) -> Iterator[Row]:
    partitions, seconds = (IDLE_PARTITIONS, IDLE_SECONDS) if not quick else (30, 2.0)
    with replicated_cluster(directory) as cluster:
        name = "idle"
        cluster.create_stream(name, factor=FACTOR, partitions=partitions)
        for number in range(0, partitions, max(1, partitions // 20)):
            cluster.wait_until_in_sync(name, number)
            leader = cluster.leader_of(name, number)
            cluster.api(leader).publish(name, b"x", partition=number, ackPolicy=pb.ALL)
        time.sleep(min(seconds, IDLE_SETTLE_SECONDS))
        meter = meter_of(cluster)
        time.sleep(seconds)
        usage = meter.usage()
    conditions = f"3 brokers together, {partitions:,} partitions × {FACTOR} replicas, default time-outs, {seconds:g} s"
    yield at_most("idle cluster", 100 * usage.cpu / seconds, "% of a core", conditions, IDLE_PERCENT_MAX)
