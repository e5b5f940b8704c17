"""Bytes of what the replicas of partitions say to each other. One message carries many entries, each for one partition.

    message:  version u8 (1) · sender (size u16, UTF-8) · entries of one kind until the end                       big-endian

                      stream  partition  leader epoch  number
    Fetch              u64       u32         u64        u64     log end i64 · synced end i64 · replica epoch u64 · flags u8
    EpochQuery         u64       u32         u64        u64     epoch u64
    EpochAnswer        u64       u32         u64        u64     verdict u8 · epoch u64 · end i64
    Notice             u64       u32         u64                high watermark i64 · flags u8
    FetchAnswer        u64       u32         u64        u64     verdict u8 · flags u8 · high watermark i64 · log start i64 · log end i64
                                                                · data in all u32 · position u32 · piece u32 · the piece

The envelope around an entry gives its kind: each kind has a message type of its own (net/nats/envelope.py). Data that does not fit
one message is cut into pieces, sent in order; each carries the whole entry and its position in the data. Entries have no checksum: NATS
runs over TCP, and batches have their own.

Whatever is not as above raises MalformedReplication. A length is believed only as far as there are bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from struct import Struct
from typing import Any, Final, TypeVar

from bascule import limits
from bascule.partition.core.messages import EpochAnswer, EpochQuery, Fetch, FetchAnswer, Message, Notice, Verdict

PartitionKey = tuple[int, int]
"""Stream id and number of the partition."""

Request = Fetch | EpochQuery
Answer = FetchAnswer | EpochAnswer | Notice

VERSION: Final = 1

_HEAD: Final = Struct(">BH")
_FETCH: Final = Struct(">QIQQqqQB")
_EPOCH_QUERY: Final = Struct(">QIQQQ")
_EPOCH_ANSWER: Final = Struct(">QIQQBQq")
_NOTICE: Final = Struct(">QIQqB")
_ANSWER: Final = Struct(">QIQQBBqqqIII")
_PIECE: Final = Struct(">III")

ANSWER_BYTES: Final = _ANSWER.size
"""A FetchAnswer without its data."""

_IS_FETCH: Final = 0x01
_IS_URGENT: Final = 0x02
_WANTS_SYNC: Final = 0x01
_IS_BEGINNING: Final = 0x01

_MAX: Final = (1 << 63) - 1
"""The largest epoch and number of a message: offsets and epochs are signed in the log."""

_VERDICTS: Final = {verdict.value: verdict for verdict in Verdict}
_SENDER: Final = re.compile(rf"[^\s.*>/\\\x00-\x20\x7f]{{1,{limits.NAME_CHARACTERS_MAX}}}")
_SENDER_BYTES_MAX: Final = 4 * limits.NAME_CHARACTERS_MAX

_Entry = TypeVar("_Entry")


class MalformedReplication(ValueError):
    """Bytes that no replica of ours can have sent. Says what is wrong with them."""


# ── writing ──────────────────────────────────────────────────────────────────────────────────────


def encode_head(sender: str) -> bytes:
    """What every message of a server begins with."""
    name = sender.encode()
    return _HEAD.pack(VERSION, len(name)) + name


def encode_entry(key: PartitionKey, message: Message) -> bytes:
    """One entry. Of a FetchAnswer without its data, which follows as it is: all of it in one piece."""
    return _ENCODERS[type(message)](key, message)


def encode_piece(entry: bytes, position: int, size: int) -> bytes:
    """The entry of a FetchAnswer again, this time for a piece of its data."""
    total_bytes = int.from_bytes(entry[-12:-8], "big")
    return entry[:-12] + _PIECE.pack(total_bytes, position, size)


def _encode_fetch(key: PartitionKey, fetch: Fetch) -> bytes:
    return _FETCH.pack(
        *key,
        fetch.leader_epoch,
        fetch.number,
        fetch.log_end_offset,
        fetch.synced_end_offset,
        fetch.replica_epoch,
        fetch.is_fetch | fetch.is_urgent << 1,
    )


def _encode_epoch_query(key: PartitionKey, query: EpochQuery) -> bytes:
    return _EPOCH_QUERY.pack(*key, query.leader_epoch, query.number, query.epoch)


def _encode_epoch_answer(key: PartitionKey, answer: EpochAnswer) -> bytes:
    return _EPOCH_ANSWER.pack(*key, answer.leader_epoch, answer.number, answer.verdict, answer.epoch, answer.end_offset)


def _encode_notice(key: PartitionKey, notice: Notice) -> bytes:
    return _NOTICE.pack(*key, notice.leader_epoch, notice.high_watermark, notice.is_beginning)


def _encode_answer(key: PartitionKey, answer: FetchAnswer) -> bytes:
    size = len(answer.data)
    assert size <= limits.REPLICATION_ANSWER_BYTES_MAX, f"an answer with {size} bytes, which no follower takes"
    return _ANSWER.pack(
        *key,
        answer.leader_epoch,
        answer.number,
        answer.verdict,
        answer.wants_sync,
        answer.high_watermark,
        answer.log_start_offset,
        answer.log_end_offset,
        size,
        0,
        size,
    )


_ENCODERS: Final[dict[type[Message], Callable[[PartitionKey, Any], bytes]]] = {
    Fetch: _encode_fetch,
    EpochQuery: _encode_epoch_query,
    EpochAnswer: _encode_epoch_answer,
    Notice: _encode_notice,
    FetchAnswer: _encode_answer,
}


# ── reading ──────────────────────────────────────────────────────────────────────────────────────


def decode_fetches(data: bytes | memoryview) -> tuple[str, list[tuple[PartitionKey, Fetch]]]:
    """The sender, and what it says of each partition."""
    sender, entries = _open(data, _FETCH)
    found = []
    for stream, partition, epoch, number, log_end, synced_end, replica_epoch, flags in _FETCH.iter_unpack(entries):
        if log_end < 0 or synced_end < 0 or flags > _IS_FETCH | _IS_URGENT or max(epoch, number, replica_epoch) > _MAX:
            raise MalformedReplication(f"a fetch at {log_end}, synced to {synced_end}, with flags {flags:#04x}")
        fetch = Fetch(
            epoch, number, log_end, synced_end, replica_epoch, flags & _IS_FETCH != 0, flags & _IS_URGENT != 0
        )
        found.append(((stream, partition), fetch))
    return sender, found


def decode_epoch_queries(data: bytes | memoryview) -> tuple[str, list[tuple[PartitionKey, EpochQuery]]]:
    sender, entries = _open(data, _EPOCH_QUERY)
    found = []
    for stream, partition, leader_epoch, number, epoch in _EPOCH_QUERY.iter_unpack(entries):
        if max(leader_epoch, number, epoch) > _MAX:
            raise MalformedReplication(f"a query {number} for epoch {epoch} in leader epoch {leader_epoch}")
        found.append(((stream, partition), EpochQuery(leader_epoch, number, epoch)))
    return sender, found


def decode_epoch_answers(data: bytes | memoryview) -> tuple[str, list[tuple[PartitionKey, EpochAnswer]]]:
    sender, entries = _open(data, _EPOCH_ANSWER)
    found = []
    for stream, partition, leader_epoch, number, verdict, epoch, end in _EPOCH_ANSWER.iter_unpack(entries):
        if end < 0 or max(leader_epoch, number, epoch) > _MAX:
            raise MalformedReplication(f"an epoch that ends at {end}")
        answer = EpochAnswer(leader_epoch, number, _verdict(verdict), epoch, end)
        found.append(((stream, partition), answer))
    return sender, found


def decode_notices(data: bytes | memoryview) -> tuple[str, list[tuple[PartitionKey, Notice]]]:
    sender, entries = _open(data, _NOTICE)
    found = []
    for stream, partition, leader_epoch, high_watermark, flags in _NOTICE.iter_unpack(entries):
        if high_watermark < -1 or flags > _IS_BEGINNING or leader_epoch > _MAX:
            raise MalformedReplication(f"a notice of the high watermark {high_watermark} with flags {flags:#04x}")
        found.append(((stream, partition), Notice(leader_epoch, high_watermark, flags != 0)))
    return sender, found


def decode_answers(data: bytes | memoryview) -> tuple[str, list[tuple[PartitionKey, FetchAnswer, int, int]]]:
    """The sender; for each partition an answer, how many bytes of data it has in all, and the position of those that are here.

    Data is a view of what was given.
    """
    sender, entries = _split_head(data)
    found = []
    end = len(entries)
    at = 0
    while at < end:
        if end - at < ANSWER_BYTES:
            raise MalformedReplication(f"{end - at} bytes where an answer of at least {ANSWER_BYTES} begins")
        fields = _ANSWER.unpack_from(entries, at)
        at += ANSWER_BYTES
        stream, partition, epoch, number, verdict, flags, high_watermark, log_start, log_end, total, position, size = (
            fields
        )
        if high_watermark < -1 or log_start < 0 or log_end < 0 or flags > _WANTS_SYNC or max(epoch, number) > _MAX:
            raise MalformedReplication(f"an answer with offsets {fields[6:9]} and flags {flags:#04x}")
        if size > end - at or position + size > total or total > limits.REPLICATION_ANSWER_BYTES_MAX:
            raise MalformedReplication(f"a piece of {size} bytes at {position} of {total}, of which {end - at} came")
        if not size and total:
            raise MalformedReplication(f"an empty piece of {total} bytes")
        piece = entries[at : at + size] if size else b""
        at += size
        answer = FetchAnswer(epoch, number, _verdict(verdict), high_watermark, log_start, log_end, flags != 0, piece)
        found.append(((stream, partition), answer, total, position))
    return sender, found


def _verdict(value: int) -> Verdict:
    verdict = _VERDICTS.get(value)
    if verdict is None:
        raise MalformedReplication(f"the unknown verdict {value}")
    return verdict


def _open(data: bytes | memoryview, entry: Struct) -> tuple[str, memoryview]:
    sender, entries = _split_head(data)
    if len(entries) % entry.size:
        raise MalformedReplication(f"{len(entries)} bytes are no whole entries of {entry.size}")
    return sender, entries


def _split_head(data: bytes | memoryview) -> tuple[str, memoryview]:
    if len(data) < _HEAD.size:
        raise MalformedReplication(f"{len(data)} bytes are too few")
    version, size = _HEAD.unpack_from(data)
    if version != VERSION:
        raise MalformedReplication(f"version {version} is not {VERSION}, the only one there is")
    view = memoryview(data)
    start = _HEAD.size + size
    if size > _SENDER_BYTES_MAX or len(view) <= start:
        raise MalformedReplication(f"a sender's name of {size} bytes in a message of {len(view)}, or nothing behind it")
    try:
        sender = str(view[_HEAD.size : start], "utf-8")
    except UnicodeDecodeError:
        raise MalformedReplication("a sender's name that is no UTF-8") from None
    if _SENDER.fullmatch(sender) is None:
        raise MalformedReplication(f"{sender!r} is no server's name")
    return sender, view[start:]
