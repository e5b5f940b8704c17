"""What the leader and the followers of a partition say to each other. Followers ask, the leader answers.

Every message names the leader epoch it was said in: whoever lives in another one does not act on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Verdict(IntEnum):
    """How a leader answers."""

    OK = 0
    NOT_LEADER = 1
    """The server does not lead the partition, or has not started to."""
    OLD_EPOCH = 2
    """The asker has not heard of the present leader epoch yet."""
    NEW_EPOCH = 3
    """The asker knows of a leader epoch that the answering server has not heard of."""
    NO_REPLICA = 4
    """The asker is no replica of the partition, as far as the leader knows."""
    BELOW_START = 5
    """What comes next was deleted: go on at `log_start_offset`."""
    BEYOND_END = 6
    """The asker has more than the leader ever had in this epoch."""
    UNREADABLE = 7
    """The leader could not read its log just now."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """A follower has everything below `log_end_offset` and asks for what comes there."""

    leader_epoch: int
    number: int
    """Of this request among the follower's; the answer repeats it."""
    log_end_offset: int
    synced_end_offset: int
    """Everything below survives a power failure."""
    replica_epoch: int
    """Rises when the follower may have lost something: started anew after a crash, rebuilt, moved away and back."""
    is_fetch: bool = True
    """False: a word on progress that wants no answer and leaves an outstanding fetch alone."""
    is_urgent: bool = False
    """The follower has not heard of the leader for long: answer at once, whatever there is to say."""


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    leader_epoch: int
    number: int
    verdict: Verdict
    high_watermark: int = -1
    log_start_offset: int = 0
    log_end_offset: int = 0
    """Of the leader, when it answered."""
    wants_sync: bool = False
    """Somebody waits for this to be on the follower's disk: sync at once and say so."""
    data: bytes | memoryview = b""
    """Whole batches from the asked offset on; empty: nothing new."""


@dataclass(frozen=True, slots=True)
class EpochQuery:
    """Where does this epoch end in the leader's log?"""

    leader_epoch: int
    number: int
    epoch: int


@dataclass(frozen=True, slots=True)
class EpochAnswer:
    """`epoch` is the largest one the leader knows that is not above the asked one, 0 for none; it ends before `end_offset`."""

    leader_epoch: int
    number: int
    verdict: Verdict
    epoch: int = 0
    end_offset: int = 0


@dataclass(frozen=True, slots=True)
class Notice:
    """Unasked: the leader is there, and this is committed."""

    leader_epoch: int
    high_watermark: int
    is_beginning: bool = False
    """The leader has just begun: what it was asked before is lost, ask again."""


Message = Fetch | FetchAnswer | EpochQuery | EpochAnswer | Notice
