"""Opens the directory of a log after a stop or a crash.

Records below the checkpoint's recovery point are synced and are not read. Records after it are verified, and the log is truncated at
the first bad byte, because they were not acknowledged as synced. Without a checkpoint all records are verified, and the log is
truncated only where no good batch follows. Damaged data never makes an open fail.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from itertools import pairwise

from bascule.errors import NotALog, StorageError
from bascule.log.disk import checkpoint as checkpoints
from bascule.log.disk.checkpoint import LogCheckpoint, read_checkpoint
from bascule.log.disk.files import FilePool
from bascule.log.disk.operations import Disk
from bascule.log.recovery.leader_epochs import EPOCHS_FILE, LeaderEpochs, begin_epochs_at, load_epochs, read_epochs
from bascule.log.recovery.loading import SegmentLoader
from bascule.log.recovery.report import RecoveryReport
from bascule.log.segments.segment import INDEX_SUFFIX, Segment, segment_path

CLEANED_SUFFIX = ".log.cleaned"
SWAP_SUFFIX = ".swap"

_LOG_NAME = re.compile(r"(\d{20})\.log")
_INDEX_NAME = re.compile(r"(\d{20})\.index")
_SWAP_NAME = re.compile(r"(\d{20})-(\d{20})\.swap")
_OUR_NAME = re.compile(
    r"\d{20}(\.log|\.index|\.log\.cleaned)(\.tmp)?|\d{20}-\d{20}\.swap|(checkpoint|leader-epoch-checkpoint)(\.tmp)?"
)


@dataclass(slots=True)
class RecoveredLog:
    segments: list[Segment]
    epochs: LeaderEpochs
    checkpoint: LogCheckpoint
    last_timestamp: int
    report: RecoveryReport
    is_new: bool = False
    has_checkpoint: bool = False

    @property
    def is_synced(self) -> bool:
        """Whether all records were synced before the log was opened, and every sealed segment since its last change."""
        known, active = self.checkpoint, self.segments[-1]
        ends_there = active.base_offset == known.active_base and active.next_offset <= known.recovery_point
        return ends_there and not known.cutting


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
    on_disk = read_epochs(disk, directory)
    loader = SegmentLoader(pool, directory, checkpoint, on_disk, report)
    segments = loader.load(bases)
    _note_missing(segments, checkpoint, report)
    if checkpoint is not None and segments[-1].next_offset < checkpoint.recovery_point:
        # Synced records are missing. Their offsets must not be used again.
        report.missing.append((segments[-1].next_offset, checkpoint.recovery_point))
        segments[-1].seal()
        segments.append(Segment.create(pool, directory, checkpoint.recovery_point))
    elif segments[-1].has_gap:
        # The segments after it were removed. A batch after a gap begins a segment.
        segments.append(Segment.create(pool, directory, segments[-1].next_offset))
    # Without a checkpoint the loader has seen all batches.
    is_lost = on_disk is None and checkpoint is not None and checkpoint.last_epoch > 0
    epochs = load_epochs(on_disk, segments, loader.epochs, is_lost=is_lost)
    if is_lost:
        report.rebuilt.append(EPOCHS_FILE)
    last_timestamp = max(
        [segment.last_timestamp for segment in segments] + [0 if checkpoint is None else checkpoint.last_timestamp]
    )
    return RecoveredLog(
        segments,
        LeaderEpochs.recovered(disk, directory, epochs, on_disk),
        checkpoint or LogCheckpoint(),
        last_timestamp,
        report,
        has_checkpoint=checkpoint is not None,
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
    # Retention has removed these segments; a crash or a failed unlink left their files. A reset that did not complete may have
    # created an empty one.
    while bases and bases[0] < checkpoint.log_start_offset:
        gone = bases.pop(0)
        with contextlib.suppress(StorageError):  # they are not read; the next open tries again
            disk.remove(segment_path(directory, gone))
            disk.remove(segment_path(directory, gone, INDEX_SUFFIX))
    return bases


def remove_segments(disk: Disk, directory: str) -> None:
    """Remove all segments, newest first: also those that a failed roll or retention left, and that the log does not know."""
    bases = (int(found[1]) for name in disk.list_directory(directory) if (found := _LOG_NAME.fullmatch(name)))
    for base_offset in sorted(bases, reverse=True):
        disk.remove(segment_path(directory, base_offset))
        disk.remove(segment_path(directory, base_offset, INDEX_SUFFIX))


def _new_log(pool: FilePool, directory: str, checkpoint: LogCheckpoint | None, report: RecoveryReport) -> RecoveredLog:
    """Return a log without segments: a new one, or one whose files are missing. Used offsets are not used again."""
    base_offset = 0 if checkpoint is None else checkpoint.recovery_point
    if base_offset:
        report.missing.append((checkpoint.log_start_offset if checkpoint else 0, base_offset))
    on_disk = read_epochs(pool.disk, directory)
    epochs = LeaderEpochs.recovered(pool.disk, directory, begin_epochs_at(on_disk, base_offset), on_disk)
    segment = Segment.create(pool, directory, base_offset)
    last_timestamp = 0 if checkpoint is None else checkpoint.last_timestamp
    return RecoveredLog([segment], epochs, checkpoint or LogCheckpoint(), last_timestamp, report, is_new=True)


def _note_missing(segments: list[Segment], checkpoint: LogCheckpoint | None, report: RecoveryReport) -> None:
    """Report gaps between segments, unless compaction may have made them."""
    if checkpoint is not None and checkpoint.compacted:
        return
    for before, behind in pairwise(segments):
        if behind.base_offset > before.next_offset:
            report.missing.append((before.next_offset, behind.base_offset))
