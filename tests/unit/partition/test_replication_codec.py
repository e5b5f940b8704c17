"""Bytes of replicas' messages, written down by hand, and everything that is no such message."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable

import pytest

from bascule import limits
from bascule.partition.core import codec
from bascule.partition.core.codec import MalformedReplication
from bascule.partition.core.messages import EpochAnswer, EpochQuery, Fetch, FetchAnswer, Message, Notice, Verdict

KEY = (0x0102030405060708, 9)
HEAD = b"\x01\x00\x03one"
WHERE = bytes.fromhex("0102030405060708 00000009")
EPOCH_AND_NUMBER = bytes.fromhex("0000000000000005 0000000000000006")
Decoder = Callable[[bytes], tuple[str, list[tuple[object, ...]]]]


@pytest.mark.parametrize(
    ("message", "decode", "expected"),
    [
        (
            Fetch(5, 6, 7, 8, 9, is_fetch=True, is_urgent=True),
            codec.decode_fetches,
            EPOCH_AND_NUMBER + bytes.fromhex("0000000000000007 0000000000000008 0000000000000009 03"),
        ),
        (
            Fetch(5, 6, 7, 8, 9, is_fetch=False),
            codec.decode_fetches,
            EPOCH_AND_NUMBER + bytes.fromhex("0000000000000007 0000000000000008 0000000000000009 00"),
        ),
        (EpochQuery(5, 6, 7), codec.decode_epoch_queries, EPOCH_AND_NUMBER + bytes.fromhex("0000000000000007")),
        (
            EpochAnswer(5, 6, Verdict.OLD_EPOCH, 7, 8),
            codec.decode_epoch_answers,
            EPOCH_AND_NUMBER + bytes.fromhex("02 0000000000000007 0000000000000008"),
        ),
        (
            Notice(5, -1, is_beginning=True),
            codec.decode_notices,
            bytes.fromhex("0000000000000005 ffffffffffffffff 01"),
        ),
    ],
)
def test_the_format_of_messages_without_data(message: Message, decode: Decoder, expected: bytes) -> None:
    entry = codec.encode_entry(KEY, message)
    assert entry == WHERE + expected
    assert codec.encode_head("one") == HEAD
    assert decode(HEAD + entry + entry) == ("one", [(KEY, message), (KEY, message)])


def test_the_format_of_an_answer_and_of_its_pieces() -> None:
    answer = FetchAnswer(5, 6, Verdict.OK, 7, 8, 9, wants_sync=True, data=b"abcde")
    entry = codec.encode_entry(KEY, answer)
    fields = WHERE + EPOCH_AND_NUMBER + bytes.fromhex("00 01 0000000000000007 0000000000000008 0000000000000009")
    assert entry == fields + bytes.fromhex("00000005 00000000 00000005")
    assert len(entry) == codec.ANSWER_BYTES
    piece = codec.encode_piece(entry, 3, 2)
    assert piece == fields + bytes.fromhex("00000005 00000003 00000002")
    message = HEAD + entry + b"abcde" + piece + b"de"
    sender, found = codec.decode_answers(message)
    end = FetchAnswer(5, 6, Verdict.OK, 7, 8, 9, wants_sync=True, data=b"de")
    assert (sender, found) == ("one", [(KEY, answer, 5, 0), (KEY, end, 5, 3)])


def test_every_field_travels() -> None:
    """Who gives a message another field learns here that it has no bytes yet."""
    kinds: tuple[type[Message], ...] = (Fetch, EpochQuery, EpochAnswer, Notice, FetchAnswer)
    assert [len(dataclasses.fields(kind)) for kind in kinds] == [7, 3, 5, 3, 8]


def test_data_is_a_view_of_what_was_given() -> None:
    message = HEAD + codec.encode_entry(KEY, FetchAnswer(5, 6, Verdict.OK, data=b"abc")) + b"abc"
    _, [(_, answer, _, _)] = codec.decode_answers(message)
    assert isinstance(answer.data, memoryview)
    assert answer.data.obj is message


def test_a_server_may_have_a_name_of_any_letters() -> None:
    name = "ß漢🦆" * 42
    assert codec.decode_notices(codec.encode_head(name) + codec.encode_entry(KEY, Notice(1, 2))) == (
        name,
        [(KEY, Notice(1, 2))],
    )


NOTICE = codec.encode_entry(KEY, Notice(5, 6))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "0 bytes are too few"),
        (b"\x01\x00", "2 bytes are too few"),
        (b"\x00\x00\x03one" + NOTICE, "version 0 is not 1"),
        (b"\x02\x00\x03one" + NOTICE, "version 2 is not 1"),
        (HEAD, "nothing behind it"),
        (HEAD[:4], "a sender's name of 3 bytes in a message of 4"),
        (b"\x01\xff\xff" + bytes(1000), "a sender's name of 65535 bytes"),
        (b"\x01\x02\x01" + b"x" * 513 + NOTICE, "a sender's name of 513 bytes"),
        (b"\x01\x00\x81" + b"x" * 129 + NOTICE, "is no server's name"),
        (b"\x01\x00\x00" + NOTICE, "'' is no server's name"),
        (b"\x01\x00\x03a.b" + NOTICE, "'a.b' is no server's name"),
        (b"\x01\x00\x03a b" + NOTICE, "'a b' is no server's name"),
        (b"\x01\x00\x03a\r\n" + NOTICE, "is no server's name"),
        (b"\x01\x00\x01>" + NOTICE, "'>' is no server's name"),
        (b"\x01\x00\x01\xff" + NOTICE, "no UTF-8"),
        (HEAD + NOTICE[:-1], "28 bytes are no whole entries of 29"),
        (HEAD + NOTICE + b"x", "30 bytes are no whole entries of 29"),
        (HEAD + NOTICE + NOTICE[:-1] + b"\x02", "flags 0x02"),
        (HEAD + codec.encode_entry(KEY, Notice(5, -2)), "high watermark -2"),
    ],
)
def test_what_is_no_notice_is_refused_by_name(data: bytes, reason: str) -> None:
    with pytest.raises(MalformedReplication) as refusal:
        codec.decode_notices(data)
    assert reason in str(refusal.value)


def answer_entry(total: int, position: int, piece: int, *, verdict: int = 0, flags: int = 0, start: int = 0) -> bytes:
    return struct.pack(">QIQQBBqqqIII", 1, 2, 5, 6, verdict, flags, -1, start, 0, total, position, piece)


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        (answer_entry(0, 0, 0)[:-1], "65 bytes where an answer of at least 66 begins"),
        (answer_entry(0, 0, 0) + b"x", "1 bytes where an answer"),
        (answer_entry(3, 0, 3) + b"ab", "of which 2 came"),
        (answer_entry(3, 0, 3) + b"abcd", "1 bytes where an answer"),
        (answer_entry(3, 1, 3) + b"abc", "a piece of 3 bytes at 1 of 3"),
        (answer_entry(2, 0, 3) + b"abc", "a piece of 3 bytes at 0 of 2"),
        (answer_entry(3, 3, 0), "an empty piece of 3 bytes"),
        (answer_entry(3, 0, 0), "an empty piece of 3 bytes"),
        (answer_entry(0, 1, 0), "a piece of 0 bytes at 1 of 0"),
        (answer_entry(5, 0xFFFFFFFF, 1) + b"a", "at 4294967295 of 5"),
        (answer_entry(limits.REPLICATION_ANSWER_BYTES_MAX + 1, 0, 1) + b"a", "a piece of 1 bytes at 0 of 142606337"),
        (answer_entry(0xFFFFFFFF, 0, 0xFFFFFFFF), "of which 0 came"),
        (answer_entry(0, 0, 0, verdict=8), "the unknown verdict 8"),
        (answer_entry(0, 0, 0, verdict=255), "the unknown verdict 255"),
        (answer_entry(0, 0, 0, flags=2), "flags 0x02"),
        (answer_entry(0, 0, 0, start=-1), "offsets (-1, -1, 0)"),
    ],
)
def test_what_is_no_answer_is_refused_by_name(entries: bytes, reason: str) -> None:
    good = answer_entry(1, 0, 1) + b"z"
    for data in (HEAD + entries, HEAD + good + entries):
        with pytest.raises(MalformedReplication) as refusal:
            codec.decode_answers(data)
        assert reason in str(refusal.value)


def test_the_largest_answer_is_taken() -> None:
    most = limits.REPLICATION_ANSWER_BYTES_MAX
    _, [(_, answer, total, position)] = codec.decode_answers(HEAD + answer_entry(most, most - 2, 2) + b"ab")
    assert (bytes(answer.data), total, position) == (b"ab", most, most - 2)
    assert most >= limits.BATCH_BYTES_MAX


@pytest.mark.parametrize("fetch", [Fetch(5, 6, -1, 0, 0), Fetch(5, 6, 0, -1, 0)])
def test_a_fetch_below_the_first_offset_is_refused(fetch: Fetch) -> None:
    with pytest.raises(MalformedReplication, match="a fetch at"):
        codec.decode_fetches(HEAD + codec.encode_entry(KEY, fetch))


def test_a_fetch_with_unknown_flags_is_refused() -> None:
    entry = codec.encode_entry(KEY, Fetch(5, 6, 7, 8, 9))
    with pytest.raises(MalformedReplication, match="flags 0x04"):
        codec.decode_fetches(HEAD + entry[:-1] + b"\x04")


def test_epoch_answers_have_a_known_verdict_and_an_end() -> None:
    with pytest.raises(MalformedReplication, match="an epoch that ends at -1"):
        codec.decode_epoch_answers(HEAD + codec.encode_entry(KEY, EpochAnswer(5, 6, Verdict.OK, 7, -1)))
    entry = bytearray(codec.encode_entry(KEY, EpochAnswer(5, 6, Verdict.OK, 7, 8)))
    entry[28] = 99
    with pytest.raises(MalformedReplication, match="unknown verdict 99"):
        codec.decode_epoch_answers(HEAD + entry)
