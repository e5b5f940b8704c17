"""The state of a node that exists only while it is leader."""

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
    """The first entry of this term. Once it is committed, the commit index is up to date."""

    progress: dict[str, PeerProgress] = field(default_factory=dict)
    """The progress of all other members."""

    reads: ReadQueue = field(default_factory=ReadQueue)
    transfer: Transfer | None = None
    heartbeat_ticks: int = 0
    quorum_ticks: int = 0
    uncommitted_bytes: int = 0
