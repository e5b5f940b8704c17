"""What subscribers get: google's protobuf reads from the kernel's bytes what the twin reads from the log."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given

from bascule.kernels.calls import delivery
from bascule.kernels.wire.output import OutputBuffer
from bascule.log.partition.batches import new_batch
from bascule.proto import api_pb2
from tests.parity.inputs.generate import any_bytes, log
from tests.parity.inputs.strategies import RANDOMS, examples
from tests.parity.twins import twin_records
from tests.parity.twins.twin_messages import readable

EVERYTHING = 2**62


def messages_of(data: bytes) -> list[Any]:
    found = []
    while data:
        assert data[0] == 0
        size = int.from_bytes(data[1:5], "big")
        assert len(data) >= 5 + size
        found.append(api_pb2.Message.FromString(data[5 : 5 + size]))
        data = data[5 + size :]
    return found


def expected(record: Any, stream: str, partition: int) -> Any:
    headers = {readable(name): value for name, value in record.headers if name not in (b"subject", b"reply")}
    return api_pb2.Message(
        offset=record.offset,
        key=record.key or b"",
        value=record.value or b"",
        timestamp=record.timestamp,
        stream=stream,
        partition=partition,
        subject=readable(record.subject),
        replySubject=readable(record.reply),
        headers={
            **headers,
            "subject": record.subject,
            "reply": record.reply,
            **({"bascule-tombstone": b"1"} if record.value is None else {}),
        },
    )


def deliver_all(
    data: Any, cursor: delivery.Cursor, end_offset: int, budgets: random.Random | None
) -> tuple[bytes, int]:
    """In one go, or with small budgets one after the other."""
    kernel = delivery.Delivery(b"orders", 3)
    output = OutputBuffer()
    while True:
        budget = budgets.choice((1, 50, 200, 1000)) if budgets else EVERYTHING
        before, messages = len(output), cursor.messages
        outcome = kernel.write(output, data, cursor, end_offset, budget)
        assert (len(output) > before) == (cursor.messages > messages)
        if outcome != delivery.BUDGET_USED:
            return bytes(output), outcome
        assert len(output) - before >= budget


@examples(200)
@given(RANDOMS)
def test_good_batches(rng: random.Random) -> None:
    data = log(rng, batches_min=1, records_max=8, sealed=0).data
    records = twin_records.decode(data)
    first = rng.choice([one.offset for one in records] + [0])
    end = rng.choice([one.offset for one in records] + [EVERYTHING])
    cursor = delivery.Cursor(first)
    written, outcome = deliver_all(data, cursor, end, rng if rng.random() < 0.7 else None)
    wanted = [one for one in records if first <= one.offset < end]
    assert messages_of(written) == [expected(one, "orders", 3) for one in wanted]
    assert (cursor.messages, cursor.nbytes) == (len(wanted), len(written))
    assert cursor.last_offset == (wanted[-1].offset if wanted else -1)
    assert outcome == (delivery.ALL_DONE if end == EVERYTHING else outcome)
    if outcome == delivery.ALL_DONE:
        assert cursor.batch_at == len(data)


@examples(500)
@given(RANDOMS)
def test_damaged_batches_are_delivered_up_to_the_damage(rng: random.Random) -> None:
    data = any_bytes(rng)
    cursor = delivery.Cursor()
    written, outcome = deliver_all(data, cursor, EVERYTHING, rng)
    found = messages_of(written)
    assert [one.offset for one in found] == sorted({one.offset for one in found})
    assert cursor.batch_at <= len(data)
    try:
        records = twin_records.decode(data)
    except twin_records.BatchError:
        return
    # what decodes as a whole is delivered as a whole, as long as no batch claims offsets of the one before it
    if batches_rise(data):
        assert outcome == delivery.ALL_DONE
        assert found == [expected(one, "orders", 3) for one in records]


def batches_rise(data: bytes) -> bool:
    at, behind = 0, 0
    while at < len(data):
        header = twin_records.read_header(data, at)
        if header.base_offset < behind or header.last_offset >= EVERYTHING:
            return False
        at, behind = at + header.length, header.last_offset + 1
    return True


def delivered(
    *,
    value: bytes | None = b"v",
    headers: tuple[tuple[bytes, bytes], ...] = (),
    subject: bytes = b"orders",
    reply: bytes = b"",
) -> Any:
    batch = new_batch()
    batch.add(b"k", value, headers, subject, reply)
    with batch.stamp(0, 0, 5) as data:
        written, outcome = deliver_all(bytes(data), delivery.Cursor(), EVERYTHING, None)
    assert outcome == delivery.ALL_DONE
    (message,) = messages_of(written)
    return message


def test_subject_and_reply_are_the_servers() -> None:
    message = delivered(headers=((b"subject", b"forged"), (b"reply", b"forged"), (b"a", b"1")), reply=b"_INBOX.1")
    assert dict(message.headers) == {"subject": b"orders", "reply": b"_INBOX.1", "a": b"1"}
    assert (message.subject, message.replySubject) == ("orders", "_INBOX.1")


def test_a_record_without_a_value_has_a_header_that_says_so() -> None:
    tombstone, empty = delivered(value=None, headers=((b"a", b"1"),), reply=b"r"), delivered(value=b"")
    assert dict(tombstone.headers) == {"subject": b"orders", "reply": b"r", "a": b"1", "bascule-tombstone": b"1"}
    assert dict(empty.headers) == {"subject": b"orders", "reply": b""}
    assert (tombstone.value, empty.value) == (b"", b"")


def test_the_header_reply_is_there_without_a_reply() -> None:
    assert dict(delivered().headers) == {"subject": b"orders", "reply": b""}


def test_what_is_no_utf8_becomes_a_replacement_character_in_texts_and_stays_in_bytes() -> None:
    message = delivered(headers=((b"n\xff", b"\xff"),), subject=b"s\xc3", reply=b"\xf0\x9f\x92")
    assert (message.subject, message.replySubject) == ("s�", "�")
    assert dict(message.headers) == {"subject": b"s\xc3", "reply": b"\xf0\x9f\x92", "n�": b"\xff"}


def test_subjects_may_change_from_record_to_record() -> None:
    batch = new_batch()
    subjects = [b"a", b"b", b"a", b"", b"a.longer.one", b"b"]
    for subject in subjects:
        batch.add(None, b"v", subject=subject)
    with batch.stamp(7, 0, 5) as data:
        written, _ = deliver_all(bytes(data), delivery.Cursor(), EVERYTHING, None)
    assert [one.subject.encode() for one in messages_of(written)] == subjects
    assert [one.headers["subject"] for one in messages_of(written)] == subjects
