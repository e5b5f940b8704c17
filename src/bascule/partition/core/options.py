"""What a replica goes by, and what it needs to know of its log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

BACK_OFF_NS_MAX: Final = 250_000_000
"""Between two questions to a leader that does not answer well. A notice of the leader ends the wait."""


class ReplicaLog(Protocol):
    """The numbers of a log. Asking for them changes nothing."""

    @property
    def log_end_offset(self) -> int: ...

    @property
    def log_start_offset(self) -> int: ...

    @property
    def synced_end_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def latest_epoch(self) -> int: ...

    def end_offset_of_epoch(self, epoch: int) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaOptions:
    min_insync_replicas: int = 1
    acks_wait_for_disk: bool = True
    """ALL acks wait until the message is synced on every in-sync replica: `sync` is `ack` or `always`."""
    commits_wait_for_disk: bool = False
    """So do commits, and with them readers: `sync` is `always`."""
    max_lag_ns: int = 15_000_000_000
    leader_timeout_ns: int = 15_000_000_000
    idle_wait_ns: int = 10_000_000_000
    fetch_timeout_ns: int = 3_000_000_000

    @property
    def hold_ns(self) -> int:
        """How long a leader keeps a fetch that it has nothing for. Shorter than what makes either side doubt the other."""
        return min(self.idle_wait_ns, self.max_lag_ns // 2, self.leader_timeout_ns // 2)

    @property
    def back_off_ns(self) -> int:
        return min(BACK_OFF_NS_MAX, self.leader_timeout_ns // 8)

    @property
    def answer_timeout_ns(self) -> int:
        """After so long a follower takes its fetch for lost. Before it would have to report a healthy leader whose answer was."""
        return self.hold_ns + min(self.fetch_timeout_ns, self.leader_timeout_ns // 4)
