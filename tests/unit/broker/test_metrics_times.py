"""Histograms: how long a sync takes and how long publishers wait for acks, on a clock of the test's own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from bascule.broker.metrics.catalogue import METRICS
from bascule.broker.metrics.exposition import Page
from bascule.log import LogOptions, SyncPolicy
from bascule.log.disk.histogram import Histogram
from bascule.proto.api_pb2 import ALL, LEADER, NONE
from tests.support.partitions import LedPartition, envelope
from tests.support.prometheus_text import parse
from tests.unit.log.log_helpers import Logs, WatchedDisk, put, refuse

SYNCS = "bascule_log_sync_seconds"
ACKS = "bascule_ingest_ack_seconds"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def run(directory: Path, scenario: Callable[[LedPartition, Clock], Awaitable[None]], policy: SyncPolicy) -> None:
    async def main() -> None:
        clock: Any = Clock()
        led = LedPartition(directory, options=LogOptions(sync=policy), clock=clock)
        try:
            await scenario(led, clock)
        finally:
            led.close()

    asyncio.run(main())


def seen(histogram: Histogram) -> tuple[int, float]:
    return histogram.cumulative()[-1], round(histogram.sum, 6)


def test_a_duration_counts_for_every_bound_that_it_does_not_exceed() -> None:
    histogram = Histogram((0.1, 1.0, 10.0))
    for seconds in (0.0, 0.1, 0.11, 1.0, 5.0, 10.1, 99.0):
        histogram.observe(seconds)
    assert histogram.cumulative() == [2, 4, 5, 7]
    assert histogram.sum == pytest.approx(115.31)


def test_a_page_has_bounds_sum_and_count_for_each_set_of_labels() -> None:
    page, some, none = Page(METRICS), Histogram((0.1, 1.0)), Histogram((0.1, 1.0))
    some.observe(0.5)
    some.observe(2.25)
    page.add_histogram(ACKS, some, '{policy="all"}')
    page.add_histogram(ACKS, none, '{policy="leader"}')
    page.add_histogram(SYNCS, some)
    text = b"".join(page.pieces()).decode()
    assert [line for line in text.splitlines() if line.startswith(SYNCS)] == [
        f'{SYNCS}_bucket{{le="0.1"}} 0',
        f'{SYNCS}_bucket{{le="1.0"}} 1',
        f'{SYNCS}_bucket{{le="+Inf"}} 2',
        f"{SYNCS}_sum 2.75",
        f"{SYNCS}_count 2",
    ]
    found = parse(text.encode())
    assert found[ACKS].buckets[frozenset({("policy", "all")})] == {0.1: 0, 1.0: 1, float("inf"): 2}
    assert found.value(ACKS, policy="leader") == 0


def test_an_ack_is_timed_from_the_read_that_brought_the_message(tmp_path: Path) -> None:
    async def scenario(led: LedPartition, clock: Clock) -> None:
        led.arrives(envelope(b"a", LEADER), envelope(b"b", LEADER), envelope(b"c", NONE))
        times = led.ingest.ack_times
        assert (seen(times.leader), seen(times.all)) == ((1, 0.0), (0, 0.0))
        led.ingest.freeze(led.partition)
        led.arrives(envelope(b"d", LEADER), envelope(b"e", ALL))
        clock.now += 2
        led.arrives(envelope(b"f", LEADER))
        clock.now += 1
        led.ingest.thaw(led.partition)
        await led.until(lambda: len(led.acks) == 5)
        assert (seen(times.leader), seen(times.all)) == ((2, 3.0), (1, 3.0))
        led.arrives(b"without an ack", envelope(b"g", NONE))
        await led.until(lambda: led.log.log_end_offset == 8)
        assert (seen(times.leader), seen(times.all)) == ((2, 3.0), (1, 3.0))

    run(tmp_path, scenario, SyncPolicy.INTERVAL)


@pytest.mark.parametrize("policy", [SyncPolicy.ACK, SyncPolicy.ALWAYS])
def test_an_ack_that_waits_for_the_disk_is_timed_until_it_is_sent(tmp_path: Path, policy: SyncPolicy) -> None:
    async def scenario(led: LedPartition, clock: Clock) -> None:
        times = led.ingest.ack_times
        led.disk.sync_gate.clear()
        led.arrives(envelope(b"a", ALL), envelope(b"b", LEADER))
        clock.now += 4
        led.disk.sync_gate.set()
        await led.until(lambda: len(led.acks) == 2)
        assert seen(times.all) == (1, 4.0)
        assert seen(times.leader) == (1, 4.0 if policy is SyncPolicy.ALWAYS else 0.0)

    run(tmp_path, scenario, policy)


def test_each_file_that_is_synced_is_timed(tmp_path: Path) -> None:
    logs, disk = Logs(tmp_path), WatchedDisk()
    log = logs.open(disk=disk)
    put(log, (b"k", b"v"))
    log.sync()
    count, total = log.pool.sync_seconds.cumulative()[-1], log.pool.sync_seconds.sum
    assert count == disk.count("sync") >= 1
    assert total > 0
    log.sync()  # there is nothing to do
    assert log.pool.sync_seconds.cumulative()[-1] == disk.count("sync") == count
    logs.close()


def test_a_sync_that_fails_is_none(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    log = logs.open(disk=WatchedDisk(refuse("sync", ".log")))
    put(log, (b"k", b"v"))
    with pytest.raises(Exception, match="planted"):
        log.sync()
    assert log.pool.sync_seconds.cumulative()[-1] == 0
    logs.close()


def test_syncs_of_many_threads_are_all_counted(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    pool = logs.open().pool

    def note() -> None:
        for _ in range(2000):
            pool.note_sync(0.5)

    threads = [threading.Thread(target=note) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen(pool.sync_seconds) == (8000, 4000.0)
    logs.close()
