"""The state of one follower as its leader knows it.

PROBE      the last common entry is unknown: one append at a time, until one is accepted
REPLICATE  a bounded number of appends may be in flight
SNAPSHOT   the next entries are compacted: chunks of a snapshot, one at a time
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
        """The follower's durable log equals that of the leader up to this index."""

        self.commit_sent = 0
        self.is_paused = False
        """Whether a probe is in flight."""

        self.is_active = True
        """Whether the follower has answered since the last quorum check; initially true."""

        self.read_round = 0
        self.snapshot: RaftSnapshot | None = None
        """The snapshot that is being sent, even if a newer one exists."""

        self.snapshot_position = 0
        self.quiet_ticks = 0
        self._inflight: deque[int] = deque()

    def can_append(self, inflight_max: int) -> bool:
        if self.state is ProgressState.REPLICATE:
            return len(self._inflight) < inflight_max
        return self.state is ProgressState.PROBE and not self.is_paused

    def sent(self, last_index: int) -> None:
        """Note an append that was sent with entries up to `last_index`, which is `next_index - 1` for none."""
        if self.state is ProgressState.PROBE:
            self.is_paused = True
        elif last_index >= self.next_index:
            self._inflight.append(last_index)
            self.next_index = last_index + 1

    def accepted(self, index: int) -> bool:
        """Note that the follower holds the log up to `index`. Returns whether that is new."""
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
        """Note a rejected append after `previous_index`; the logs may agree up to `agreed_index`. False for a stale rejection."""
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
