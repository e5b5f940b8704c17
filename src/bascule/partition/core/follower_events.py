"""What a partition's follower is told, and what it wants done."""

from __future__ import annotations

from dataclasses import dataclass

from bascule.partition.core.messages import EpochAnswer, EpochQuery, Fetch, FetchAnswer, Notice

# ── events ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Begin:
    """Take up the role."""

    now_ns: int


@dataclass(frozen=True, slots=True)
class AnswerReceived:
    answer: FetchAnswer
    now_ns: int


@dataclass(frozen=True, slots=True)
class EpochAnswerReceived:
    answer: EpochAnswer
    now_ns: int


@dataclass(frozen=True, slots=True)
class NoticeReceived:
    notice: Notice
    now_ns: int


@dataclass(frozen=True, slots=True)
class Written:
    """The Append, Truncate or Reset that was asked for is done."""

    now_ns: int


@dataclass(frozen=True, slots=True)
class WriteFailed:
    """It was not, or not all of it. `is_damaged`: the log itself is at fault, not the disk's free space or what was sent."""

    reason: str
    is_damaged: bool
    now_ns: int


@dataclass(frozen=True, slots=True)
class DiskSynced:
    """What was asked to be synced is, or more."""

    now_ns: int


@dataclass(frozen=True, slots=True)
class Reconnected:
    """The line to the other servers was cut and is there again: what was asked may never have arrived."""

    now_ns: int


@dataclass(frozen=True, slots=True)
class FollowerTick:
    """Time has come to `deadline_ns`."""

    now_ns: int


FollowerEvent = (
    Begin
    | AnswerReceived
    | EpochAnswerReceived
    | NoticeReceived
    | Written
    | WriteFailed
    | DiskSynced
    | Reconnected
    | FollowerTick
)

# ── effects ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Send:
    """To the leader."""

    message: Fetch | EpochQuery


@dataclass(frozen=True, slots=True)
class Append:
    """Append the leader's batches, then say Written or WriteFailed. Until then nothing else is asked for."""

    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the log at `offset`, then say Written or WriteFailed."""

    offset: int
    allow_committed: bool


@dataclass(frozen=True, slots=True)
class Reset:
    """Delete everything and go on at `offset`, then say Written or WriteFailed."""

    offset: int


@dataclass(frozen=True, slots=True)
class AdvanceHighWatermark:
    high_watermark: int


@dataclass(frozen=True, slots=True)
class RequestSync:
    """Have what is written forced to the disk, then say DiskSynced."""


@dataclass(frozen=True, slots=True)
class ReportLeader:
    """Tell the controller that the leader is silent."""


@dataclass(frozen=True, slots=True)
class Rebuild:
    """This replica cannot be used as it is: leave the in-sync set, set the log aside, begin anew from the leader's."""

    reason: str


@dataclass(frozen=True, slots=True)
class Diverged:
    """The leader does not have what this replica knows to be committed. Nothing is deleted; somebody has to look."""

    reason: str


FollowerEffect = (
    Send | Append | Truncate | Reset | AdvanceHighWatermark | RequestSync | ReportLeader | Rebuild | Diverged
)
