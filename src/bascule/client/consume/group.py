"""What a member of a consumer group decides, without a clock or a connection of its own.

heartbeat answered          take the assignments, ask again after 0.4 × the consumer timeout
FAILED_PRECONDITION         coordinator or epoch have changed: read the group's metadata; if it has not, we were put out:
join again NOT_FOUND                   the group is gone: join again
no answer                   read the metadata; once silent for longer than the coordinator timeout, report the coordinator
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from bascule.client.connection.metadata import GroupInfo
from bascule.net.grpc.status import Status

HEARTBEAT_SHARE: Final = 0.4
RETRY_SECONDS: Final = 0.25
CURSOR_PREFIX: Final = "__group:"
HOLD_PREFIX: Final = "__hold:"

Place = tuple[str, int]
"""A stream and a partition."""


class Next(Enum):
    """What to do now."""

    HEARTBEAT = "ask for the assignments"
    REFRESH = "read the group's metadata"
    REPORT = "report the coordinator, then read the metadata"
    JOIN = "join the group"


@dataclass(slots=True)
class Membership:
    """Where we stand with the coordinator. Times are seconds on any clock that goes forward."""

    coordinator: str = ""
    epoch: int = 0
    heartbeat_seconds: float = 1.0
    coordinator_timeout: float = 15.0
    last_heard: float = 0.0
    reported: bool = False
    _refused_with: tuple[str, int] | None = field(default=None)

    def joined(
        self, coordinator: str, epoch: int, consumer_timeout_ns: int, coordinator_timeout_ns: int, now: float
    ) -> Next:
        self.coordinator, self.epoch = coordinator, epoch
        self.heartbeat_seconds = max(0.01, HEARTBEAT_SHARE * consumer_timeout_ns / 1e9)
        self.coordinator_timeout = coordinator_timeout_ns / 1e9
        self.last_heard = now
        self.reported = False
        self._refused_with = None
        return Next.HEARTBEAT

    def heard(self, epoch: int, now: float) -> float:
        """The coordinator has answered; seconds until the next heartbeat."""
        self.epoch = epoch
        self.last_heard = now
        self.reported = False
        self._refused_with = None
        return self.heartbeat_seconds

    def failed(self, status: int, now: float) -> Next:
        """A heartbeat was not answered, or refused."""
        if status == Status.NOT_FOUND:
            return Next.JOIN
        if status == Status.FAILED_PRECONDITION:
            known = (self.coordinator, self.epoch)
            if self._refused_with == known:
                # Refused, although the coordinator and the epoch are those of the metadata: we are no member.
                return Next.JOIN
            self._refused_with = known
            return Next.REFRESH
        if now - self.last_heard > self.coordinator_timeout and not self.reported:
            self.reported = True
            return Next.REPORT
        return Next.REFRESH

    def refreshed(self, group: GroupInfo | None, now: float) -> Next:
        """The metadata has been read; None when there is no such group."""
        if group is None:
            return Next.JOIN
        if group.coordinator != self.coordinator:
            self.reported = False
            self.last_heard = now  # a new one gets its own time
        self.coordinator, self.epoch = group.coordinator, group.epoch
        return Next.HEARTBEAT


@dataclass(frozen=True, slots=True)
class Change:
    """From one assignment to the next. What stays is not touched."""

    revoked: frozenset[Place]
    assigned: frozenset[Place]

    @classmethod
    def between(cls, held: frozenset[Place], wanted: frozenset[Place]) -> Change:
        return cls(held - wanted, wanted - held)


@dataclass(slots=True)
class Progress:
    """How far a partition has been dealt with. An offset is dealt with once whoever got it has come back for more."""

    handed_out: int | None = None
    done: int | None = None
    checkpointed: int | None = None

    def hand_out(self, offset: int) -> None:
        self.handed_out = offset

    def came_back(self) -> None:
        self.done = self.handed_out

    @property
    def is_busy(self) -> bool:
        return self.handed_out != self.done

    @property
    def to_checkpoint(self) -> int | None:
        """An offset that has to be written, or None."""
        return None if self.done == self.checkpointed else self.done
