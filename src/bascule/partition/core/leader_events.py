"""What a partition's leader is told, and what it wants done."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from bascule.partition.core.messages import EpochQuery, Fetch, FetchAnswer

# ── events ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Appended:
    """The log has grown. `wants_all`: somebody waits for an ALL ack of what came."""

    wants_all: bool
    now_ns: int


@dataclass(frozen=True, slots=True)
class Synced:
    """More of the leader's own log has reached the disk."""

    now_ns: int


@dataclass(frozen=True, slots=True)
class FetchReceived:
    replica: str
    fetch: Fetch
    now_ns: int


@dataclass(frozen=True, slots=True)
class EpochQueryReceived:
    replica: str
    query: EpochQuery
    now_ns: int


@dataclass(frozen=True, slots=True)
class SetChanged:
    """The metadata says something new of the partition; leader and leader epoch are the same."""

    replicas: tuple[str, ...]
    in_sync_replicas: tuple[str, ...]
    partition_epoch: int
    now_ns: int


class Outcome(Enum):
    DONE = "done"
    REFUSED = "refused"
    """The metadata itself refused it. Then it refuses every earlier attempt that is still under way too."""
    UNKNOWN = "unknown"
    """It may have been done, or still be: it has to be asked again. Also when this attempt was surely not sent: an earlier one may be
    under way."""


@dataclass(frozen=True, slots=True)
class ProposalSettled:
    """The controller's answer to a Shrink or Expand."""

    replica: str
    outcome: Outcome
    now_ns: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has come to `deadline_ns`."""

    now_ns: int


LeaderEvent = Appended | Synced | FetchReceived | EpochQueryReceived | SetChanged | ProposalSettled | Tick

# ── effects ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Commit:
    """Advance the log's high watermark; readers may see it."""

    high_watermark: int


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """ALL acks of everything below are due."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class SendBatches:
    """Read whole batches from `offset` on and send them as the answer to fetch `number`: Leader.answer makes it."""

    replica: str
    number: int
    offset: int
    wants_sync: bool


@dataclass(frozen=True, slots=True)
class SendAnswer:
    replica: str
    answer: FetchAnswer


@dataclass(frozen=True, slots=True)
class AnswerEpoch:
    """Look the epoch up in the log and answer; Leader.epoch_answer makes it."""

    replica: str
    query: EpochQuery


@dataclass(frozen=True, slots=True)
class Notify:
    """Let the replica know the high watermark soon, unless an answer tells it before: Leader.notice makes it, or says no."""

    replica: str


@dataclass(frozen=True, slots=True)
class Shrink:
    """Ask the controller to take the replica out of the in-sync set."""

    replica: str
    reason: str


@dataclass(frozen=True, slots=True)
class Expand:
    """Ask the controller to put it in; only if the partition is as it was, and the server has not been started anew."""

    replica: str
    replica_epoch: int
    partition_epoch: int


@dataclass(frozen=True, slots=True)
class StepDown:
    """This log has lost what an in-sync follower still has: somebody else has to lead."""

    reason: str


LeaderEffect = Commit | Acknowledge | SendBatches | SendAnswer | AnswerEpoch | Notify | Shrink | Expand | StepDown
