"""The events that a partition's leader steps through, and the effects that it asks for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from bascule.partition.core.follower_events import AdvanceHighWatermark
from bascule.partition.core.messages import EpochAnswer, EpochQuery, Fetch, FetchAnswer, Notice

# ── events ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class LeadershipBegan:
    """The first event. Its effects tell the replicas, and commit what the leader can commit without them."""


@dataclass(frozen=True, slots=True)
class LeaderAppended:
    """The log has grown to `log_end_offset`. `wants_all`: a publisher waits for an ALL ack of these records."""

    log_end_offset: int
    synced_end_offset: int
    wants_all: bool
    now_ns: int


@dataclass(frozen=True, slots=True)
class LeaderSynced:
    """The leader's own log is on disk up to `synced_end_offset`."""

    synced_end_offset: int


@dataclass(frozen=True, slots=True)
class FetchReceived:
    """`log_start_offset` is the leader's own: retention moves it at any time."""

    replica: str
    fetch: Fetch
    log_start_offset: int
    now_ns: int


@dataclass(frozen=True, slots=True)
class BatchesRead:
    """`data` is what the request asked for; None if it cannot be read."""

    request: ReadBatches
    data: bytes | memoryview | None


@dataclass(frozen=True, slots=True)
class EpochQueryReceived:
    """`epoch` is the largest one of the leader's log that is not above the queried one, 0 for none; it ends before `end_offset`."""

    replica: str
    query: EpochQuery
    epoch: int
    end_offset: int
    now_ns: int


@dataclass(frozen=True, slots=True)
class NoticeDue:
    """The delay of a Notify is over."""

    replica: str
    is_beginning: bool


@dataclass(frozen=True, slots=True)
class LeaderReconnected:
    """The connection to the other servers was lost and is back: answers may be lost, so followers have to fetch again."""


@dataclass(frozen=True, slots=True)
class SetChanged:
    """The metadata of the partition has changed; leader and leader epoch are the same."""

    replicas: tuple[str, ...]
    in_sync_replicas: tuple[str, ...]
    partition_epoch: int
    now_ns: int


class ProposalOutcome(Enum):
    DONE = "done"
    REFUSED = "refused"
    """The metadata refused the proposal. It will refuse every earlier attempt that is still in flight too."""
    UNKNOWN = "unknown"
    """The proposal may have been applied, or may still be: it has to be repeated. Also when this attempt was certainly not sent: an
    earlier one may be in flight."""


@dataclass(frozen=True, slots=True)
class ProposalSettled:
    """The controller's answer to a Shrink or Expand."""

    replica: str
    outcome: ProposalOutcome
    now_ns: int


@dataclass(frozen=True, slots=True)
class LeaderTick:
    """`deadline_ns` is reached."""

    now_ns: int


LeaderEvent = (
    LeadershipBegan
    | LeaderAppended
    | LeaderSynced
    | FetchReceived
    | BatchesRead
    | EpochQueryReceived
    | NoticeDue
    | LeaderReconnected
    | SetChanged
    | ProposalSettled
    | LeaderTick
)

# ── effects ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """ALL acks of everything below `end_offset` are due."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class ReadBatches:
    """Read whole batches from `offset` on, none at or above `end_offset`, then report BatchesRead."""

    replica: str
    number: int
    offset: int
    end_offset: int
    wants_sync: bool


@dataclass(frozen=True, slots=True)
class SendTo:
    replica: str
    message: FetchAnswer | EpochAnswer | Notice


@dataclass(frozen=True, slots=True)
class Notify:
    """Report NoticeDue after a short delay: by then an answer may have told the replica the high watermark."""

    replica: str
    is_beginning: bool = False


@dataclass(frozen=True, slots=True)
class Shrink:
    """Ask the controller to remove the replica from the in-sync set."""

    replica: str
    reason: str


@dataclass(frozen=True, slots=True)
class Expand:
    """Ask the controller to add the replica, if the partition has not changed and the replica's server has not restarted."""

    replica: str
    replica_epoch: int
    partition_epoch: int


@dataclass(frozen=True, slots=True)
class StepDown:
    """This log has lost records that an in-sync follower still has: another replica has to lead."""

    reason: str


LeaderEffect = AdvanceHighWatermark | Acknowledge | ReadBatches | SendTo | Notify | Shrink | Expand | StepDown
