"""The bytes of entries and memberships in messages and in the durable log. Little-endian; all input is checked.

string      length u16 · utf-8
blob        length u32 · bytes
membership  count u16 · string … (voters, sorted)  ·  count u16 · string … (learners, sorted)
entry       index u64 · term u64 · kind u8 · session u64 · sequence u64 · blob
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from bascule import limits
from bascule.raft.core.model.entries import ENTRY_OVERHEAD_BYTES, Entry, EntryKind
from bascule.raft.core.model.membership import RaftMembership

U8: Final = Struct("<B")
U16: Final = Struct("<H")
U32: Final = Struct("<I")
U64: Final = Struct("<Q")
_ENTRY: Final = Struct("<QQBQQI")
_KINDS: Final = {int(kind): kind for kind in EntryKind}

assert _ENTRY.size == ENTRY_OVERHEAD_BYTES


class Malformed(ValueError):
    """The bytes are malformed. The caller, which knows their source, turns it into an error."""


class Reader:
    """Reads values one after another, and checks that they do not exceed the bytes."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def number(self, form: Struct) -> int:
        end = self._position + form.size
        if end > len(self._data):
            raise Malformed(f"{end - len(self._data)} bytes are missing at the end")
        value: int = form.unpack_from(self._data, self._position)[0]
        self._position = end
        return value

    def take(self, size: int) -> bytes:
        end = self._position + size
        if end > len(self._data):
            raise Malformed(f"{end - len(self._data)} bytes are missing at the end")
        piece = self._data[self._position : end]
        self._position = end
        return piece

    def blob(self) -> bytes:
        return self.take(self.number(U32))

    def string(self) -> str:
        size = self.number(U16)
        if size > 4 * limits.NAME_CHARACTERS_MAX:
            raise Malformed(f"a name of {size} bytes")
        try:
            return str(self.take(size), "utf-8")
        except UnicodeDecodeError:
            raise Malformed("a name that is not UTF-8") from None

    def flag(self) -> bool:
        value = self.number(U8)
        if value > 1:
            raise Malformed(f"{value} is not a flag")
        return value == 1

    @property
    def is_at_end(self) -> bool:
        return self._position == len(self._data)

    def end(self) -> None:
        if not self.is_at_end:
            raise Malformed(f"{len(self._data) - self._position} bytes too many")


def encode_string(text: str) -> bytes:
    data = text.encode()
    return U16.pack(len(data)) + data


def encode_blob(data: bytes) -> bytes:
    return U32.pack(len(data)) + data


# ── memberships ──────────────────────────────────────────────────────────────────────────────────


def encode_membership(membership: RaftMembership) -> bytes:
    pieces = []
    for servers in (membership.voters, membership.learners):
        pieces.append(U16.pack(len(servers)))
        pieces += [encode_string(server) for server in sorted(servers)]
    return b"".join(pieces)


def decode_membership(data: bytes) -> RaftMembership:
    reader = Reader(data)
    membership = read_membership(reader)
    reader.end()
    return membership


def read_membership(reader: Reader) -> RaftMembership:
    voters, learners = _read_servers(reader), _read_servers(reader)
    if voters & learners:
        raise Malformed("a server is both a voter and a learner")
    return RaftMembership(voters, learners)


def _read_servers(reader: Reader) -> frozenset[str]:
    count = reader.number(U16)
    if count > limits.RAFT_MEMBERS_MAX:
        raise Malformed(f"{count} members")
    servers = [reader.string() for _ in range(count)]
    if servers != sorted(set(servers)) or "" in servers:
        raise Malformed("members that are not sorted, or without a name")
    return frozenset(servers)


# ── entries ──────────────────────────────────────────────────────────────────────────────────────


def encode_entry(entry: Entry) -> bytes:
    data = entry.data
    return _ENTRY.pack(entry.index, entry.term, entry.kind, entry.session, entry.sequence, len(data)) + data


def read_entry(reader: Reader) -> Entry:
    index, term, kind, session, sequence, size = _ENTRY.unpack(reader.take(_ENTRY.size))
    if kind not in _KINDS:
        raise Malformed(f"unknown kind of entry {kind}")
    entry = Entry(index, term, _KINDS[kind], reader.take(size), session, sequence)
    if not (1 <= index <= limits.RAFT_NUMBER_MAX and 1 <= term <= limits.RAFT_NUMBER_MAX):
        raise Malformed(f"an entry with index {index} and term {term}")
    if entry.kind is EntryKind.MEMBERSHIP and not decode_membership(entry.data).voters:
        raise Malformed("a membership without voters")
    return entry
