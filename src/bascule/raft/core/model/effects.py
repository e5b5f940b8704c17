"""What a step asks the shell to do, in the order of the fields: persist, then send, then apply."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, unique
from typing import TYPE_CHECKING

from bascule.raft.core.model.entries import Entry, HardState, RaftSnapshot

if TYPE_CHECKING:
    from bascule.raft.core.model.messages import RaftMessage


@unique
class Reason(IntEnum):
    """Why a request was refused. Nothing was proposed, unless it says otherwise."""

    NO_LEADER = 1
    NOT_LEADER = 2
    TRANSFERRING = 3
    """The leader is handing over; ask again, it will be another one."""

    TOO_LARGE = 4
    OVERLOADED = 5
    CHANGE_IN_FLIGHT = 6
    TERM_NOT_COMMITTED = 7
    """The leader is so new that it has not committed an entry of its own; ask again."""

    UNKNOWN_SERVER = 8
    ALREADY_DONE = 9
    NOT_CAUGHT_UP = 10
    QUORUM_FULL = 11
    LAST_VOTER = 12
    LEADERSHIP_LOST = 13
    """A read that could not be confirmed any more."""

    TRANSFER_ABORTED = 14


@dataclass(frozen=True, slots=True)
class Proposed:
    """The request is entry `index` of `term`. It has taken effect when that entry is applied, and not when one of another term is."""

    request: int
    index: int
    term: int


@dataclass(frozen=True, slots=True)
class Refused:
    request: int
    reason: Reason
    leader: str | None
    """Whom to ask instead, as far as this node knows."""


@dataclass(frozen=True, slots=True)
class ReadReady:
    """Once the entries of this step are applied, the state is as new as anything acknowledged before the read was asked for."""

    request: int
    index: int


@dataclass(frozen=True, slots=True)
class Effects:
    """Persist the first four, durably, before the messages leave; apply what follows after that. Empty fields ask for nothing."""

    hard_state: HardState | None = None
    snapshot_installed: RaftSnapshot | None = None
    """Replaces log and state machine."""

    snapshot_taken: RaftSnapshot | None = None
    """Our own; entries it covers may be dropped, the others stay."""

    entries: tuple[Entry, ...] = ()
    """The first one replaces what the durable log holds at its index and behind."""

    messages: tuple[RaftMessage, ...] = ()

    committed: tuple[Entry, ...] = ()
    """To apply, each index once and in order; behind `snapshot_installed`, when there is one."""

    proposed: tuple[Proposed, ...] = ()
    refused: tuple[Refused, ...] = ()
    reads: tuple[ReadReady, ...] = ()
    handed_over: tuple[int, ...] = ()
    """Requests to transfer leadership after which this node no longer leads."""

    @property
    def is_durable_work(self) -> bool:
        """Whether anything has to be persisted before the messages may leave."""
        return bool(
            self.hard_state is not None
            or self.entries
            or self.snapshot_installed is not None
            or self.snapshot_taken is not None
        )
