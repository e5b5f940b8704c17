"""What can happen to a node. A `request` is a number of the shell's choice that comes back with the answer.

A request number is never used again, not even after a restart: a late answer to the old request would pass for one to the new.
"""

from __future__ import annotations

from dataclasses import dataclass

from bascule.raft.core.model.entries import EntryKind
from bascule.raft.core.model.membership import MembershipChange
from bascule.raft.core.model.messages import RaftMessage


@dataclass(frozen=True, slots=True)
class RaftTick:
    """Time has passed, by one unit."""


@dataclass(frozen=True, slots=True)
class Receive:
    message: RaftMessage


@dataclass(frozen=True, slots=True)
class Propose:
    """A command for the state machine, on any member: a follower passes it on to the leader it knows."""

    request: int
    data: bytes
    session: int = 0
    sequence: int = 0
    kind: EntryKind = EntryKind.COMMAND


@dataclass(frozen=True, slots=True)
class ReadIndex:
    """Ask for a point from which a read is linearizable, on any member."""

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
    """The state machine after `index`, which has been applied: the log before it is no longer needed."""

    index: int
    data: bytes


Event = RaftTick | Receive | Propose | ReadIndex | ChangeMembership | TransferLeadership | TakeSnapshot
