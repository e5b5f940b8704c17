"""What subscribers receive: the kernel, google's protobuf and the twin accept the same bytes and read the same things from them."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given

from bascule.kernels.client import messages as kernel
from bascule.kernels.window.columns import Column
from bascule.proto import api_pb2
from tests.parity.inputs.generate_messages import any_message, damaged
from tests.parity.inputs.strategies import RANDOMS, examples
from tests.parity.twins import twin_client as twin


def fields_of(message: kernel.Message) -> twin.Received:
    return twin.Received(
        message.offset,
        message.key,
        message.value,
        message.timestamp,
        message.stream,
        message.partition,
        message.subject,
        message.reply,
        message.headers,
    )


def google(data: bytes) -> twin.Received | None:
    try:
        found: Any = api_pb2.Message.FromString(data)
    except DecodeError:
        return None
    return twin.Received(
        found.offset,
        found.key or None,
        twin.value_of(found.value, found.headers),
        found.timestamp,
        found.stream,
        found.partition,
        found.subject,
        found.replySubject,
        twin.publishers(found.headers, found.value),
    )


def decoded(data: bytes) -> kernel.Message | None:
    try:
        return kernel.decode_message(data)
    except ValueError:
        return None


def encoded(offset: int, value: bytes, **others: Any) -> bytes:
    return api_pb2.Message(offset=offset, value=value, **others).SerializeToString()


@examples(1500)
@given(RANDOMS)
def test_messages(rng: random.Random) -> None:
    data = any_message(rng, 9)
    ours = decoded(data)
    assert (None if ours is None else fields_of(ours)) == twin.message(data) == google(data)


def any_run(rng: random.Random) -> list[bytes]:
    """Messages as a server sends them: heads that differ, tails that are often the same, and some of strangers."""
    tails = [any_message(rng, 9) for _ in range(rng.randint(1, 3))]
    tails.append(encoded(0, b"", stream="s", subject="a.b", headers={"subject": b"a.b", "reply": b""}))
    tails.append(encoded(0, b"", stream="s", subject="a.c", headers={"subject": b"a.c", "reply": b"", "x": b"\xff"}))
    tails.append(encoded(0, b"", stream="s", subject="a.b", headers={"reply": b"", "x": b"", twin.TOMBSTONE: b"1"}))
    run = []
    for _ in range(rng.randrange(12)):
        head = encoded(
            rng.choice((0, 1, 2**63 - 1)), rng.randbytes(rng.choice((0, 3, 300))), key=rng.choice((b"", b"k"))
        )
        data = head + rng.choice(tails)
        run.append(damaged(rng, data) if rng.random() < 0.05 else data)
    return run


@examples(1000)
@given(RANDOMS)
def test_a_batch_is_its_messages(rng: random.Random) -> None:
    run = any_run(rng)
    expected = [twin.message(data) for data in run]
    assert expected == [google(data) for data in run]
    if None in expected:
        with pytest.raises(ValueError, match=f"message {expected.index(None)} is not protobuf"):
            kernel.decode_batch(run)
        return
    batch = kernel.decode_batch(run)
    wanted = [one for one in expected if one is not None]
    assert [fields_of(message) for message in batch] == wanted
    assert batch.offsets.tolist() == [one.offset for one in wanted]
    assert batch.timestamps.tolist() == [one.timestamp for one in wanted]
    assert batch.values() == [one.value for one in wanted]
    assert batch.keys() == [one.key for one in wanted]
    assert batch.value_bytes == b"".join(one.value or b"" for one in wanted)
    assert batch.key_bytes == b"".join(one.key or b"" for one in wanted)
    assert batch.value_offsets.tolist() == [0, *batch.value_ends.tolist()]
    assert batch.key_offsets.tolist() == [0, *batch.key_ends.tolist()]
    for index, one in enumerate(wanted):
        start, end = batch.value_offsets[index], batch.value_offsets[index + 1]
        assert batch.value_bytes[start:end] == (one.value or b"")
        assert batch.value(index) == one.value
        assert batch.key(index) == one.key
        assert (batch.subject(index), batch.reply(index), batch.headers(index)) == (one.subject, one.reply, one.headers)
        assert fields_of(batch[index - len(wanted)]) == one


# ── one by one ───────────────────────────────────────────────────────────────────────────────────


def test_an_empty_batch_has_columns_all_the_same() -> None:
    batch = kernel.decode_batch([])
    assert (len(batch), batch.messages(), batch.stream, batch.partition) == (0, [], "", 0)
    assert (batch.first_offset, batch.last_offset) == (-1, -1)
    assert (batch.offsets.tolist(), batch.value_ends.tolist(), batch.value_offsets.tolist()) == ([], [], [0])
    assert bytes(batch.value_bytes) == b""
    with pytest.raises(IndexError):
        batch.value(0)
    with pytest.raises(IndexError):
        batch[-1]


def test_columns_are_read_only_int64_and_outlive_their_batch() -> None:
    batch = kernel.decode_batch([encoded(number, b"v%d" % number, timestamp=7) for number in range(5000)])
    offsets, values = batch.offsets, batch.value_bytes
    assert (offsets.format, offsets.itemsize, values.format) == ("q", 8, "B")
    assert offsets.contiguous
    del batch
    with pytest.raises(TypeError):
        offsets[0] = 1
    assert offsets.tolist() == list(range(5000))
    assert bytes(values).startswith(b"v0v1v2")


def test_a_tail_that_has_fields_of_the_head_is_read_for_every_message() -> None:
    strange = encoded(0, b"", stream="s") + encoded(9, b"from the tail")
    batch = kernel.decode_batch([encoded(1, b"a") + strange, encoded(2, b"b") + strange, encoded(3, b"c", stream="s")])
    assert [(message.offset, message.value) for message in batch] == [
        (9, b"from the tail"),
        (9, b"from the tail"),
        (3, b"c"),
    ]


def test_tails_are_kept_once_as_long_as_they_are_the_same() -> None:
    def size(subjects: list[str]) -> int:
        return kernel.decode_batch([encoded(1, b"v", subject=subject * 50) for subject in subjects]).nbytes

    assert size(["a"] * 100) < size(["a", "b"] * 50) - 99 * 50


def test_headers_belong_to_their_message() -> None:
    batch = kernel.decode_batch([encoded(number, b"", headers={"a": b"1"}) for number in range(2)])
    one, other = batch
    one.headers["b"] = b"2"
    assert one.headers == {"a": b"1", "b": b"2"}
    assert other.headers == batch.headers(0) == {"a": b"1"}


def test_a_message_without_a_value_is_no_message_with_an_empty_one() -> None:
    added = {"subject": b"a", "reply": b"", "own": b"1"}
    tombstone = encoded(0, b"", key=b"k", headers={**added, twin.TOMBSTONE: b"1"})
    empty = encoded(1, b"", key=b"k", headers=added)
    batch = kernel.decode_batch([tombstone, empty, tombstone])
    assert [message.value for message in batch] == batch.values() == [None, b"", None]
    assert [message.headers for message in batch] == [{"own": b"1"}] * 3
    assert kernel.decode_message(tombstone) == batch[0] == pickle.loads(pickle.dumps(batch[0]))
    assert kernel.decode_message(tombstone) != kernel.decode_message(empty)
    # a value counts, whatever the header says
    forged = kernel.decode_message(encoded(0, b"v", headers={twin.TOMBSTONE: b"1"}))
    assert (forged.value, forged.headers) == (b"v", {twin.TOMBSTONE: b"1"})


def test_of_two_entries_with_one_name_the_last_counts() -> None:
    first, last = encoded(0, b"", headers={"a": b"1"}), encoded(0, b"", headers={"a": b"2"})
    assert kernel.decode_message(first + last).headers == {"a": b"2"}


def test_a_message_can_be_made_compared_shown_and_pickled() -> None:
    given = kernel.Message(
        4,
        b"v",
        key=b"k",
        timestamp=5,
        stream="s",
        partition=2,
        subject="a.b",
        reply="r",
        headers={"h": b"1"},
    )
    received = kernel.decode_message(
        encoded(
            4,
            b"v",
            key=b"k",
            timestamp=5,
            stream="s",
            partition=2,
            subject="a.b",
            replySubject="r",
            headers={"h": b"1"},
        )
    )
    assert given == received
    assert hash(given) == hash(received)
    assert repr(received) == repr(given)
    assert pickle.loads(pickle.dumps(received)) == given
    assert given != kernel.Message(4, b"v")
    assert given != "something else"
    assert kernel.Message(key=b"").key is None


def test_objects_that_nothing_was_put_into_are_empty() -> None:
    bare = kernel.Message.__new__(kernel.Message)
    assert (bare.stream, bare.partition, bare.subject, bare.reply, bare.headers) == ("", 0, "", "", {})
    batch = kernel.MessageBatch()
    assert (len(batch), batch.nbytes, batch.offsets.tolist()) == (0, 0, [])
    assert bytes(Column()) == b""
