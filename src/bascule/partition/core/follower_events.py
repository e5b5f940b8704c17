"""The events that a partition's follower steps through, and the effects that it asks for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from bascule.partition.core.log_ends import LogEnds
from bascule.partition.core.messages import EpochAnswer, EpochQuery, Fetch, FetchAnswer, Notice

# ── events ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class FollowingBegan:
    """The first event."""

    ends: LogEnds
    now_ns: int


@dataclass(frozen=True, slots=True)
class AnswerReceived:
    answer: FetchAnswer
    now_ns: int


@dataclass(frozen=True, slots=True)
class EpochAnswerReceived:
    """`own_end_offset` is where the epoch of the answer ends in the follower's log."""

    answer: EpochAnswer
    own_end_offset: int
    now_ns: int


@dataclass(frozen=True, slots=True)
class NoticeReceived:
    notice: Notice
    now_ns: int


@dataclass(frozen=True, slots=True)
class FollowerWrote:
    """The Append, Truncate or Reset is done."""

    ends: LogEnds
    now_ns: int


@dataclass(frozen=True, slots=True)
class FollowerWriteFailed:
    """The Append, Truncate or Reset is not done, or only a part of it. `is_damaged`: the log itself is at fault, not the disk's free
    space or the leader's data."""

    reason: str
    is_damaged: bool
    ends: LogEnds
    now_ns: int


@dataclass(frozen=True, slots=True)
class FollowerSynced:
    """The log is on disk up to `synced_end_offset`."""

    synced_end_offset: int


@dataclass(frozen=True, slots=True)
class FollowerReconnected:
    """The connection to the other servers was lost and is back: the last request may be lost."""

    now_ns: int


@dataclass(frozen=True, slots=True)
class FollowerTick:
    """`deadline_ns` is reached."""

    now_ns: int


FollowerEvent = (
    FollowingBegan
    | AnswerReceived
    | EpochAnswerReceived
    | NoticeReceived
    | FollowerWrote
    | FollowerWriteFailed
    | FollowerSynced
    | FollowerReconnected
    | FollowerTick
)

# ── effects ──────────────────────────────────────────────────────────────────────────────────────


class Flaw(Enum):
    """Why a log cannot be used."""

    DAMAGED = "damaged"
    """The disk failed, or bytes cannot be read. The log is moved aside."""
    DIVERGED = "diverged"
    """The leader lacks records that this replica knows to be committed. The log is moved aside: it may be the last copy of them."""
    OUTDATED = "outdated"
    """The leader has none of the records any more: retention deleted them there, or a declared loss took them. The log is deleted."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request to the leader."""

    message: Fetch | EpochQuery


@dataclass(frozen=True, slots=True)
class Append:
    """Append the leader's batches, then report FollowerWrote or FollowerWriteFailed. No other write is asked for until then."""

    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class Truncate:
    """Truncate the log to `offset`, then report FollowerWrote or FollowerWriteFailed."""

    offset: int
    allow_committed: bool


@dataclass(frozen=True, slots=True)
class Reset:
    """Continue the empty log at `offset`, which is not below its end, then report FollowerWrote or FollowerWriteFailed."""

    offset: int


@dataclass(frozen=True, slots=True)
class AdvanceHighWatermark:
    """Readers may see the log up to `high_watermark`. Leaders ask for this too."""

    high_watermark: int


@dataclass(frozen=True, slots=True)
class RequestSync:
    """Sync what is written, then report FollowerSynced."""


@dataclass(frozen=True, slots=True)
class ReportLeader:
    """Report to the controller that the leader is silent."""


@dataclass(frozen=True, slots=True)
class Rebuild:
    """This log cannot be used: leave the in-sync set, remove the log, copy the leader's from its start."""

    reason: str
    flaw: Flaw


FollowerEffect = Send | Append | Truncate | Reset | AdvanceHighWatermark | RequestSync | ReportLeader | Rebuild
