"""A snapshot that is being received in chunks.

All chunks come from one leader in one term, because two leaders may encode the same state in different bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bascule.raft.core.model.entries import RaftSnapshot
from bascule.raft.core.model.messages import SnapshotChunk


@dataclass(slots=True)
class IncomingSnapshot:
    sender: str
    term: int
    index: int
    snapshot_term: int
    total_bytes: int
    data: bytearray = field(default_factory=bytearray)

    @classmethod
    def begun_by(cls, chunk: SnapshotChunk) -> IncomingSnapshot:
        return cls(chunk.sender, chunk.term, chunk.index, chunk.snapshot_term, chunk.total_bytes)

    def is_of(self, chunk: SnapshotChunk) -> bool:
        return (self.sender, self.term, self.index, self.snapshot_term, self.total_bytes) == (
            chunk.sender,
            chunk.term,
            chunk.index,
            chunk.snapshot_term,
            chunk.total_bytes,
        )

    def add(self, chunk: SnapshotChunk) -> RaftSnapshot | None:
        """Add the chunk if it is the next one. Returns the snapshot after the last chunk, else None."""
        if chunk.position == len(self.data):
            self.data += chunk.data
        if len(self.data) < self.total_bytes:
            return None
        return RaftSnapshot(self.index, self.snapshot_term, chunk.membership, bytes(self.data))
