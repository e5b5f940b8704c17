"""The settings of a replica: what its acks wait for, and its timeouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BACK_OFF_NS_MAX: Final = 250_000_000
"""Longest wait before a follower repeats a request that its leader refused. A notice of the leader ends the wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaOptions:
    min_insync_replicas: int = 1
    acks_wait_for_disk: bool = True
    """ALL acks wait until the message is synced on every in-sync replica: `sync` is `ack` or `always`."""
    commits_wait_for_disk: bool = False
    """Commits, and with them readers, wait for the same: `sync` is `always`."""
    max_lag_ns: int = 5_000_000_000
    leader_timeout_ns: int = 5_000_000_000
    idle_wait_ns: int = 2_000_000_000
    fetch_timeout_ns: int = 3_000_000_000

    @property
    def hold_ns(self) -> int:
        """How long a leader holds a fetch that it has no data for. Shorter than the timeouts of both sides."""
        return min(self.idle_wait_ns, self.max_lag_ns // 2, self.leader_timeout_ns // 2)

    @property
    def back_off_ns(self) -> int:
        return min(BACK_OFF_NS_MAX, self.leader_timeout_ns // 8)

    @property
    def answer_timeout_ns(self) -> int:
        """When a follower treats its fetch as lost: before it would report a healthy leader whose answer was lost."""
        return self.hold_ns + min(self.fetch_timeout_ns, self.leader_timeout_ns // 4)
