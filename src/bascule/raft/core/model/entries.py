"""The durable values: entries, the hard state, snapshots."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, unique
from typing import Final

from bascule.raft.core.model.membership import RaftMembership

ENTRY_OVERHEAD_BYTES: Final = 37
"""Bytes of an entry besides its data, in a message and on disk."""


@unique
class EntryKind(IntEnum):
    NOOP = 0
    """The first entry of every leader: committing it commits all entries before it."""

    COMMAND = 1
    MEMBERSHIP = 2
    """Data is the whole new membership, so that any suffix of a log contains it."""

    OPEN_SESSION = 3
    """Opens the session that is named by this entry's index, see sessions.py."""


@dataclass(frozen=True, slots=True)
class Entry:
    index: int
    term: int
    kind: EntryKind
    data: bytes = b""
    session: int = 0
    """Index of the entry that opened the proposer's session; 0 for a proposal that may be applied twice."""

    sequence: int = 0

    @property
    def size_bytes(self) -> int:
        return ENTRY_OVERHEAD_BYTES + len(self.data)


@dataclass(frozen=True, slots=True)
class HardState:
    """The state that must be durable before a server votes; otherwise it could vote twice in a term."""

    term: int = 0
    vote: str | None = None


@dataclass(frozen=True, slots=True)
class RaftSnapshot:
    """The state machine and the membership after `index`."""

    index: int
    term: int
    membership: RaftMembership
    data: bytes = b""
