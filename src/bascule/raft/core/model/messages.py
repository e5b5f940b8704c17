"""The messages between servers. docs/internals/raft.md has the table; message_codec.py has the bytes.

Fields are valid: `message_codec.decode_message` checks every message that is received.
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
    """`term` is the term of the election; for a pre-vote it is the next term, which the candidate has not entered yet."""

    last_index: int
    last_term: int
    is_pre_vote: bool = False
    is_transfer: bool = False
    """The leader requested this election, so voters need not wait for its timeout."""


@dataclass(frozen=True, slots=True)
class VoteReply(RaftMessage):
    is_granted: bool
    is_pre_vote: bool = False


@dataclass(frozen=True, slots=True)
class TimeoutNow(RaftMessage):
    """A leader that transfers its leadership tells the receiver to start an election at once."""


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
    """Accepted: the logs are equal up to this index. Rejected: the `previous_index` of the append."""

    hint_index: int = 0
    hint_term: int = 0
    """Rejected: the follower's last entry that may equal one of the leader."""


@dataclass(frozen=True, slots=True)
class Heartbeat(RaftMessage):
    commit_index: int
    """At most the last index that the follower is known to hold."""

    read_round: int
    """A server that answers had seen no newer leader when this round began, see reads.py."""


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
    """Bytes that the follower holds, which is the position of the next chunk."""


# ── requests of a follower's clients ─────────────────────────────────────────────────────────────
# Their term is for traces only; the receiver does not compare it with its own.


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
