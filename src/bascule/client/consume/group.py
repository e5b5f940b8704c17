"""The decisions of a member of a consumer group, without clock or connection.

heartbeat answered          take the assignments, send the next one after 0.4 × the consumer timeout
FAILED_PRECONDITION         coordinator or epoch have changed: read the group's metadata; if they have not, join again
NOT_FOUND                   the group does not exist any more: join again
no answer                   read the metadata; after the coordinator timeout report the coordinator
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from bascule.client.connection.metadata import GroupInfo
from bascule.net.grpc.status import Status

HEARTBEAT_SHARE: Final = 0.4
CURSOR_PREFIX: Final = "__group:"
HOLD_PREFIX: Final = "__hold:"

Place = tuple[str, int]
"""A stream and a partition."""


class Next(Enum):
    """The next step of a member."""

    HEARTBEAT = "ask for the assignments"
    REFRESH = "read the group's metadata"
    REPORT = "report the coordinator, then read the metadata"
    JOIN = "join the group"


@dataclass(slots=True)
class Membership:
    """What a member knows of its coordinator. Times are seconds on a monotonic clock."""

    coordinator: str = ""
    epoch: int = 0
    heartbeat_seconds: float = 1.0
    coordinator_timeout: float = 15.0
    answered_at: float = 0.0
    reported: bool = False
    _refused_with: tuple[str, int] | None = field(default=None)

    def joined(
        self, coordinator: str, epoch: int, consumer_timeout_ns: int, coordinator_timeout_ns: int, now: float
    ) -> Next:
        self.coordinator, self.epoch = coordinator, epoch
        self.heartbeat_seconds = max(0.01, HEARTBEAT_SHARE * consumer_timeout_ns / 1e9)
        self.coordinator_timeout = coordinator_timeout_ns / 1e9
        self.answered_at = now
        self.reported = False
        self._refused_with = None
        return Next.HEARTBEAT

    def answered(self, epoch: int, now: float) -> float:
        """The coordinator has answered; seconds until the next heartbeat."""
        self.epoch = epoch
        self.answered_at = now
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
                # Refused although coordinator and epoch match the metadata: the group has removed us.
                return Next.JOIN
            self._refused_with = known
            return Next.REFRESH
        if now - self.answered_at > self.coordinator_timeout and not self.reported:
            self.reported = True
            return Next.REPORT
        return Next.REFRESH

    def refreshed(self, group: GroupInfo | None, now: float) -> Next:
        """The metadata has been read; None when there is no such group."""
        if group is None:
            return Next.JOIN
        if group.coordinator != self.coordinator:
            self.reported = False
            self.answered_at = now  # the new coordinator has the whole timeout
        self.coordinator, self.epoch = group.coordinator, group.epoch
        return Next.HEARTBEAT


@dataclass(frozen=True, slots=True)
class Change:
    """The difference between two assignments."""

    revoked: frozenset[Place]
    assigned: frozenset[Place]

    @classmethod
    def between(cls, held: frozenset[Place], wanted: frozenset[Place]) -> Change:
        return cls(held - wanted, wanted - held)


@dataclass(slots=True)
class PartitionProgress:
    """The progress in a partition. A message is processed once the application requests the next one."""

    handed_out: int | None = None
    done: int | None = None
    checkpointed: int | None = None

    def hand_out(self, offset: int) -> None:
        self.handed_out = offset

    def came_back(self) -> None:
        self.done = self.handed_out

    def moved(self) -> None:
        """The application has gone to a position that is not known yet."""
        self.handed_out = self.done = None

    def came_to(self, offset: int) -> None:
        """The application reads on after this offset."""
        self.handed_out = self.done = offset

    @property
    def is_busy(self) -> bool:
        return self.handed_out != self.done

    @property
    def to_checkpoint(self) -> int | None:
        """An offset that has to be written, or None."""
        return None if self.done == self.checkpointed else self.done
