"""The periodic work on a log: roll what is too old, delete what retention no longer keeps, compact what is superseded."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

from bascule.errors import DiskFull, StorageError
from bascule.log.cleaning.compactor import CompactionReport, compact
from bascule.log.core.retention import plan_retention
from bascule.log.partition.partition_log import PartitionLog


@dataclass(slots=True)
class CleaningReport:
    rolled: bool = False
    deleted: list[int] = field(default_factory=list)
    """Base offsets of the segments that retention took away."""

    failures: list[str] = field(default_factory=list)
    """Files that could not be removed. Nobody sees them any more; the next tick tries again."""

    compaction: CompactionReport | None = None


def clean(log: PartitionLog, now_ns: int | None = None) -> CleaningReport:
    """One tick. When a roll is due, that is all: what was sealed now is looked at with the next tick."""
    now_ns = log.clock() if now_ns is None else now_ns
    if log.roll_if_due():
        return CleaningReport(rolled=True)
    report = apply_retention(log, now_ns)
    if log.options.compact:
        log.producers.save()
        report.compaction = compact(log, now_ns)
    return report


def apply_retention(log: PartitionLog, now_ns: int | None = None) -> CleaningReport:
    """Delete whole segments from the oldest on, until the log is within its limits. The active one always stays."""
    log.open()
    now_ns = log.clock() if now_ns is None else now_ns
    report = CleaningReport()
    with log.maintenance:
        count = plan_retention([segment.facts for segment in log.segments], log.options.retention, now_ns)
        if count:
            log.producers.save()
            log.sync()
            _write_down(log)
            report.deleted = _drop(log, count)
        _unlink_doomed(log, report)
        if count:
            _write_down(log)
    return report


def _drop(log: PartitionLog, count: int) -> list[int]:
    """Make the segments invisible, and make sure that they stay so: the new start of the log is written down before a file goes."""
    with log.lock:
        dropped = log.segments.drop_oldest(count)
        for segment in dropped:
            segment.retire()
        log.doomed.extend(dropped)
    _write_down(log)
    return [segment.base_offset for segment in dropped]


def _write_down(log: PartitionLog) -> None:
    """Where the log begins, then which epochs it knows: a segment that came back would hold records of epochs that nobody knows.

    On a full disk neither can be written before something is deleted; a crash in between then brings back what is not yet deleted.
    """
    with contextlib.suppress(DiskFull):
        log.write_checkpoint(durable=True)
        with log.lock:
            log.epochs.clear_earliest(log.segments.oldest.base_offset)


def _unlink_doomed(log: PartitionLog, report: CleaningReport) -> None:
    for segment in tuple(log.doomed):
        try:
            segment.remove()
        except StorageError as error:
            report.failures.append(error.message)
        else:
            log.doomed.remove(segment)
