"""Encodes and decodes messages between servers, and checks their fields.

    magic u16 (0xBA5F) · version u8 · type u8 · cluster string · sender string · to string · term u64 · fields of the type, in order

A message of another cluster, of an unknown version or type, or with contradictory fields is refused before it reaches the node. There
is no checksum, because NATS runs over TCP; the durable log has its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from bascule import limits
from bascule.errors import CallerError
from bascule.raft.core.model import messages
from bascule.raft.core.model.codec import (
    U8,
    U16,
    U32,
    U64,
    Malformed,
    Reader,
    encode_blob,
    encode_entry,
    encode_membership,
    encode_string,
    read_entry,
    read_membership,
)
from bascule.raft.core.model.effects import Reason
from bascule.raft.core.model.entries import Entry, EntryKind
from bascule.raft.core.model.messages import (
    AppendEntries,
    AppendReply,
    ForwardedProposal,
    Heartbeat,
    ProposalReply,
    RaftMessage,
    ReadReply,
    SnapshotChunk,
    TimeoutNow,
    VoteRequest,
)

MAGIC: Final = 0xBA5F
VERSION: Final = 1


class RefusedMessage(CallerError):
    """The bytes are not a Raft message of this cluster."""


def _read_entries(reader: Reader) -> tuple[Entry, ...]:
    return tuple(read_entry(reader) for _ in range(reader.number(U32)))


def _encode_entries(entries: tuple[Entry, ...]) -> bytes:
    return U32.pack(len(entries)) + b"".join(map(encode_entry, entries))


def _read_number(reader: Reader) -> int:
    value = reader.number(U64)
    if value > limits.RAFT_NUMBER_MAX:
        raise Malformed(f"the number {value} is above {limits.RAFT_NUMBER_MAX}")
    return value


def _read_reason(reader: Reader) -> Reason | None:
    value = reader.number(U8)
    if value > max(Reason):
        raise Malformed(f"unknown reason {value}")
    return Reason(value) if value else None


def _read_kind(reader: Reader) -> EntryKind:
    value = reader.number(U8)
    if value not in (EntryKind.COMMAND, EntryKind.OPEN_SESSION):
        raise Malformed(f"a proposal of kind {value}")
    return EntryKind(value)


_Codec = tuple[Callable[[Any], bytes], Callable[[Reader], Any]]

_NUMBER: Final[_Codec] = (U64.pack, _read_number)
_FLAG: Final[_Codec] = (U8.pack, Reader.flag)
_BLOB: Final[_Codec] = (encode_blob, Reader.blob)
_ENTRIES: Final[_Codec] = (_encode_entries, _read_entries)
_MEMBERSHIP: Final[_Codec] = (encode_membership, read_membership)
_REASON: Final[_Codec] = (lambda reason: U8.pack(reason or 0), _read_reason)
_KIND: Final[_Codec] = (U8.pack, _read_kind)

_TYPES: Final[dict[type[RaftMessage], tuple[int, dict[str, _Codec]]]] = {
    messages.VoteRequest: (
        1,
        {"last_index": _NUMBER, "last_term": _NUMBER, "is_pre_vote": _FLAG, "is_transfer": _FLAG},
    ),
    messages.VoteReply: (2, {"is_granted": _FLAG, "is_pre_vote": _FLAG}),
    messages.TimeoutNow: (3, {}),
    messages.AppendEntries: (
        4,
        {"previous_index": _NUMBER, "previous_term": _NUMBER, "entries": _ENTRIES, "commit_index": _NUMBER},
    ),
    messages.AppendReply: (5, {"is_accepted": _FLAG, "index": _NUMBER, "hint_index": _NUMBER, "hint_term": _NUMBER}),
    messages.Heartbeat: (6, {"commit_index": _NUMBER, "read_round": _NUMBER}),
    messages.HeartbeatReply: (7, {"read_round": _NUMBER}),
    messages.SnapshotChunk: (
        8,
        {
            "index": _NUMBER,
            "snapshot_term": _NUMBER,
            "membership": _MEMBERSHIP,
            "total_bytes": _NUMBER,
            "position": _NUMBER,
            "data": _BLOB,
        },
    ),
    messages.SnapshotReply: (9, {"index": _NUMBER, "snapshot_term": _NUMBER, "received_bytes": _NUMBER}),
    messages.ForwardedProposal: (
        10,
        {"request": _NUMBER, "kind": _KIND, "data": _BLOB, "session": _NUMBER, "sequence": _NUMBER},
    ),
    messages.ProposalReply: (11, {"request": _NUMBER, "index": _NUMBER, "entry_term": _NUMBER, "reason": _REASON}),
    messages.ReadRequest: (12, {"request": _NUMBER}),
    messages.ReadReply: (13, {"request": _NUMBER, "index": _NUMBER, "reason": _REASON}),
}
_BY_NUMBER: Final = {number: (kind, fields) for kind, (number, fields) in _TYPES.items()}


def encode_message(message: RaftMessage, cluster: str) -> bytes:
    number, fields = _TYPES[type(message)]
    pieces = [U16.pack(MAGIC), bytes((VERSION, number))]
    pieces += map(encode_string, (cluster, message.sender, message.to))
    pieces.append(U64.pack(message.term))
    pieces += [encode(getattr(message, name)) for name, (encode, _) in fields.items()]
    return b"".join(pieces)


def decode_message(data: bytes, cluster: str) -> RaftMessage:
    """Return the message. Raises RefusedMessage with the reason."""
    try:
        reader = Reader(data)
        kind, fields = _read_head(reader, cluster)
        sender, to, term = reader.string(), reader.string(), reader.number(U64)
        message = kind(sender, to, term, **{name: read(reader) for name, (_, read) in fields.items()})
        reader.end()
        _check(message)
    except Malformed as error:
        raise RefusedMessage(f"not a Raft message of this cluster: {error}") from None
    return message


def _read_head(reader: Reader, cluster: str) -> tuple[type[RaftMessage], dict[str, _Codec]]:
    if (magic := reader.number(U16)) != MAGIC:
        raise Malformed(f"the magic is {magic:#06x}")
    if (version := reader.number(U8)) != VERSION:
        raise Malformed(f"protocol version {version}, expected {VERSION}")
    if (number := reader.number(U8)) not in _BY_NUMBER:
        raise Malformed(f"unknown type {number}")
    if (other := reader.string()) != cluster:
        raise Malformed(f"it belongs to the cluster `{other}`")
    return _BY_NUMBER[number]


def _check(message: RaftMessage) -> None:
    """Raise Malformed if fields contradict each other."""
    if not message.sender or not message.to:
        raise Malformed("sender or receiver is empty")
    if message.term > limits.RAFT_NUMBER_MAX:
        raise Malformed(f"term {message.term} is above {limits.RAFT_NUMBER_MAX}")
    match message:
        case VoteRequest():
            is_right = message.last_term < message.term and (message.last_index == 0) == (message.last_term == 0)
        case AppendEntries():
            is_right = _continues(message)
        case Heartbeat() | TimeoutNow():
            is_right = message.term > 0
        case SnapshotChunk():
            is_right = _is_chunk(message)
        case AppendReply():
            is_right = message.hint_term <= message.term
        case ProposalReply() | ReadReply():
            is_right = (message.reason is None) == (message.index > 0)
        case ForwardedProposal():
            is_right = (message.session == 0) == (message.sequence == 0)
        case _:
            is_right = True
    if not is_right:
        raise Malformed(f"contradictory fields of {type(message).__name__}")


def _continues(append: AppendEntries) -> bool:
    index, term = append.previous_index, append.previous_term
    if append.term < 1 or (index == 0) != (term == 0):
        return False
    for entry in append.entries:
        if entry.index != index + 1 or entry.term < term:
            return False
        index, term = entry.index, entry.term
    return term <= append.term


def _is_chunk(chunk: SnapshotChunk) -> bool:
    end = chunk.position + len(chunk.data)
    return (
        chunk.index > 0
        and 0 < chunk.snapshot_term <= chunk.term
        and bool(chunk.membership.voters)
        and end <= chunk.total_bytes
        and (bool(chunk.data) or chunk.total_bytes == 0)
    )
