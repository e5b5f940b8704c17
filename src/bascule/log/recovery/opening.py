"""Opens the directory of a log after a stop or a crash.

Records below the checkpoint's recovery point are synced and are not read. Records after it are verified, and the log is truncated at
the first bad byte, because they were not acknowledged as synced. Without a checkpoint all records are verified, and the log is
truncated only where no good batch follows. Damaged data never makes an open fail.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

from bascule import limits
from bascule.errors import NotALog, StorageError
from bascule.kernels.records import records
from bascule.log.core.epochs import EpochCache
from bascule.log.core.sparse_index import SparseIndex
from bascule.log.disk import checkpoint as checkpoints
from bascule.log.disk.checkpoint import LogCheckpoint, read_checkpoint
from bascule.log.disk.files import FilePool
from bascule.log.disk.operations import Disk
from bascule.log.recovery.leader_epochs import EPOCHS_FILE, begin_epochs_at, load_epochs
from bascule.log.segments import index_file
from bascule.log.segments.damage import Damage, find_damage
from bascule.log.segments.index_file import SegmentTotals
from bascule.log.segments.segment import INDEX_SUFFIX, LOG_SUFFIX, Segment, segment_path

CLEANED_SUFFIX = ".log.cleaned"
SWAP_SUFFIX = ".swap"

_LOG_NAME = re.compile(r"(\d{20})\.log")
_INDEX_NAME = re.compile(r"(\d{20})\.index")
_SWAP_NAME = re.compile(r"(\d{20})-(\d{20})\.swap")
_OUR_NAME = re.compile(
    r"\d{20}(\.log|\.index|\.log\.cleaned)(\.tmp)?|\d{20}-\d{20}\.swap|(checkpoint|leader-epoch-checkpoint)(\.tmp)?"
)


@dataclass(slots=True)
class RecoveryReport:
    """The findings and repairs of an open. Empty after a clean stop."""

    verified_bytes: int = 0
    cut_bytes: int = 0
    cut_from_offset: int | None = None
    cut_reason: str | None = None
    removed_files: list[str] = field(default_factory=list)
    rebuilt: list[str] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    missing: list[tuple[int, int]] = field(default_factory=list)
    """Offset ranges `[first, end)` that no segment holds."""

    @property
    def is_clean(self) -> bool:
        return not (self.cut_bytes or self.removed_files or self.rebuilt or self.damage or self.missing)

    def lines(self) -> list[str]:
        """Return the report as sentences for the server's log."""
        said = []
        if self.cut_bytes or self.removed_files:
            said.append(
                f"removed {self.cut_bytes} bytes that were not synced, from offset {self.cut_from_offset}: {self.cut_reason}"
            )
        said += [f"rebuilt {name}" for name in self.rebuilt]
        said += [damage.describe() for damage in self.damage]
        said += [f"offsets {first} to {end - 1} are missing: no segment holds them" for first, end in self.missing]
        return said


@dataclass(slots=True)
class RecoveredLog:
    segments: list[Segment]
    epochs: EpochCache
    checkpoint: LogCheckpoint
    last_timestamp: int
    report: RecoveryReport
    is_new: bool = False
    has_checkpoint: bool = False

    @property
    def is_synced(self) -> bool:
        """Whether all records were synced before the log was opened."""
        return self.segments[-1].next_offset <= self.checkpoint.recovery_point and not self.checkpoint.cutting


def recover(pool: FilePool, directory: str) -> RecoveredLog:
    disk = pool.disk
    _check_directory(disk, directory)
    checkpoint = read_checkpoint(disk, directory)
    report = RecoveryReport()
    _finish_swaps(disk, directory)
    bases = _segment_bases(disk, directory, checkpoint)
    if not bases:
        return _new_log(pool, directory, checkpoint, report)
    if checkpoint is None:
        report.rebuilt.append(checkpoints.FILE_NAME)
    loader = _Loader(pool, directory, checkpoint, report)
    segments = loader.load(bases)
    _note_missing(segments, checkpoint, report)
    if checkpoint is not None and segments[-1].next_offset < checkpoint.recovery_point and report.cut_reason is None:
        # Synced records are missing. Their offsets must not be used again.
        report.missing.append((segments[-1].next_offset, checkpoint.recovery_point))
        segments[-1].seal()
        segments.append(Segment.create(pool, directory, checkpoint.recovery_point))
    any_epoch = checkpoint is None or checkpoint.last_epoch > 0
    epochs, epochs_lost = load_epochs(disk, directory, segments, loader.epochs, any_expected=any_epoch)
    if epochs_lost:
        report.rebuilt.append(EPOCHS_FILE)
    last_timestamp = max(
        [segment.last_timestamp for segment in segments] + [0 if checkpoint is None else checkpoint.last_timestamp]
    )
    has_checkpoint = checkpoint is not None
    return RecoveredLog(
        segments, epochs, checkpoint or LogCheckpoint(), last_timestamp, report, has_checkpoint=has_checkpoint
    )


def _check_directory(disk: Disk, directory: str) -> None:
    try:
        names = disk.list_directory(directory)
    except FileNotFoundError:
        disk.make_directory(directory)
        return
    except NotADirectoryError:
        raise NotALog(f"{directory} is a file", hint="give the directory of a partition") from None
    foreign = sorted(name for name in names if not _OUR_NAME.fullmatch(name))
    if foreign and not any(_LOG_NAME.fullmatch(name) for name in names):
        raise NotALog(
            f"{directory} is not a partition log: it holds {', '.join(foreign[:3])} and no segment",
            hint="give the directory of a partition, or an empty one",
        )


def _finish_swaps(disk: Disk, directory: str) -> None:
    """Complete the swaps that the cleaner had begun, and remove its temporary files."""
    names = disk.list_directory(directory)
    for name in names:
        if name.endswith((CLEANED_SUFFIX, ".tmp")):
            disk.remove(f"{directory}/{name}")
    for name in sorted(names):
        if found := _SWAP_NAME.fullmatch(name):
            complete_swap(disk, directory, int(found[1]), int(found[2]))
            disk.sync_directory(directory)


def complete_swap(disk: Disk, directory: str, base_offset: int, end_offset: int) -> None:
    """Replace the segments of `[base_offset, end_offset)` by the swap file of that name. May be repeated after a crash."""
    for name in sorted(disk.list_directory(directory)):
        found = _LOG_NAME.fullmatch(name)
        if found and base_offset <= int(found[1]) < end_offset:
            disk.remove(segment_path(directory, int(found[1]), INDEX_SUFFIX))
            if int(found[1]) != base_offset:
                disk.remove(f"{directory}/{name}")
    disk.rename(swap_path(directory, base_offset, end_offset), segment_path(directory, base_offset))


def swap_path(directory: str, base_offset: int, end_offset: int) -> str:
    return f"{directory}/{base_offset:020d}-{end_offset:020d}{SWAP_SUFFIX}"


def _segment_bases(disk: Disk, directory: str, checkpoint: LogCheckpoint | None) -> list[int]:
    names = disk.list_directory(directory)
    bases = sorted(int(found[1]) for name in names if (found := _LOG_NAME.fullmatch(name)))
    for name in names:
        if (found := _INDEX_NAME.fullmatch(name)) and int(found[1]) not in bases:
            disk.remove(f"{directory}/{name}")
    if checkpoint is None:
        return bases
    # Retention has removed these segments; a crash or a failed unlink left their files.
    while len(bases) > 1 and bases[1] <= checkpoint.log_start_offset:
        gone = bases.pop(0)
        with contextlib.suppress(StorageError):  # they are not read; the next open tries again
            disk.remove(segment_path(directory, gone))
            disk.remove(segment_path(directory, gone, INDEX_SUFFIX))
    return bases


def _new_log(pool: FilePool, directory: str, checkpoint: LogCheckpoint | None, report: RecoveryReport) -> RecoveredLog:
    """Return a log without segments: a new one, or one whose files are missing. Used offsets are not used again."""
    base_offset = 0 if checkpoint is None else checkpoint.recovery_point
    if base_offset:
        report.missing.append((checkpoint.log_start_offset if checkpoint else 0, base_offset))
    epochs = begin_epochs_at(pool.disk, directory, base_offset)
    segment = Segment.create(pool, directory, base_offset)
    last_timestamp = 0 if checkpoint is None else checkpoint.last_timestamp
    return RecoveredLog([segment], epochs, checkpoint or LogCheckpoint(), last_timestamp, report, is_new=True)


class _Trust(Enum):
    """How bytes that fail verification are treated."""

    SYNCED = "never truncated: bad bytes are damage"
    UNSYNCED = "truncated at the first bad byte"
    UNKNOWN = "truncated only where no good batch follows"


class _Loader:
    """Loads segments, oldest first, and verifies those that may not be synced."""

    def __init__(
        self, pool: FilePool, directory: str, checkpoint: LogCheckpoint | None, report: RecoveryReport
    ) -> None:
        self.pool = pool
        self.directory = directory
        self.checkpoint = checkpoint
        self.report = report
        self.epochs: list[tuple[int, int]] = []
        """(epoch, first offset) in the batches that were verified."""

    def load(self, bases: list[int]) -> list[Segment]:
        segments: list[Segment] = []
        behind = list(bases)
        while behind and self.report.cut_reason is None:
            base_offset = behind.pop(0)
            segment = self._load_one(base_offset, behind[0] if behind else None)
            while behind and segment.next_offset > behind[0] and self._is_empty(behind[0]):
                # A failed roll left an empty file, and appends continued in the old segment.
                self._drop([behind.pop(0)])
                segment = self._load_one(base_offset, behind[0] if behind else None)
            segments.append(segment)
            self._check_continuity(segment, behind[0] if behind else None)
        self._drop(behind)
        return segments

    def _is_empty(self, base_offset: int) -> bool:
        return self.pool.disk.file_size(segment_path(self.directory, base_offset)) == 0

    def _check_continuity(self, segment: Segment, next_base: int | None) -> None:
        """Truncate after `segment` if the next unsynced segment does not continue it: power loss has removed its end."""
        known = self.checkpoint
        if known is None or next_base is None or next_base <= known.active_base or self.report.cut_reason is not None:
            return
        if next_base != segment.next_offset:
            self.report.cut_from_offset = segment.next_offset
            self.report.cut_reason = "bad offsets"

    def _load_one(self, base_offset: int, next_base: int | None) -> Segment:
        size = self.pool.disk.file_size(segment_path(self.directory, base_offset))
        known = self.checkpoint
        totals = None
        if next_base is not None:
            totals = index_file.read_totals(self.pool.disk, self._index_path(base_offset), base_offset)
            if totals is not None and not 0 < totals.end_offset <= next_base:
                totals = None
        if known is not None and base_offset == known.active_base and size >= known.active_position:
            segment = self._load_behind_checkpoint(known, size)
        elif known is not None and base_offset <= known.active_base:
            if totals is not None and 0 < totals.bytes <= size:
                return Segment(self.pool, self.directory, totals)
            end_offset = known.recovery_point if next_base is None else next_base
            segment = self._verify_all(base_offset, size, _Trust.SYNCED, end_offset)
        else:
            trust = _Trust.UNSYNCED if known is not None else _Trust.UNKNOWN
            segment = self._verify_all(base_offset, size, trust, next_base)
        if totals is not None:
            self._compare(segment, totals)
        if next_base is not None:
            segment.seal()
        return segment

    def _compare(self, segment: Segment, totals: SegmentTotals) -> None:
        """Compare a sealed segment with the totals in its index, which include the gap after it."""
        if segment.next_offset >= totals.end_offset or self.report.cut_reason is not None:
            return
        if segment.size < totals.bytes:
            if self.checkpoint is None or segment.next_offset >= self.checkpoint.recovery_point:
                return  # not synced: power loss may have removed its end
            missing = totals.bytes - segment.size
            self.report.damage.append(
                Damage(segment.path, segment.size, missing, segment.next_offset, totals.end_offset, "cut short")
            )
        segment.next_offset = totals.end_offset

    def _index_path(self, base_offset: int) -> str:
        return segment_path(self.directory, base_offset, INDEX_SUFFIX)

    def _load_behind_checkpoint(self, known: LogCheckpoint, size: int) -> Segment:
        base_offset = known.active_base
        last_timestamp = known.last_timestamp if known.active_records else -1
        totals = SegmentTotals(
            base_offset,
            known.recovery_point,
            known.active_position,
            known.active_records,
            known.active_first_timestamp,
            last_timestamp,
        )
        segment = Segment(self.pool, self.directory, totals)
        index = index_file.read_index(self.pool.disk, self._index_path(base_offset), base_offset)
        if index is None or (known.active_position and not len(index)):
            self.report.rebuilt.append(f"{base_offset:020d}{INDEX_SUFFIX}")
            index = segment.rebuild_index()
            segment.start_index(index)
        segment.adopt_index(index)
        if size > known.active_position:
            index.truncate(known.active_position)
            _SegmentVerification(self, segment, size, known.last_timestamp, known.last_epoch).run(_Trust.UNSYNCED, None)
        return segment

    def _verify_all(self, base_offset: int, size: int, trust: _Trust, end_offset: int | None) -> Segment:
        """Verify the whole segment, because its index or the checkpoint is unusable, or it is not synced."""
        if size and trust is not _Trust.UNSYNCED:
            self.report.rebuilt.append(f"{base_offset:020d}{INDEX_SUFFIX}")
        segment = Segment(self.pool, self.directory, SegmentTotals(base_offset, base_offset))
        segment.adopt_index(SparseIndex())
        _SegmentVerification(self, segment, size, 0, 0).run(trust, end_offset)
        return segment

    def cut(self, segment: Segment, size: int, reason: str) -> None:
        segment.file.truncate(segment.size)
        self.report.cut_bytes += size - segment.size
        self.report.cut_from_offset = segment.next_offset
        self.report.cut_reason = reason

    def _drop(self, bases: list[int]) -> None:
        """Remove the segments after a truncation, newest first, so that a crash leaves no gap."""
        for base_offset in reversed(bases):
            path = segment_path(self.directory, base_offset)
            self.report.cut_bytes += self.pool.disk.file_size(path)
            self.report.removed_files.append(f"{base_offset:020d}{LOG_SUFFIX}")
            self.pool.disk.remove(path)
            self.pool.disk.remove(self._index_path(base_offset))


class _SegmentVerification:
    """Verifies the batches of a segment after its known size, and adds the good ones to it."""

    def __init__(self, loader: _Loader, segment: Segment, size: int, timestamp: int, epoch: int) -> None:
        self.loader = loader
        self.segment = segment
        self.size = size
        self.position = segment.size
        self.next_offset = segment.next_offset
        self.timestamp = timestamp
        self.epoch = epoch
        self.gap = segment.size == 0  # the first batch of a segment may follow a gap

    def run(self, trust: _Trust, end_offset: int | None) -> None:
        """`end_offset` is the known end of the segment, for damage that reaches the end."""
        segment = self.segment
        segment.size = self.size  # so that all of it can be read
        reason = self._walk()
        while reason is not None:
            segment.next_offset = self.next_offset if end_offset is None else end_offset
            damage = find_damage(segment, self.position, reason)
            is_tail = damage.end_position >= self.size and end_offset is None
            if trust is _Trust.UNSYNCED or (trust is _Trust.UNKNOWN and is_tail):
                break
            self.loader.report.damage.append(damage)
            self.position, self.next_offset, self.gap = damage.end_position, damage.next_offset, True
            reason = self._walk()
        segment.size = self.position
        segment.next_offset = self.next_offset
        segment.last_timestamp = self.timestamp if segment.records else -1
        if reason is not None:
            self.loader.cut(segment, self.size, reason)
        segment.start_index(segment.index())

    def _walk(self) -> str | None:
        """Verify up to the end of the file or the first bad batch; return the fault of that batch."""
        segment, index = self.segment, self.segment.index()
        for start, data in segment.chunks(self.position, self.size):
            marks: list[tuple[int, int, int]] = []
            found = records.scan(
                data,
                self.next_offset,
                self.timestamp,
                self.epoch,
                gap=self.gap,
                position=start,
                interval=limits.INDEX_INTERVAL_BYTES,
                marks=marks,
                epochs=self.loader.epochs,
            )
            index.add_spaced(marks, limits.INDEX_INTERVAL_BYTES)
            self.loader.report.verified_bytes += found.end
            self.position, self.next_offset = start + found.end, found.next_offset
            self.timestamp, self.epoch = found.last_timestamp, found.last_epoch
            self.gap = self.gap and not found.batches
            segment.records += found.records
            if segment.first_timestamp < 0:
                segment.first_timestamp = found.first_timestamp
            if found.reason is not None:
                return found.reason
        return None


def _note_missing(segments: list[Segment], checkpoint: LogCheckpoint | None, report: RecoveryReport) -> None:
    """Report gaps between segments, unless compaction may have made them."""
    if checkpoint is not None and checkpoint.compacted:
        return
    for before, behind in pairwise(segments):
        if behind.base_offset > before.next_offset:
            report.missing.append((before.next_offset, behind.base_offset))
