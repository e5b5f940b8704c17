"""What a leader knows of one follower."""

from __future__ import annotations

from dataclasses import dataclass

from bascule.partition.core.messages import Fetch


@dataclass(slots=True)
class FollowerProgress:
    last_seen_ns: int
    last_caught_up_ns: int
    """The last time at which the follower had everything that the leader had then."""
    replica_epoch: int = -1
    number: int = -1
    """The highest number that the follower has sent: a message with a lower one is old."""
    log_end_offset: int = 0
    synced_end_offset: int = 0
    high_watermark: int = -2
    """The high watermark in the last message to the follower."""
    parked: Fetch | None = None
    """A fetch without an answer: there is no data for it yet."""
    parked_ns: int = 0
    fetched_ns: int = 0
    """The time of the last fetch."""
    fetched_leader_end_offset: int = -1
    """The leader's log end at the last fetch."""
    sync_asked_to: int = 0
    admitted_ns: int = 0
    """Since when commits count the follower although it is not in sync yet; 0 if they do not."""
    proposed_epoch: int = -1
    """The partition epoch in the outstanding ExpandIsr, −1 if there is none."""
    proposed_replica_epoch: int = -1
    """The replica epoch in the outstanding ExpandIsr, −1 if there is none. If the follower's server restarts meanwhile, the follower
    has to catch up again before it may join."""
    is_refused: bool = False
    """The metadata refused the last ExpandIsr. False for a follower that left the in-sync set or is stopping."""
    is_in_doubt: bool = False
    """The outcome of the ExpandIsr is unknown: it has to be proposed again."""
    retry_ns: int = 0
    """The earliest time of the next proposal."""

    @property
    def is_counted(self) -> bool:
        return self.admitted_ns != 0 or self.proposed_epoch >= 0

    def is_newer(self, fetch: Fetch) -> bool:
        """Whether the fetch was sent after the last one that arrived."""
        if fetch.replica_epoch == self.replica_epoch:
            return fetch.number > self.number
        return fetch.replica_epoch > self.replica_epoch

    def update(self, fetch: Fetch, now_ns: int) -> None:
        if fetch.replica_epoch > self.replica_epoch:
            self.parked = None
            self.fetched_leader_end_offset = -1
            self.high_watermark = -2
            self.sync_asked_to = 0
        self.replica_epoch, self.number = fetch.replica_epoch, fetch.number
        self.log_end_offset, self.synced_end_offset = fetch.log_end_offset, fetch.synced_end_offset
        self.last_seen_ns = now_ns

    def note_fetch(self, leader_end_offset: int, now_ns: int) -> bool:
        """Whether the follower keeps up: it has now what the leader had at its last fetch. Under steady load no follower ever has
        what the leader has at the same moment."""
        if self.log_end_offset >= leader_end_offset:
            self.last_caught_up_ns = now_ns
            keeps_up = True
        else:
            keeps_up = 0 <= self.fetched_leader_end_offset <= self.log_end_offset
            if keeps_up:
                self.last_caught_up_ns = max(self.last_caught_up_ns, self.fetched_ns)
        self.fetched_ns, self.fetched_leader_end_offset = now_ns, leader_end_offset
        return keeps_up
