"""A sink gives back all memory: whatever it has collected, held, noted or copied when it ends, the allocator has as much as before."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Any

import pytest

from bascule.kernels.batches.pool import BatchPool
from bascule.kernels.ingest.sink import PartitionSink
from bascule.kernels.records.producers import ProducerTable
from bascule.producers import producer_headers
from bascule.proto import api_pb2
from tests.parity.inputs.ingest_helpers import feed, new_pool, new_reader, new_sink
from tests.parity.twins.twin_ingest import NatsMessage
from tests.support.kernels.message_objects import publish_envelope

KEY = bytes(range(16))
SUBJECT = b"orders.subject"
LIVES = 60
LEAKED_BYTES_MAX = 16 * 1024
"""Below what a leak in each of the lives adds up to, above what the interpreter allocates meanwhile."""


class AllocatorStatistics(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    )


mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
pytestmark = pytest.mark.skipif(mallinfo2 is None, reason="needs the statistics of glibc's allocator")


def allocated() -> int:
    """Bytes that malloc has given out and not got back."""
    assert mallinfo2 is not None
    mallinfo2.restype = AllocatorStatistics
    found = mallinfo2()
    return int(found.uordblks + found.hblkhd)


def message(number: int, **fields: Any) -> NatsMessage:
    request = api_pb2.PublishRequest(value=b"x" * 500, ackPolicy=api_pb2.ALL, **fields)
    payload = publish_envelope(request.SerializeToString(), b"_INBOX.%d" % number)
    assert payload is not None
    return NatsMessage(SUBJECT, payload)


MESSAGES = [message(number) for number in range(40)]
OF_PRODUCER = [message(number, headers=producer_headers(b"p", 1, number)) for number in range(40)]
"""A sink holds them until it knows the producers."""


def fed(sink: PartitionSink, messages: list[NatsMessage] = MESSAGES) -> PartitionSink:
    feed(new_reader(sink), messages)
    return sink


# ── lives of a sink ──────────────────────────────────────────────────────────────────────────────


def ends_with_full_batches_and_one_that_fills(pool: BatchPool) -> None:
    sink = fed(new_sink(pool, batch_records_max=10))
    assert sink.waiting_records == 40


def ends_with_a_batch_that_fills(pool: BatchPool) -> None:
    fed(new_sink(pool))


def ends_with_batches_that_were_taken(pool: BatchPool) -> None:
    batches = fed(new_sink(pool, batch_records_max=10)).take()
    assert [batch.count for batch in batches] == [10, 10, 10, 10]


def ends_with_batches_that_were_released(pool: BatchPool) -> None:
    for batch in fed(new_sink(pool, batch_records_max=10)).take():
        batch.release_records()
        batch.release()


def ends_with_batches_whose_records_alone_were_released(pool: BatchPool) -> None:
    for batch in fed(new_sink(pool, batch_records_max=10)).take():
        batch.release_records()


def releases_batches_twice(pool: BatchPool) -> None:
    for batch in fed(new_sink(pool, batch_records_max=10)).take():
        batch.release()
        batch.release()
        batch.release_records()


def ends_with_messages_held_for_producers(pool: BatchPool) -> None:
    sink = fed(new_sink(pool), OF_PRODUCER)
    assert sink.is_holding


def learns_producers(pool: BatchPool) -> None:
    sink = fed(new_sink(pool), OF_PRODUCER)
    sink.learn_producers(ProducerTable(100), 0)
    assert (sink.is_holding, sink.waiting_records) == (False, 40)


def forgets_producers(pool: BatchPool) -> None:
    sink = fed(new_sink(pool), OF_PRODUCER)
    sink.forget_producers(1)
    assert (sink.is_holding, sink.refused) == (False, 40)


def ends_during_a_hand_over(pool: BatchPool) -> None:
    sink = new_sink(pool)
    sink.note_received(KEY)
    sink.hold_all()
    fed(sink)
    assert sink.noted_hashes == 40


def goes_on_after_a_hand_over(pool: BatchPool) -> None:
    sink = new_sink(pool)
    sink.note_received(KEY)
    sink.hold_all()
    fed(sink).release_held()
    assert sink.waiting_records == 40


def holds_too_much(pool: BatchPool) -> None:
    sink = new_sink(pool)
    sink.hold_all(10_000)
    assert fed(sink).has_overflowed


def hands_over(pool: BatchPool) -> None:
    leader, successor = new_sink(pool), new_sink(pool)
    leader.note_received(KEY)
    leader.hold_all()
    successor.hold_all()
    hashes, messages = fed(leader).give_up()
    assert hashes is not None
    fed(successor, MESSAGES[20:]).take_over(KEY, hashes, 0, messages)
    assert (successor.waiting_records, successor.copies_missing) == (40, 20)
    successor.take_over(KEY, hashes, 0, b"")
    assert successor.copies_missing == 40


def drops_what_it_has_held(pool: BatchPool) -> None:
    sink = new_sink(pool)
    sink.note_received(KEY)
    sink.hold_all()
    fed(sink).drop_held()


LIFE_KINDS: list[Callable[[BatchPool], None]] = [
    ends_with_full_batches_and_one_that_fills,
    ends_with_a_batch_that_fills,
    ends_with_batches_that_were_taken,
    ends_with_batches_that_were_released,
    ends_with_batches_whose_records_alone_were_released,
    releases_batches_twice,
    ends_with_messages_held_for_producers,
    learns_producers,
    forgets_producers,
    ends_during_a_hand_over,
    goes_on_after_a_hand_over,
    holds_too_much,
    hands_over,
    drops_what_it_has_held,
]


@pytest.mark.parametrize("life", LIFE_KINDS, ids=lambda life: life.__name__)
def test_a_sink_that_ends_has_given_back_its_memory(life: Callable[[BatchPool], None]) -> None:
    for _ in range(3):  # what is allocated once
        life(new_pool())
    gc.collect()
    before = allocated()
    for _ in range(LIVES):
        life(new_pool())
    gc.collect()
    assert allocated() - before < LEAKED_BYTES_MAX


@pytest.mark.parametrize("life", LIFE_KINDS, ids=lambda life: life.__name__)
def test_a_pool_does_not_grow_with_the_number_of_sinks(life: Callable[[BatchPool], None]) -> None:
    """Memory that goes back to the pool is used again, and none is in it twice: two owners would write into the same batch."""
    pool = new_pool()
    for _ in range(3):
        life(pool)
    gc.collect()
    before = allocated()
    for _ in range(LIVES):
        life(pool)
    gc.collect()
    assert allocated() - before < LEAKED_BYTES_MAX


def test_a_pool_keeps_no_more_than_its_limit() -> None:
    pools = [new_pool(bytes_max) for bytes_max in (100_000, 0)]
    for pool in pools:
        ends_with_batches_that_were_released(pool)
    gc.collect()
    before = allocated()
    for pool in pools:
        for _ in range(10):
            batches = [batch for _ in range(30) for batch in fed(new_sink(pool, batch_records_max=10)).take()]
            for batch in batches:
                batch.release()
            batches.clear()
    gc.collect()
    assert allocated() - before < 400_000  # all batches of one round take twice as much
