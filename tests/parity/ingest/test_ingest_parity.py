"""Whatever arrives on a partition's subject: the sink and the twin store the same records and owe the same acks."""

from __future__ import annotations

import random

from hypothesis import given

from bascule.kernels.envelope.ack_object import Ack
from bascule.kernels.ingest.acks import AckRouter, AckWriter, CallbackReceiver
from bascule.kernels.ingest.sink import nats_headers
from bascule.kernels.records import records
from bascule.kernels.records.producers import ProducerTable
from bascule.proto import api_pb2
from tests.parity.inputs.generate_messages import any_envelope
from tests.parity.inputs.ingest_helpers import PREFIX, acks_in, feed, new_pool, new_reader, new_sink, stamped
from tests.parity.inputs.strategies import RANDOMS, examples
from tests.parity.twins import twin_ingest
from tests.parity.twins.twin_ingest import ALL, LEADER, NatsMessage
from tests.support.kernels.message_objects import publish_envelope

INBOXES = (
    "",
    "_INBOX.1",
    "in box",
    "in\r\nPUB evil 0",
    "i\tn",
    "größe",
    "x" * 1900,
    "x" * 1901,
    "\x7f",
    PREFIX.decode() + "5",
)
NAMES = ("bascule-tombstone", "", "a", "b", "c", "subject", "Content-Type", "bascule-other", "bascule-epoch")
PRODUCERS = (b"p", b"q", b"p" * 64, "größe".encode())
BAD_PRODUCER_HEADERS = (
    {"bascule-producer": b""},
    {"bascule-producer": b"p" * 65},
    {"bascule-producer": b"\xff"},
    {"bascule-epoch": b""},
    {"bascule-epoch": b"-1"},
    {"bascule-sequence": b"1" * 19},
    {"bascule-sequence": b"1x"},
)
BLOCKS = (
    None,
    b"NATS/1.0\r\n\r\n",
    b"NATS/1.0\r\na: 1\r\nb:2\r\nb:  3  \r\n\r\n",
    b"NATS/1.0\r\nbascule-producer: n\r\nbascule-epoch: 2\r\nbascule-sequence: 0\r\n\r\n",
    b"NATS/1.0 503\r\na: 1\r\n\r\n",
    b"NATS/1.0\r\nno colon\r\n: no name\r\nc:\t\r\n\r\nd: behind the end\r\n\r\n",
    b"NATS/1.0\r\n" + b"".join(b"h%d: %d\r\n" % (index, index) for index in range(9)) + b"\r\n",
    b"NATS/1.0\na: 1\n\n",
    b"HTTP/1.1\r\na: 1\r\n\r\n",
    b"NATS/1.0: x\r\na: cut of",
)


def any_headers(rng: random.Random) -> dict[str, bytes]:
    headers = {rng.choice(NAMES): b"%d" % index for index in range(rng.choice((0, 0, 1, 3)))}
    if rng.random() < 0.6:
        headers |= {
            "bascule-producer": rng.choice(PRODUCERS),
            "bascule-epoch": rng.choice((b"0", b"0", b"00", b"1")),
            "bascule-sequence": b"%d" % rng.choice((0, 0, 0, 1, 1, 2, 3)),
        }
    if rng.random() < 0.05:
        headers |= rng.choice(BAD_PRODUCER_HEADERS)
    return headers


def any_nats_message(rng: random.Random, next_offset: int) -> NatsMessage:
    shape = rng.random()
    if shape < 0.2:
        payload = rng.choice((b"", b"plain", rng.randbytes(20), b"x" * rng.choice((999, 1000, 1001))))
    elif shape < 0.4:
        payload = any_envelope(rng)
    else:
        request = api_pb2.PublishRequest(
            key=rng.choice((b"", b"k", b"k" * 100, b"k" * 101)),
            value=rng.choice((b"", b"v", b"v" * rng.choice((500, 1200)))),
            headers=any_headers(rng),
            correlationId=rng.choice(("", "c-1", "c" * 200)),
            expectedOffset=rng.choice((-1, 0, next_offset, next_offset, next_offset + 1, -2)),
        )
        request.ackPolicy = rng.choice((0, 0, 1, 1, 2, 7, -1))  # type: ignore[assignment]
        built = publish_envelope(request.SerializeToString(), rng.choice(INBOXES).encode())
        assert built is not None
        payload = built
    return NatsMessage(
        subject=rng.choice((b"orders.subject", b"orders.subject", b"other", b"n\xff")),
        payload=payload,
        reply=rng.choice((b"", b"", b"_INBOX.reply")),
        headers=rng.choice(BLOCKS) if rng.random() < 0.2 else None,
    )


@examples(400)
@given(RANDOMS)
def test_the_sink_stores_and_owes_what_the_twin_does(rng: random.Random) -> None:
    concurrency_control = rng.random() < 0.4
    first = rng.choice((0, 5, 2**40))
    sink = new_sink(
        concurrency_control=concurrency_control,
        next_offset=first,
        batch_records_max=rng.choice((1, 2, 100)),
        batch_bytes_max=rng.choice((100, 1000, 10_000)),
    )
    twin = twin_ingest.Sink(
        payload_bytes_max=1000,
        headers_max=8,
        headers_bytes_max=300,
        key_bytes_max=100,
        next_offset=first,
        concurrency_control=concurrency_control,
    )
    is_held = rng.random() < 0.3
    if not is_held:
        sink.learn_producers(ProducerTable(4096), first)
    reader = new_reader(sink)
    local: list[Ack] = []
    router = AckRouter(PREFIX)
    router.receivers[5] = CallbackReceiver(local.append)
    writer = AckWriter(reader, router)
    data, offset, received = b"", first, 0
    for _ in range(rng.randint(1, 3)):
        sink.dropping = twin.dropping = rng.random() < 0.1
        messages = [any_nats_message(rng, twin.next_offset) for _ in range(rng.randint(0, 6))]
        received += len(messages)
        for one in messages:
            twin.take(one)
        feed(reader, messages)
        waiting = sink.waiting_records
        batches = sink.take()
        if sink.is_holding:
            sink.learn_producers(ProducerTable(4096), first + sum(batch.count for batch in batches) + (offset - first))
            waiting += sink.waiting_records
            batches += sink.take()
        assert waiting == sum(batch.count for batch in batches)
        assert (sink.waiting_records, sink.waiting_bytes) == (0, 0)
        for batch in batches:
            assert batch.count <= sink.batch_records_max
            assert batch.nbytes <= sink.batch_bytes_max or batch.count == 1
            assert (batch.builder is None) == (batch.count == 0)
            if batch.count:
                assert batch.base_offset == offset
                data += stamped(batch, offset)
            writer.write_errors(batch, 1_000, 2_000)
            for policy in (LEADER, ALL):
                writer.acknowledge(batch, policy, offset, 1_000, 2_000)
            offset += batch.count
            batch.release()
    found = [
        twin_ingest.Stored(one.key, one.value, one.headers, one.subject, one.reply) for one in records.decode(data)
    ]
    assert found == twin.stored
    assert (sink.received, sink.refused, sink.lost, sink.next_offset) == (received, twin.refused, 0, twin.next_offset)
    assert sink.duplicates == twin.duplicates
    expected = sorted(expected_ack(one) for one in twin.waiting)
    assert sorted(acks_in(reader) + [one._replace(msg_subject=readable(one.msg_subject)) for one in local]) == expected


def readable(subject: bytes) -> bytes:
    return subject.decode("utf-8", "replace").encode()


def expected_ack(waiting: twin_ingest.Waiting) -> Ack:
    return Ack(
        stream=b"orders",
        partition_subject=b"orders.subject",
        msg_subject=readable(waiting.subject),
        offset=waiting.offset,
        ack_inbox=waiting.inbox,
        correlation_id=waiting.correlation_id,
        ack_policy=waiting.policy,
        reception_timestamp=0 if waiting.is_duplicate else 1_000,
        commit_timestamp=0 if waiting.error == twin_ingest.TOO_LARGE else 2_000,
        error=waiting.error,
        duplicate=waiting.is_duplicate,
    )


@examples(300)
@given(RANDOMS)
def test_nats_headers(rng: random.Random) -> None:
    pieces = (b"NATS/1.0", b"\r\n", b"\n", b"\r", b":", b" ", b"\t", b"a", b"name", b"value", b"\xff", b"\r\n\r\n")
    block = b"NATS/1.0" * (rng.random() < 0.9) + b"".join(rng.choice(pieces) for _ in range(rng.randint(0, 20)))
    assert nats_headers(block) == twin_ingest.nats_headers(block)


def test_memory_comes_back_to_the_pool_and_is_used_again() -> None:
    pool = new_pool()
    sink = new_sink(pool)
    reader = new_reader(sink)
    kept = set()
    for _ in range(20):
        feed(reader, [NatsMessage(b"orders.subject", b"v" * 50)] * 30)
        (batch,) = sink.take()
        stamped(batch, 0)
        batch.release()
        kept.add(pool.bytes_kept)
    assert len(kept) == 1
