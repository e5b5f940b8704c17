"""Opens a Raft directory: reads the superblock, checks all files it names, and changes a file only if all are valid.

A directory is created under another name and renamed when it is complete, so an existing one is complete or damaged.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from bascule import limits
from bascule.errors import StateError
from bascule.log.disk.operations import Disk, read_file
from bascule.raft.core.model.entries import Entry, HardState, RaftSnapshot
from bascule.raft.core.model.membership import RaftMembership
from bascule.raft.disk.errors import DamagedRaftLog, ForeignRaftLog
from bascule.raft.disk.frames import ScannedSegment, scan_segment, segment_name, segment_number
from bascule.raft.disk.snapshot_file import PREFIX, read_snapshot, snapshot_name, write_snapshot
from bascule.raft.disk.superblock import Superblock, SuperblockFile, read_superblock
from bascule.raft.disk.wal import Wal, WalSegment


@dataclass(frozen=True, slots=True)
class Recovered:
    """The initial state of a node."""

    hard_state: HardState
    snapshot: RaftSnapshot
    entries: tuple[Entry, ...]
    torn_bytes: int
    """Bytes removed from the end: an interrupted write that was never acknowledged."""


def wal_exists(disk: Disk, directory: str) -> bool:
    try:
        disk.list_directory(directory)
    except FileNotFoundError:
        return False
    return True


# ── creating ─────────────────────────────────────────────────────────────────────────────────────


def create_wal(disk: Disk, directory: str, *, cluster_id: str, server_id: str, membership: RaftMembership) -> None:
    """Create a log: with the voters of a new cluster, equal on all of them, or with no members, to join a cluster."""
    if wal_exists(disk, directory):
        raise StateError(f"{directory} already exists", hint="open it, or remove it to create a new server")
    unfinished = f"{directory}.new"
    disk.make_directory(unfinished)
    for name in disk.list_directory(unfinished):
        disk.remove(f"{unfinished}/{name}")
    crc = write_snapshot(disk, unfinished, RaftSnapshot(0, 0, membership))
    disk.close(disk.open(f"{unfinished}/{segment_name(1)}", create=True))
    file = SuperblockFile(disk, unfinished, create=True)
    try:
        file.write(Superblock(cluster_id, server_id, 1, 0, None, 0, 0, crc, 1, 1))
    finally:
        file.close()
    disk.sync_directory(unfinished)
    disk.rename(unfinished, directory)
    disk.sync_directory(_parent(directory))


# ── opening ──────────────────────────────────────────────────────────────────────────────────────


def open_wal(
    disk: Disk,
    directory: str,
    *,
    cluster_id: str,
    server_id: str,
    segment_bytes: int = limits.RAFT_SEGMENT_BYTES,
) -> tuple[Wal, Recovered]:
    """Open the log. If it raises ForeignRaftLog, FormatTooNew or DamagedRaftLog, no file was changed."""
    superblock = read_superblock(disk, directory)
    _check_identity(superblock, directory, cluster_id, server_id)
    snapshot = read_snapshot(
        disk, directory, superblock.snapshot_index, superblock.snapshot_term, superblock.snapshot_crc
    )
    segments, last = _scan(disk, directory, superblock)
    log = _Replay(superblock, snapshot, directory)
    for segment, scanned in segments:
        for frame in scanned.frames:
            for entry in frame:
                segment.first_index = entry.index if segment.first_index is None else segment.first_index
                log.add(entry)
    log.check()
    _check_term(superblock, directory)
    _repair(disk, directory, superblock, segments[-1][0], last)
    wal = Wal(
        disk,
        directory,
        superblock,
        [segment for segment, _ in segments],
        next_number=last.next_number,
        last_index=log.last_index,
        segment_bytes=segment_bytes,
    )
    hard_state = HardState(superblock.term, superblock.vote)
    return wal, Recovered(hard_state, snapshot, tuple(log.entries), last.torn_bytes)


def _check_identity(superblock: Superblock, directory: str, cluster_id: str, server_id: str) -> None:
    for what, found, wanted in (
        ("cluster", superblock.cluster_id, cluster_id),
        ("server", superblock.server_id, server_id),
    ):
        if found != wanted:
            raise ForeignRaftLog(
                f"{directory} belongs to the {what} `{found}`, not to `{wanted}`; no file was changed",
                hint="start this server with its own data directory",
            )


def _scan(
    disk: Disk, directory: str, superblock: Superblock
) -> tuple[list[tuple[WalSegment, ScannedSegment]], ScannedSegment]:
    """Read the segments that the superblock names; each must continue the previous one."""
    segments: list[tuple[WalSegment, ScannedSegment]] = []
    number = superblock.first_segment
    while True:
        path = f"{directory}/{segment_name(number)}"
        data = read_file(disk, path)
        if data is None:
            raise DamagedRaftLog(f"{path} is missing, so entries of the log are lost")
        is_last = number == superblock.last_segment
        scanned = scan_segment(data, number, path, is_last=is_last)
        segments.append((WalSegment(number, scanned.whole_bytes), scanned))
        if is_last:
            return segments, scanned
        if not number < scanned.next_number <= superblock.last_segment:
            raise DamagedRaftLog(
                f"{path} ends before frame {scanned.next_number}, and no segment begins with that frame"
            )
        number = scanned.next_number


class _Replay:
    """Builds the log from the frames: a later entry replaces all entries from its index on."""

    def __init__(self, superblock: Superblock, snapshot: RaftSnapshot, directory: str) -> None:
        self._superblock = superblock
        self._directory = directory
        self._base = snapshot.index
        self._base_term = snapshot.term
        self._seen_index: int | None = None
        self.entries: list[Entry] = []

    @property
    def last_index(self) -> int:
        return self._base + len(self.entries)

    def add(self, entry: Entry) -> None:
        expected = self._base if self._seen_index is None else max(self._seen_index, self._base)
        if entry.index > expected + 1:
            raise DamagedRaftLog(f"{self._directory}: entries {expected + 1} to {entry.index - 1} are missing")
        if entry.term > self._superblock.term:
            raise DamagedRaftLog(
                f"{self._directory}: entry {entry.index} has term {entry.term}, but the state of this server has "
                f"term {self._superblock.term}: it is older than the log"
            )
        self._seen_index = entry.index
        del self.entries[max(0, entry.index - self._base - 1) :]
        if entry.index > self._base:
            self.entries.append(entry)

    def check(self) -> None:
        """Check the terms of the final log; entries that were replaced later do not matter."""
        term = self._base_term
        for entry in self.entries:
            if entry.term < term:
                raise DamagedRaftLog(f"{self._directory}: entry {entry.index} has a lower term than the one before it")
            term = entry.term


def _check_term(superblock: Superblock, directory: str) -> None:
    if superblock.snapshot_term > superblock.term:
        raise DamagedRaftLog(
            f"{directory}: the snapshot has term {superblock.snapshot_term}, but the state of this server has term "
            f"{superblock.term}"
        )


# ── repairing ────────────────────────────────────────────────────────────────────────────────────


def _repair(disk: Disk, directory: str, superblock: Superblock, last: WalSegment, scanned: ScannedSegment) -> None:
    """Truncate an incomplete frame, sync all files, and remove files that the superblock does not name."""
    handle = disk.open(f"{directory}/{segment_name(last.number)}")
    try:
        if scanned.torn_bytes:
            disk.truncate(handle, scanned.whole_bytes)
        disk.sync(handle)
    finally:
        disk.close(handle)
    with contextlib.closing(SuperblockFile(disk, directory, create=True)) as file:
        file.write(superblock)
    current = snapshot_name(superblock.snapshot_index, superblock.snapshot_term)
    for name in disk.list_directory(directory):
        number = segment_number(name)
        is_old_segment = number is not None and not superblock.first_segment <= number <= superblock.last_segment
        if is_old_segment or (name.startswith(PREFIX) and name != current):
            disk.remove(f"{directory}/{name}")
    disk.sync_directory(directory)
    # The directory may be new, and a crash may have prevented the sync of its name.
    disk.sync_directory(_parent(directory))


def _parent(directory: str) -> str:
    return directory.rpartition("/")[0] or "/"
