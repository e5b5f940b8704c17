"""What a node is told about time, sizes and bounds. Ticks are whatever the shell makes them; all members should agree on them."""

from __future__ import annotations

from dataclasses import dataclass

from bascule import limits


@dataclass(frozen=True, slots=True)
class RaftOptions:
    election_ticks: int = 10
    """Without word from a leader for this long, plus up to as much again by chance, a voter campaigns. Also how often a leader
    checks that a quorum still answers, and how long a leadership transfer may take."""

    heartbeat_ticks: int = 1

    append_bytes_max: int = limits.RAFT_APPEND_BYTES_MAX
    """Entries of one message; a single larger entry goes alone."""

    appends_inflight_max: int = limits.RAFT_APPENDS_INFLIGHT_MAX
    """Unanswered appends to one follower."""

    snapshot_chunk_bytes: int = limits.RAFT_SNAPSHOT_CHUNK_BYTES
    snapshot_bytes_max: int = limits.RAFT_SNAPSHOT_BYTES_MAX
    proposal_bytes_max: int = limits.RAFT_PROPOSAL_BYTES_MAX
    uncommitted_bytes_max: int = limits.RAFT_UNCOMMITTED_BYTES_MAX
    reads_pending_max: int = limits.RAFT_READS_PENDING_MAX

    trailing_entries: int = 1024
    """Entries kept behind a snapshot, so that a follower that is a little late needs no snapshot."""

    voters_max: int = 0
    """Learners are not promoted beyond this many voters; 0 for no bound."""

    promotion_lag_max: int = 64
    """How many entries a learner may be behind and still count as caught up."""

    def __post_init__(self) -> None:
        assert 0 < self.heartbeat_ticks < self.election_ticks, "a leader has to be heard before it is missed"
        assert self.append_bytes_max > 0 and self.appends_inflight_max > 0
        assert self.snapshot_chunk_bytes > 0 and self.snapshot_bytes_max > 0
        assert self.proposal_bytes_max > 0 and self.uncommitted_bytes_max > 0 and self.reads_pending_max > 0
        assert self.trailing_entries >= 0 and self.voters_max >= 0 and self.promotion_lag_max >= 0
