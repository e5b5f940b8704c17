"""From messages to batches: what is stored, what is refused, and who owns the memory."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from bascule.kernels.envelope import messages
from bascule.kernels.ingest.sink import PartitionSink, PreparedBatch
from bascule.kernels.nats.protocol import NatsReader
from bascule.kernels.records import records
from bascule.proto import api_pb2
from tests.parity.inputs.ingest_helpers import acks_in, feed, new_pool, new_reader, new_sink, new_writer, stamped
from tests.parity.twins.twin_ingest import NatsMessage
from tests.support.kernels.message_objects import publish_envelope

SUBJECT = b"orders.subject"


def envelope(*, inbox: bytes = b"_INBOX.1", headers_block: bytes | None = None, **fields: Any) -> NatsMessage:
    data = publish_envelope(api_pb2.PublishRequest(**fields).SerializeToString(), inbox)
    assert data is not None
    return NatsMessage(SUBJECT, data, headers=headers_block)


def plain(payload: bytes, **fields: Any) -> NatsMessage:
    return NatsMessage(SUBJECT, payload, **fields)


def connected(**options: Any) -> tuple[PartitionSink, NatsReader]:
    sink = new_sink(**options)
    return sink, new_reader(sink)


def stored(*given: NatsMessage, **options: Any) -> list[records.Record]:
    sink, reader = connected(**options)
    feed(reader, given)
    return [one for batch in sink.take() for one in (records.decode(stamped(batch, 0)) if batch.count else [])]


def answers(sink: PartitionSink, reader: NatsReader) -> list[tuple[int, int]]:
    """(error, offset) of all acks for what the sink has collected, stored at the offsets it counted."""
    writer = new_writer(reader)
    for batch in sink.take():
        writer.write_errors(batch)
        writer.acknowledge(batch, messages.LEADER, batch.base_offset, 1, 2)
    return sorted((one.error, one.offset) for one in acks_in(reader))


# ── what is stored ───────────────────────────────────────────────────────────────────────────────


def test_a_plain_message_is_its_payload() -> None:
    (record,) = stored(plain(b"hello", reply=b"_INBOX.r"))
    assert (record.key, record.value, record.headers) == (None, b"hello", ())
    assert (record.subject, record.reply) == (SUBJECT, b"_INBOX.r")


@pytest.mark.parametrize(
    "payload", [b"\xb9\x0e\x43\xb4", b"\xb9\x0e\x43\xb4\x00\xc8\x00\x00", b"\xb9\x0e\x43\xb4\x00\x08\x00\x01"]
)
def test_what_is_no_publish_envelope_is_a_value(payload: bytes) -> None:
    assert [one.value for one in stored(plain(payload))] == [payload]


def test_an_empty_value_is_a_value() -> None:
    found = stored(envelope(key=b"k"), envelope(), envelope(key=b"k", value=b"v"), plain(b""))
    assert [(one.key, one.value) for one in found] == [(b"k", b""), (None, b""), (b"k", b"v"), (None, b"")]


def test_a_header_says_that_there_is_no_value() -> None:
    block = b"NATS/1.0\r\nbascule-tombstone: 1\r\na: 1\r\n\r\n"
    found = stored(
        envelope(key=b"k", headers={"bascule-tombstone": b""}),
        envelope(key=b"k", headers={"a": b"1", "bascule-tombstone": b"1", "b": b"2"}),
        envelope(key=b"k", headers_block=block),
        plain(b"", headers=block),
    )
    assert [(one.key, one.value) for one in found] == [(b"k", None)] * 3 + [(None, None)]
    assert [dict(one.headers) for one in found] == [{}, {b"a": b"1", b"b": b"2"}, {b"a": b"1"}, {b"a": b"1"}]


def test_a_value_counts_whatever_the_header_says() -> None:
    (record,) = stored(envelope(key=b"k", value=b"v", headers={"bascule-tombstone": b"1"}))
    assert (record.value, record.headers) == (b"v", ((b"bascule-tombstone", b"1"),))


def test_headers_of_the_envelope_win_over_those_of_nats() -> None:
    block = b"NATS/1.0\r\na: nats\r\nb: nats\r\n\r\n"
    (record,) = stored(envelope(headers={"a": b"envelope", "c": b""}, headers_block=block))
    assert sorted(record.headers) == [(b"a", b"envelope"), (b"b", b"nats"), (b"c", b"")]
    assert [one.headers for one in stored(plain(b"x", headers=block))] == [((b"a", b"nats"), (b"b", b"nats"))]


def test_batches_are_closed_by_records_and_by_bytes() -> None:
    sink, reader = connected(batch_records_max=3, batch_bytes_max=500)
    feed(reader, [plain(b"x")] * 7 + [plain(b"y" * 150)] * 4 + [plain(b"z" * 900)])
    assert (sink.waiting_records, sink.next_offset) == (12, 12)
    batches = sink.take()
    assert [one.count for one in batches] == [3, 3, 3, 2, 1]
    assert [one.base_offset for one in batches] == [0, 3, 6, 9, 11]
    assert sink.take() == []


# ── what is refused ──────────────────────────────────────────────────────────────────────────────


def test_offsets_are_expected_record_by_record_within_a_batch() -> None:
    sink, reader = connected(concurrency_control=True, next_offset=5)
    expected = [5, 5, 6, -1, 8, 9, 0]
    feed(reader, [envelope(expectedOffset=one, value=b"%d" % index) for index, one in enumerate(expected)])
    feed(reader, [plain(b"expects 0")])
    assert sink.next_offset == 10
    wrong = (messages.INCORRECT_OFFSET, 0)
    assert answers(sink, reader) == [(0, 5), (0, 6), (0, 7), (0, 8), (0, 9), wrong, wrong]
    assert sink.refused == 3


def test_the_first_message_may_expect_nothing() -> None:
    sink, reader = connected(concurrency_control=True)
    feed(reader, [plain(b"first"), plain(b"second")])
    assert (sink.waiting_records, sink.refused) == (1, 1)


def test_without_concurrency_control_nobody_looks_at_expected_offsets() -> None:
    assert len(stored(*(envelope(expectedOffset=one) for one in (100, -5, 0)))) == 3


def test_a_readonly_partition_stores_nothing_and_says_so() -> None:
    sink, reader = connected()
    sink.dropping = True
    feed(reader, [plain(b"x"), envelope(value=b"y"), envelope(value=b"z", ackPolicy="NONE")])
    (batch,) = sink.take()
    assert (batch.count, batch.nbytes, batch.builder, batch.has_errors) == (0, 0, None, True)
    new_writer(reader).write_errors(batch, 1, 2)
    # whoever leaves an inbox is told of errors, even if it wants no acks
    assert [(one.error, one.offset) for one in acks_in(reader)] == [(messages.UNKNOWN_ERROR, 0)] * 2
    assert (sink.next_offset, sink.refused) == (0, 3)


@pytest.mark.parametrize(
    "message",
    [
        envelope(value=b"x" * 1000),
        envelope(key=b"k" * 101),
        envelope(headers={f"h{index}": b"" for index in range(9)}),
        envelope(headers={"h": b"v" * 300}),
        envelope(value=b"x", headers_block=b"NATS/1.0\r\nh: " + b"v" * 1000 + b"\r\n\r\n"),
    ],
)
def test_too_large_is_said_and_what_comes_behind_is_stored(message: NatsMessage) -> None:
    sink, reader = connected()
    feed(reader, [message, envelope(value=b"fits")])
    assert answers(sink, reader) == [(0, 0), (messages.TOO_LARGE, 0)]


def test_a_message_of_nothing_but_headers_costs_no_more_than_its_bytes() -> None:
    """Half a million entries of one name: looked at once, and refused for their number."""
    entries = b"\x4a\x00" * 500_000
    inbox = b"\x52\x01i"
    sink, reader = connected(payload_bytes_max=1 << 20)
    feed(reader, [plain(b"\xb9\x0e\x43\xb4\x00\x08\x00\x00" + entries + inbox)])
    assert answers(sink, reader) == [(messages.TOO_LARGE, 0)]


def test_refusals_alone_are_bounded_in_batches_too() -> None:
    sink, reader = connected(batch_records_max=10)
    sink.dropping = True
    feed(reader, [envelope()] * 25)
    assert [one.count for one in sink.take()] == [0, 0, 0]


# ── memory ───────────────────────────────────────────────────────────────────────────────────────


def one_batch(sink: PartitionSink, reader: NatsReader, payload: bytes) -> PreparedBatch:
    feed(reader, [envelope(value=payload)])
    (batch,) = sink.take()
    return batch


def test_a_builder_that_somebody_holds_is_not_used_again() -> None:
    sink, reader = connected()
    batch = one_batch(sink, reader, b"mine")
    held = batch.builder
    assert held is not None
    batch.release()
    assert batch.builder is None
    other = one_batch(sink, reader, b"theirs")
    assert other.builder is not held
    with held.stamp(0, 0, 0) as view:
        assert [one.value for one in records.decode(view)] == [b"mine"]


def test_a_view_outlives_the_release() -> None:
    sink, reader = connected()
    batch = one_batch(sink, reader, b"mine")
    assert batch.builder is not None
    view = batch.builder.stamp(0, 0, 0)
    batch.release()
    for _ in range(10):
        one_batch(sink, reader, b"theirs").release()
    assert [one.value for one in records.decode(view)] == [b"mine"]


def test_records_can_go_while_acks_wait() -> None:
    pool = new_pool()
    sink, reader = connected(pool=pool)
    batch = one_batch(sink, reader, b"v")
    before = pool.bytes_kept
    batch.release_records()
    batch.release_records()
    assert pool.bytes_kept > before
    assert (batch.builder, batch.count, batch.has_leader_acks) == (None, 1, True)
    new_writer(reader).acknowledge(batch, messages.LEADER, 3, 1, 2)
    assert [one.offset for one in acks_in(reader)] == [3]
    batch.release()
    batch.release()
    assert not batch.has_leader_acks


def test_a_batch_outlives_its_sink_and_the_pool() -> None:
    sink, reader = connected()
    batch = one_batch(sink, reader, b"v")
    del sink
    gc.collect()
    new_writer(reader).acknowledge(batch, messages.LEADER, 0, 1, 2)
    assert [one.stream for one in acks_in(reader)] == [b"orders"]


def test_a_sink_that_goes_with_records_inside_frees_them() -> None:
    sink, reader = connected(batch_records_max=2)
    feed(reader, [envelope(value=b"x")] * 5)
    reader.detach(9)
    del sink
    gc.collect()


def test_the_pool_keeps_no_more_than_it_may() -> None:
    pool = new_pool(bytes_max=10_000)
    sink, reader = connected(pool=pool, batch_records_max=1)
    feed(reader, [plain(b"x" * 500)] * 50)
    for batch in sink.take():
        batch.release()
    assert 0 < pool.bytes_kept <= 10_000


def test_batches_come_from_sinks_alone() -> None:
    with pytest.raises(TypeError, match="take"):
        PreparedBatch()
