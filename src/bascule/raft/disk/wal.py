"""The durable log of a node: `save(effects)` returns once they survive power loss. Messages may be sent only after that.

Term and vote are in the superblock, entries in frames of the last segment. A save needs one sync for entries, and two more if term or
vote have changed. After a failed save this object is unusable: the state on disk is unknown until the directory is opened again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bascule import limits
from bascule.errors import LogClosed, StorageError
from bascule.log.disk.operations import Disk
from bascule.raft.core.model.effects import Effects
from bascule.raft.core.model.entries import Entry, RaftSnapshot
from bascule.raft.disk.frames import encode_frame, segment_name
from bascule.raft.disk.snapshot_file import snapshot_name, write_snapshot
from bascule.raft.disk.superblock import Superblock, SuperblockFile


@dataclass(slots=True)
class WalSegment:
    number: int
    """The number of its first frame."""

    size_bytes: int = 0
    first_index: int | None = None
    """The index of its first entry; None while it is empty."""


class Wal:
    def __init__(
        self,
        disk: Disk,
        directory: str,
        superblock: Superblock,
        segments: Sequence[WalSegment],
        *,
        next_number: int,
        last_index: int,
        segment_bytes: int = limits.RAFT_SEGMENT_BYTES,
    ) -> None:
        """opening.py reads these values from disk."""
        self._disk = disk
        self._directory = directory
        self._superblock = superblock
        self._segments = list(segments)
        self._next_number = next_number
        self._last_index = last_index
        self._segment_bytes = segment_bytes
        self._is_usable = True
        self._is_closed = False
        self._file = SuperblockFile(disk, directory)
        self._handle = disk.open(self._path(self._segments[-1].number))

    @property
    def superblock(self) -> Superblock:
        return self._superblock

    @property
    def segments(self) -> tuple[WalSegment, ...]:
        return tuple(self._segments)

    def save(self, *steps: Effects) -> None:
        """Save the effects of these steps in order; several steps share their syncs."""
        if self._is_closed:
            raise LogClosed(f"{self._directory} is closed")
        if not self._is_usable:
            raise StorageError(
                f"{self._directory}: an earlier write failed, so the state on disk is unknown",
                hint="restart this server; it continues with the state on disk",
            )
        self._is_usable = False
        entries: list[Entry] = []
        for effects in steps:
            if effects.hard_state is not None:
                self._name(term=effects.hard_state.term, vote=effects.hard_state.vote)
            if effects.snapshot_installed is not None or effects.snapshot_taken is not None:
                self._write(entries)
                entries = []
                self._save_snapshots(effects)
            entries += effects.entries
        self._write(entries)
        self._is_usable = True

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._file.close()
            self._disk.close(self._handle)

    # ── the superblock ───────────────────────────────────────────────────────────────────────────

    def _name(self, **changes: int | str | None) -> None:
        changed = replace(self._superblock, revision=self._superblock.revision + 1, **changes)  # type: ignore[arg-type]
        self._file.write(changed)
        self._superblock = changed

    # ── entries ──────────────────────────────────────────────────────────────────────────────────

    def _write(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        frame = encode_frame(self._next_number, entries)
        if self._segments[-1].size_bytes > 0 and self._segments[-1].size_bytes + len(frame) > self._segment_bytes:
            self._begin_segment()
            self._name(last_segment=self._segments[-1].number)
        segment = self._segments[-1]
        self._disk.write(self._handle, frame, segment.size_bytes)
        self._disk.sync(self._handle)
        segment.size_bytes += len(frame)
        segment.first_index = entries[0].index if segment.first_index is None else segment.first_index
        self._next_number += 1
        self._last_index = entries[-1].index

    def _begin_segment(self) -> None:
        """Create an empty segment, which becomes valid once the superblock names it."""
        self._disk.close(self._handle)
        self._handle = self._disk.open(self._path(self._next_number), create=True)
        self._disk.sync_directory(self._directory)
        self._segments.append(WalSegment(self._next_number))

    def _path(self, number: int) -> str:
        return f"{self._directory}/{segment_name(number)}"

    # ── snapshots ────────────────────────────────────────────────────────────────────────────────

    def _save_snapshots(self, effects: Effects) -> None:
        if effects.snapshot_installed is not None:
            self._install(effects.snapshot_installed)
        if effects.snapshot_taken is not None:
            self._compact(effects.snapshot_taken)

    def _install(self, snapshot: RaftSnapshot) -> None:
        """Replace the log by a snapshot and an empty log, in one write of the superblock."""
        if self._segments[-1].size_bytes > 0:
            self._begin_segment()
        self._adopt(snapshot, first=len(self._segments) - 1)
        self._last_index = snapshot.index

    def _compact(self, snapshot: RaftSnapshot) -> None:
        """Remove the segments without entries after the snapshot: the next segment begins at or before the entry after it."""
        first = 0
        while first + 1 < len(self._segments):
            following = self._segments[first + 1].first_index
            if (self._last_index + 1 if following is None else following) > snapshot.index + 1:
                break
            first += 1
        self._adopt(snapshot, first=first)

    def _adopt(self, snapshot: RaftSnapshot, *, first: int) -> None:
        before = self._superblock
        crc = write_snapshot(self._disk, self._directory, snapshot)
        self._disk.sync_directory(self._directory)
        dropped, self._segments = self._segments[:first], self._segments[first:]
        self._name(
            snapshot_index=snapshot.index,
            snapshot_term=snapshot.term,
            snapshot_crc=crc,
            first_segment=self._segments[0].number,
            last_segment=self._segments[-1].number,
        )
        for segment in dropped:
            self._disk.remove(self._path(segment.number))
        if (before.snapshot_index, before.snapshot_term) != (snapshot.index, snapshot.term):
            self._disk.remove(f"{self._directory}/{snapshot_name(before.snapshot_index, before.snapshot_term)}")
