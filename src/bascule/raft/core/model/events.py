"""The inputs of a node. A `request` is a number chosen by the shell, which the answer repeats.

A request number is never reused, even after a restart, because a late answer could be taken for that of a new request.
"""

from __future__ import annotations

from dataclasses import dataclass

from bascule.raft.core.model.entries import EntryKind
from bascule.raft.core.model.membership import MembershipChange
from bascule.raft.core.model.messages import RaftMessage


@dataclass(frozen=True, slots=True)
class RaftTick:
    """One unit of time has passed."""


@dataclass(frozen=True, slots=True)
class Receive:
    message: RaftMessage


@dataclass(frozen=True, slots=True)
class Propose:
    """A command for the state machine, on any member: a follower forwards it to the leader."""

    request: int
    data: bytes
    session: int = 0
    sequence: int = 0
    kind: EntryKind = EntryKind.COMMAND


@dataclass(frozen=True, slots=True)
class ReadIndex:
    """Requests an index from which a read is linearizable, on any member."""

    request: int


@dataclass(frozen=True, slots=True)
class ChangeMembership:
    """Leader only."""

    request: int
    change: MembershipChange


@dataclass(frozen=True, slots=True)
class TransferLeadership:
    """Leader only."""

    request: int
    target: str


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """A snapshot of the state machine after the applied entry `index`; the entries before it are no longer needed."""

    index: int
    data: bytes


Event = RaftTick | Receive | Propose | ReadIndex | ChangeMembership | TransferLeadership | TakeSnapshot
