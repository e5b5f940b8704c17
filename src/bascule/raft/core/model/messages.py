"""What servers say to each other. docs/internals/raft.md has the table; message_codec.py has the bytes.

Fields are well formed by construction: whatever comes from outside passes `message_codec.decode_message`, which checks them.
"""

from __future__ import annotations

from dataclasses import dataclass

from bascule.raft.core.model.effects import Reason
from bascule.raft.core.model.entries import Entry, EntryKind
from bascule.raft.core.model.membership import RaftMembership


@dataclass(frozen=True, slots=True)
class RaftMessage:
    sender: str
    to: str
    term: int


# ── elections ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class VoteRequest(RaftMessage):
    """`term` is the term campaigned for; of a pre-vote it is one that nobody has entered yet."""

    last_index: int
    last_term: int
    is_pre_vote: bool = False
    is_transfer: bool = False
    """The leader itself asked for this election: no reason to protect it."""


@dataclass(frozen=True, slots=True)
class VoteReply(RaftMessage):
    is_granted: bool
    is_pre_vote: bool = False


@dataclass(frozen=True, slots=True)
class TimeoutNow(RaftMessage):
    """From a leader that hands over: campaign at once."""


# ── replication ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class AppendEntries(RaftMessage):
    previous_index: int
    previous_term: int
    entries: tuple[Entry, ...]
    commit_index: int


@dataclass(frozen=True, slots=True)
class AppendReply(RaftMessage):
    is_accepted: bool
    index: int
    """Accepted: up to here the logs are equal. Rejected: the `previous_index` that did not fit."""

    hint_index: int = 0
    hint_term: int = 0
    """Rejected: the follower's last entry that may fit."""


@dataclass(frozen=True, slots=True)
class Heartbeat(RaftMessage):
    commit_index: int
    """Never beyond what the follower is known to hold."""

    read_round: int
    """Whoever answers has seen no newer leader when this round began, see reads.py."""


@dataclass(frozen=True, slots=True)
class HeartbeatReply(RaftMessage):
    read_round: int


# ── snapshots ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class SnapshotChunk(RaftMessage):
    index: int
    snapshot_term: int
    membership: RaftMembership
    total_bytes: int
    position: int
    data: bytes


@dataclass(frozen=True, slots=True)
class SnapshotReply(RaftMessage):
    index: int
    snapshot_term: int
    received_bytes: int
    """How much the follower holds, which is the position it wants next."""


# ── requests of a follower's clients ─────────────────────────────────────────────────────────────
# They carry a term for the reader of a trace only: a request changes nobody's term.


@dataclass(frozen=True, slots=True)
class ForwardedProposal(RaftMessage):
    request: int
    kind: EntryKind
    data: bytes
    session: int
    sequence: int


@dataclass(frozen=True, slots=True)
class ProposalReply(RaftMessage):
    request: int
    index: int
    entry_term: int
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class ReadRequest(RaftMessage):
    request: int


@dataclass(frozen=True, slots=True)
class ReadReply(RaftMessage):
    request: int
    index: int
    reason: Reason | None = None
