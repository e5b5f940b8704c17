"""The messages between the leader and the followers of a partition. Followers ask, the leader answers.

Every message names the sender's leader epoch: a receiver in another epoch does not act on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Verdict(IntEnum):
    """The leader's answer to a request."""

    OK = 0
    NOT_LEADER = 1
    """The server does not lead the partition, or has not started to."""
    OLD_EPOCH = 2
    """The follower does not know the present leader epoch yet."""
    NEW_EPOCH = 3
    """The follower knows a leader epoch that the answering server does not know yet."""
    NO_REPLICA = 4
    """The sender is no replica of the partition, as far as the leader knows."""
    BELOW_START = 5
    """Retention has deleted the fetched offset: continue at `log_start_offset`."""
    BEYOND_END = 6
    """The follower has more than the leader ever had in this epoch."""
    UNREADABLE = 7
    """The leader could not read its log."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """A follower has everything below `log_end_offset` and asks for the records from there on."""

    leader_epoch: int
    number: int
    """Counts the follower's requests; the answer repeats it."""
    log_end_offset: int
    synced_end_offset: int
    """Offsets below it survive a power failure."""
    replica_epoch: int
    """Rises when the follower may have lost records: after a crash, a rebuild, or a move away and back."""
    is_fetch: bool = True
    """False: a progress report, which gets no answer and leaves an outstanding fetch alone."""
    is_urgent: bool = False
    """The follower has had no answer for long: answer at once, also without data."""


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    leader_epoch: int
    number: int
    verdict: Verdict
    high_watermark: int = -1
    log_start_offset: int = 0
    log_end_offset: int = 0
    """The leader's log end at the time of the answer."""
    wants_sync: bool = False
    """A publisher waits for the follower's disk: sync at once and report it."""
    data: bytes | memoryview = b""
    """Whole batches from the fetched offset on; empty if there are none."""


@dataclass(frozen=True, slots=True)
class EpochQuery:
    """Asks where this epoch ends in the leader's log."""

    leader_epoch: int
    number: int
    epoch: int


@dataclass(frozen=True, slots=True)
class EpochAnswer:
    """`epoch` is the largest one of the leader's log that is not above the queried one, 0 for none; it ends before `end_offset`."""

    leader_epoch: int
    number: int
    verdict: Verdict
    epoch: int = 0
    end_offset: int = 0


@dataclass(frozen=True, slots=True)
class Notice:
    """Sent without a request: the leader is alive, and this is its high watermark."""

    leader_epoch: int
    high_watermark: int
    is_beginning: bool = False
    """The leader has just begun: earlier requests are lost, send them again."""


Message = Fetch | FetchAnswer | EpochQuery | EpochAnswer | Notice
