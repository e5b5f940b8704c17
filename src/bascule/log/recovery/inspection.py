"""Reads the files of a log without opening the log: it changes nothing, and a broker may be using them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bascule.errors import NotALog
from bascule.kernels.records import records
from bascule.kernels.records.records import BatchHeader
from bascule.log.core.sparse_index import SparseIndex
from bascule.log.disk import checkpoint as checkpoints
from bascule.log.disk.checkpoint import LogCheckpoint, read_checkpoint
from bascule.log.disk.files import FilePool
from bascule.log.disk.operations import PosixDisk, read_file
from bascule.log.recovery.leader_epochs import EPOCHS_FILE, read_epochs
from bascule.log.segments.damage import Damage, walk
from bascule.log.segments.index_file import SegmentTotals
from bascule.log.segments.segment import INDEX_SUFFIX, LOG_SUFFIX, Segment, segment_path

_SEGMENT_NAME = re.compile(r"(\d{20})\.log")


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """Position and header of one good batch."""

    position: int
    header: BatchHeader


@dataclass(slots=True)
class SegmentReport:
    """The content of a segment's file."""

    file: str
    base_offset: int
    bytes: int
    batches: int = 0
    records: int = 0
    end_offset: int = 0
    first_timestamp: int = -1
    last_timestamp: int = -1
    damage: list[Damage] = field(default_factory=list)


@dataclass(slots=True)
class LogInspection:
    directory: str
    segments: list[SegmentReport]
    checkpoint: LogCheckpoint | None
    notes: list[str]
    """Findings that the next open repairs."""

    @property
    def damage(self) -> list[Damage]:
        return [damage for segment in self.segments for damage in segment.damage]


def find_logs(directory: Path) -> list[Path]:
    """Return the partition directories at or below `directory`. Raises NotALog if there are none."""
    if not directory.exists():
        raise NotALog(f"{directory} does not exist", hint="give the directory of a partition, or a data directory")
    found = sorted({path.parent for path in directory.rglob(f"*{LOG_SUFFIX}") if _SEGMENT_NAME.fullmatch(path.name)})
    if not found:
        raise NotALog(
            f"{directory} holds no partition log", hint="give the directory of a partition, or a data directory"
        )
    return found


def inspect_log(directory: Path) -> LogInspection:
    """Read the whole log and check all checksums, and all records that are not compressed or encrypted."""
    disk = PosixDisk(read_only=True)
    notes = []
    checkpoint = read_checkpoint(disk, str(directory))
    if checkpoint is None:
        notes.append(f"`{checkpoints.FILE_NAME}` is missing or damaged: the next open verifies the whole log")
    if read_epochs(disk, str(directory)) is None and read_file(disk, f"{directory}/{EPOCHS_FILE}") is not None:
        notes.append(f"`{EPOCHS_FILE}` is damaged: the next open rebuilds it")
    notes += [
        f"`{path.name}` is left over from an interrupted cleaning: the next open completes or removes it"
        for path in sorted(directory.iterdir())
        if path.name.endswith((".cleaned", ".swap", ".tmp"))
    ]
    segments = [_inspect_segment(segment) for segment in open_segments(directory)]
    notes += [
        f"the index of `{Path(report.file).name}` is missing: the next open rebuilds it"
        for report in segments
        if not Path(segment_path(str(directory), report.base_offset, INDEX_SUFFIX)).exists()
    ]
    return LogInspection(str(directory), segments, checkpoint, notes)


def open_segments(directory: Path) -> Iterator[Segment]:
    """Yield the segments of the directory, oldest first, for reading only."""
    pool = FilePool(PosixDisk(read_only=True), 4)
    for path in sorted(directory.iterdir()):
        if found := _SEGMENT_NAME.fullmatch(path.name):
            base_offset = int(found[1])
            segment = Segment(pool, str(directory), SegmentTotals(base_offset, base_offset, path.stat().st_size))
            segment.adopt_index(SparseIndex())  # the index file is not used
            yield segment
            segment.close()


def walk_batches(segment: Segment) -> Iterator[BatchFacts | Damage]:
    """Yield all good batches and all damage in the order of the file."""
    for found in walk(segment, strict=True):
        if isinstance(found, Damage):
            yield found
            continue
        at = 0
        while at < len(found.data):
            header = records.read_header(found.data, at)
            yield BatchFacts(found.position + at, header)
            at += header.length


def _inspect_segment(segment: Segment) -> SegmentReport:
    report = SegmentReport(segment.path, segment.base_offset, segment.size, end_offset=segment.base_offset)
    for found in walk_batches(segment):
        if isinstance(found, Damage):
            report.damage.append(found)
            continue
        header = found.header
        report.batches += 1
        report.records += header.count
        report.end_offset = header.last_offset + 1
        report.last_timestamp = header.max_timestamp
        if report.first_timestamp < 0:
            report.first_timestamp = header.first_timestamp
    return report
