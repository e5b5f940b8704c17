"""What exists only while a node leads, and is forgotten when it no longer does."""

from __future__ import annotations

from dataclasses import dataclass, field

from bascule.raft.core.progress import PeerProgress
from bascule.raft.core.reads import ReadQueue


@dataclass(slots=True)
class Transfer:
    request: int
    target: str
    ticks: int = 0


@dataclass(slots=True)
class Leadership:
    first_index: int
    """The entry that opened this term. Once it is committed, the commit index is the newest there is."""

    progress: dict[str, PeerProgress] = field(default_factory=dict)
    """Every member but this node."""

    reads: ReadQueue = field(default_factory=ReadQueue)
    transfer: Transfer | None = None
    heartbeat_ticks: int = 0
    quorum_ticks: int = 0
    uncommitted_bytes: int = 0
