"""Subscriptions whose clients do not read: what they hold is counted, dropped under memory pressure, and read again."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bascule.kernels.calls.subscribe import SubscribeStream
from bascule.kernels.client.streams import SubscribeClientStream
from bascule.log import LogStore, PartitionLog, new_batch
from bascule.log.disk.slowness import SlowReads
from bascule.net.grpc.status import Status
from bascule.readers.subscription import ForwardSubscription, HeldSlices
from tests.support.call_pair import CallPair

BATCHES, RECORDS, VALUE_BYTES = 3, 700, 1000
TOTAL = BATCHES * RECORDS
WINDOW_BYTES = 100_000
"""Much less than a batch: the server has to stop in the middle of one."""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PartitionLog]:
    with LogStore(Path(tmp_path_factory.mktemp("held"))) as store:
        made = store.log("orders", 0)
        for _ in range(BATCHES):
            batch = new_batch()
            for _ in range(RECORDS):
                batch.add(None, b"x" * VALUE_BYTES)
            made.append(batch)
        made.advance_high_watermark(made.newest_offset)
        yield made


class Never(SlowReads):
    """No read is expected to be slow."""

    def note(self, seconds: float) -> None:
        del seconds


class Reader:
    """A subscription from offset 0 on, and the client at its other end."""

    def __init__(self, log: PartitionLog, held: HeldSlices, stop_offset: int | None = None) -> None:
        partition: Any = SimpleNamespace(
            stream="orders", number=0, log=log, subscribers=set(), subscriber_left=lambda _: None
        )

        def begin(stream: SubscribeStream, _request: bytes) -> None:
            self.subscription = ForwardSubscription(stream, partition, 0, stop_offset, held, lambda: None)
            self.subscription._slow_reads = Never()  # a busy machine would have a thread read
            stream.greet(b"orders", 0)
            self.subscription.begin()

        self.pair = CallPair(routes={b"/subscribe": lambda: SubscribeStream(begin)}, stream_window_bytes=WINDOW_BYTES)
        self.stream = SubscribeClientStream(b"", lambda: None, batch_bytes=5_000, waiting_bytes_max=20_000)
        self.pair.client.open(self.stream, b"/subscribe")
        self.pair.exchange()
        self.offsets: list[int] = []

    def take(self, count: int) -> None:
        """Read until `count` messages were received, or none comes."""
        while len(self.offsets) < count and (batch := self.stream.take()) is not None:
            self.offsets += batch.offsets.tolist()
            self.pair.exchange()

    def close(self) -> None:
        self.stream.cancel()
        self.pair.exchange()


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def test_a_subscriber_whose_batches_are_dropped_to_save_memory_misses_and_repeats_nothing(log: PartitionLog) -> None:
    async def scenario() -> None:
        held = HeldSlices(bytes_max=0)
        with closing(Reader(log, held)) as reader:
            assert reader.subscription.delivered[0] < TOTAL
            assert held.bytes == 0
            for count in range(0, TOTAL + 1, 100):
                reader.take(count)
                assert held.bytes == 0
            assert reader.offsets == list(range(TOTAL))

    run(scenario())


def test_batches_of_a_slow_client_are_kept_and_counted_while_there_is_memory(log: PartitionLog) -> None:
    async def scenario() -> None:
        held = HeldSlices()
        with closing(Reader(log, held)) as first, closing(Reader(log, held)) as second:
            assert held.bytes > 0
            assert not held.is_full
            alone = held.bytes // 2
            first.take(TOTAL)
            assert held.bytes == alone
            second.take(TOTAL)
            assert first.offsets == second.offsets == list(range(TOTAL))
            assert held.bytes == 0

    run(scenario())


def test_memory_is_short_when_all_subscriptions_together_hold_more_than_the_limit() -> None:
    held = HeldSlices(bytes_max=100)
    held.bytes = 100
    assert not held.is_full
    held.bytes = 101
    assert held.is_full


def test_a_client_that_disconnects_gives_back_what_was_held_for_it(log: PartitionLog) -> None:
    async def scenario() -> None:
        held = HeldSlices()
        with closing(Reader(log, held)) as reader:
            assert held.bytes > 0
            reader.close()
            assert held.bytes == 0

    run(scenario())


def test_a_subscription_that_the_server_ends_gives_back_what_was_held_for_it(log: PartitionLog) -> None:
    async def scenario() -> None:
        held = HeldSlices()
        with closing(Reader(log, held)) as reader:
            assert held.bytes > 0
            reader.subscription.end(Status.OK, "")
            assert held.bytes == 0
        assert held.bytes == 0

    run(scenario())


def test_a_stop_offset_holds_when_batches_are_dropped_and_read_again(log: PartitionLog) -> None:
    async def scenario() -> None:
        held = HeldSlices(bytes_max=0)
        with closing(Reader(log, held, stop_offset=TOTAL - 17)) as reader:
            reader.take(TOTAL)
            assert reader.offsets == list(range(TOTAL - 16))
            assert held.bytes == 0

    run(scenario())
