"""What a leader knows of one follower."""

from __future__ import annotations

from dataclasses import dataclass

from bascule.partition.core.messages import Fetch


@dataclass(slots=True)
class Progress:
    last_seen_ns: int
    last_caught_up_ns: int
    """When it last had everything that the leader had at that moment."""
    replica_epoch: int = -1
    number: int = -1
    """The highest it has sent: whatever arrives with a lower one is old."""
    log_end_offset: int = 0
    synced_end_offset: int = 0
    high_watermark: int = -2
    """What it was told last."""
    parked: Fetch | None = None
    """A fetch that has not been answered: there is nothing to send."""
    parked_ns: int = 0
    fetched_ns: int = 0
    fetched_leader_end_offset: int = -1
    """When it last fetched, and where the leader's log ended then."""
    sync_asked_to: int = 0
    admitted_ns: int = 0
    """Since when it is counted, though it is not in sync yet; 0 for not."""
    proposed_epoch: int = -1
    """The partition epoch at which its admission was proposed; −1 for not."""
    proposed_replica_epoch: int = -1
    """As what it was proposed, until that is settled; −1 for not. Should its server be started anew meanwhile, it has to catch up anew
    before it may join."""
    is_refused: bool = False
    """Its admission was, and was not proposed again since. One that has left the in-sync replicas, or stops, is not meant."""
    is_in_doubt: bool = False
    """Nobody knows what became of the proposal: it has to be made again."""
    retry_ns: int = 0
    """Not before this the controller is asked again."""

    @property
    def is_counted(self) -> bool:
        return self.admitted_ns != 0 or self.proposed_epoch >= 0

    def takes(self, fetch: Fetch) -> bool:
        """Whether this is news, and not a message that was overtaken."""
        if fetch.replica_epoch == self.replica_epoch:
            return fetch.number > self.number
        return fetch.replica_epoch > self.replica_epoch

    def take(self, fetch: Fetch, now_ns: int) -> None:
        if fetch.replica_epoch > self.replica_epoch:
            self.parked = None
            self.fetched_leader_end_offset = -1
            self.high_watermark = -2
            self.sync_asked_to = 0
        self.replica_epoch, self.number = fetch.replica_epoch, fetch.number
        self.log_end_offset, self.synced_end_offset = fetch.log_end_offset, fetch.synced_end_offset
        self.last_seen_ns = now_ns

    def note_fetch(self, leader_end_offset: int, now_ns: int) -> bool:
        """Whether it keeps up: it has now what the leader had at its last fetch. Under steady load nobody ever has what it has now."""
        if self.log_end_offset >= leader_end_offset:
            self.last_caught_up_ns = now_ns
            keeps_up = True
        else:
            keeps_up = 0 <= self.fetched_leader_end_offset <= self.log_end_offset
            if keeps_up:
                self.last_caught_up_ns = max(self.last_caught_up_ns, self.fetched_ns)
        self.fetched_ns, self.fetched_leader_end_offset = now_ns, leader_end_offset
        return keeps_up
