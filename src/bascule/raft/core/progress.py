"""What a leader knows about one follower, and how much it may send it.

PROBE      where the logs agree is not known: one append at a time, until one is accepted
REPLICATE  appends follow each other without waiting, a bounded number of them unanswered
SNAPSHOT   what the follower needs is compacted away: chunks of a snapshot, one at a time
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum, unique

from bascule.raft.core.model.entries import RaftSnapshot


@unique
class ProgressState(IntEnum):
    PROBE = 0
    REPLICATE = 1
    SNAPSHOT = 2


class PeerProgress:
    __slots__ = (
        "_inflight",
        "commit_sent",
        "is_active",
        "is_paused",
        "match_index",
        "next_index",
        "quiet_ticks",
        "read_round",
        "snapshot",
        "snapshot_position",
        "state",
    )

    def __init__(self, next_index: int) -> None:
        self.state = ProgressState.PROBE
        self.next_index = next_index
        self.match_index = 0
        """Up to here the follower's durable log is known to equal ours."""

        self.commit_sent = 0
        self.is_paused = False
        """A probe is under way."""

        self.is_active = True
        """Heard from since quorum was last checked; a new leader gives everyone the benefit of the doubt."""

        self.read_round = 0
        self.snapshot: RaftSnapshot | None = None
        """The one being sent. It stays the same to its end, whatever is compacted meanwhile."""

        self.snapshot_position = 0
        self.quiet_ticks = 0
        self._inflight: deque[int] = deque()

    def can_append(self, inflight_max: int) -> bool:
        if self.state is ProgressState.REPLICATE:
            return len(self._inflight) < inflight_max
        return self.state is ProgressState.PROBE and not self.is_paused

    def sent(self, last_index: int) -> None:
        """An append whose last entry is `last_index` is on its way; of an empty one that is `next_index - 1`."""
        if self.state is ProgressState.PROBE:
            self.is_paused = True
        elif last_index >= self.next_index:
            self._inflight.append(last_index)
            self.next_index = last_index + 1

    def accepted(self, index: int) -> bool:
        """The follower holds our log up to `index`. Whether that is news."""
        self.is_paused = False
        while self._inflight and self._inflight[0] <= index:
            self._inflight.popleft()
        is_news = index > self.match_index
        self.match_index = max(self.match_index, index)
        self.next_index = max(self.next_index, self.match_index + 1)
        if self.state is ProgressState.PROBE:
            self._become_replicate()
        return is_news

    def rejected(self, previous_index: int, agreed_index: int) -> bool:
        """An append behind `previous_index` did not fit; the logs may agree up to `agreed_index`. False for a stale rejection."""
        if self.state is ProgressState.REPLICATE:
            if previous_index <= self.match_index:
                return False
            self.become_probe()
            return True
        if self.state is ProgressState.SNAPSHOT or previous_index != self.next_index - 1:
            return False
        self.next_index = max(min(previous_index, agreed_index + 1), self.match_index + 1)
        self.is_paused = False
        return True

    def become_probe(self) -> None:
        self.state = ProgressState.PROBE
        self.next_index = self.match_index + 1
        self._forget()

    def _become_replicate(self) -> None:
        self.state = ProgressState.REPLICATE
        self.next_index = self.match_index + 1
        self._forget()

    def become_snapshot(self, snapshot: RaftSnapshot) -> None:
        self.state = ProgressState.SNAPSHOT
        self._forget()
        self.snapshot = snapshot

    def leave_snapshot(self) -> None:
        self._become_replicate()

    def _forget(self) -> None:
        self.is_paused = False
        self.snapshot = None
        self.snapshot_position = self.quiet_ticks = 0
        self._inflight.clear()
