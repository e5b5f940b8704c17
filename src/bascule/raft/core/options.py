"""The options of a node. The shell defines the length of a tick, which should be equal on all members."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bascule import limits


@dataclass(frozen=True, slots=True)
class RaftOptions:
    election_ticks: int = 10
    """Minimum election timeout; a random part of up to the same length is added. Also the interval of quorum checks, and the
    timeout of a leadership transfer."""

    heartbeat_ticks: int = 1

    append_bytes_max: int = limits.RAFT_APPEND_BYTES_MAX
    """Entries of one message; a larger entry is sent alone."""

    appends_inflight_max: int = limits.RAFT_APPENDS_INFLIGHT_MAX
    """Unanswered appends to one follower."""

    snapshot_chunk_bytes: int = limits.RAFT_SNAPSHOT_CHUNK_BYTES
    snapshot_bytes_max: int = limits.RAFT_SNAPSHOT_BYTES_MAX
    proposal_bytes_max: int = limits.RAFT_PROPOSAL_BYTES_MAX
    uncommitted_bytes_max: int = limits.RAFT_UNCOMMITTED_BYTES_MAX
    reads_pending_max: int = limits.RAFT_READS_PENDING_MAX

    trailing_entries: int = 1024
    """Entries that are kept before a snapshot, so that a follower with a small lag does not need the snapshot."""

    voters_max: int = 0
    """Maximum number of voters; 0 for no limit."""

    is_snapshot: Callable[[bytes], bool] = lambda _data: True
    """Whether the state machine can restore a snapshot that a leader sent; otherwise it is refused, and nothing changes."""

    promotion_lag_max: int = 64
    """Maximum lag, in entries, of a learner that counts as caught up."""

    def __post_init__(self) -> None:
        assert 0 < self.heartbeat_ticks < self.election_ticks, "heartbeats come more often than election timeouts"
        assert self.append_bytes_max > 0 and self.appends_inflight_max > 0
        assert self.snapshot_chunk_bytes > 0 and self.snapshot_bytes_max > 0
        assert self.proposal_bytes_max > 0 and self.uncommitted_bytes_max > 0 and self.reads_pending_max > 0
        assert self.trailing_entries >= 0 and self.voters_max >= 0 and self.promotion_lag_max >= 0
