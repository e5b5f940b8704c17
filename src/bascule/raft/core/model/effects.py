"""The effects of a step, which the shell carries out in the order of the fields: persist, then send, then apply."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, unique
from typing import TYPE_CHECKING

from bascule.raft.core.model.entries import Entry, HardState, RaftSnapshot

if TYPE_CHECKING:
    from bascule.raft.core.model.messages import RaftMessage


@unique
class Reason(IntEnum):
    """Why a request was refused. It was not proposed."""

    NO_LEADER = 1
    NOT_LEADER = 2
    TRANSFERRING = 3
    """The leader is transferring its leadership; retry with the next one."""

    TOO_LARGE = 4
    OVERLOADED = 5
    CHANGE_IN_FLIGHT = 6
    TERM_NOT_COMMITTED = 7
    """The leader has not committed an entry of its own term yet; retry."""

    UNKNOWN_SERVER = 8
    ALREADY_DONE = 9
    NOT_CAUGHT_UP = 10
    QUORUM_FULL = 11
    LAST_VOTER = 12
    LEADERSHIP_LOST = 13
    """The leader lost its leadership before it could confirm a read."""

    TRANSFER_ABORTED = 14


@dataclass(frozen=True, slots=True)
class Proposed:
    """The request is entry `index` of `term`. It takes effect when that entry is applied; if `index` gets another term, it is lost."""

    request: int
    index: int
    term: int


@dataclass(frozen=True, slots=True)
class Refused:
    request: int
    reason: Reason
    leader: str | None
    """The leader that this node knows, if any."""


@dataclass(frozen=True, slots=True)
class ReadReady:
    """After the entries of this step are applied, the state includes every change acknowledged before the read was requested."""

    request: int
    index: int


@dataclass(frozen=True, slots=True)
class Effects:
    """Persist the first four fields before sending messages; apply the rest after that. Empty fields need no action."""

    hard_state: HardState | None = None
    snapshot_installed: RaftSnapshot | None = None
    """Replaces the log and the state machine."""

    snapshot_taken: RaftSnapshot | None = None
    """A snapshot of this node; the entries it covers may be deleted."""

    entries: tuple[Entry, ...] = ()
    """The first one replaces all entries of the durable log from its index on."""

    messages: tuple[RaftMessage, ...] = ()

    committed: tuple[Entry, ...] = ()
    """Entries to apply, each index once and in order, after `snapshot_installed`."""

    proposed: tuple[Proposed, ...] = ()
    refused: tuple[Refused, ...] = ()
    reads: tuple[ReadReady, ...] = ()
    handed_over: tuple[int, ...] = ()
    """Requests to transfer leadership after which this node no longer leads."""

    @property
    def is_durable_work(self) -> bool:
        """Whether the step has to be persisted before its messages are sent."""
        return bool(
            self.hard_state is not None
            or self.entries
            or self.snapshot_installed is not None
            or self.snapshot_taken is not None
        )
