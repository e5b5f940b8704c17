"""The periodic work on a log: roll an old segment, delete segments by retention, compact."""

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
    """Base offsets of the segments that retention removed."""

    failures: list[str] = field(default_factory=list)
    """Files that could not be removed. They are no longer part of the log; the next tick tries again."""

    compaction: CompactionReport | None = None


def clean(log: PartitionLog, now_ns: int | None = None, *, has_new_limits: bool = False) -> CleaningReport:
    """Run one tick. If a roll is due, the tick only rolls; the next one handles the sealed segment."""
    now_ns = log.clock() if now_ns is None else now_ns
    if log.roll_if_due() or (has_new_limits and _rolled_for_new_limits(log, now_ns)):
        return CleaningReport(rolled=True)
    report = apply_retention(log, now_ns)
    if log.options.compact:
        log.producers.save()
        report.compaction = compact(log, now_ns)
    return report


def _rolled_for_new_limits(log: PartitionLog, now_ns: int) -> bool:
    """Roll the active segment if it alone exceeds limits that an operator has lowered, so that the next tick can remove it."""
    limit, active = log.options, log.segments.active
    is_beyond = bool(active.size) and (
        0 < limit.retention_bytes_max < active.size
        or 0 < limit.retention_records_max < active.records
        or 0 < limit.retention_age_max_ns <= now_ns - active.last_timestamp
    )
    if is_beyond:
        log.roll()
    return is_beyond


def apply_retention(log: PartitionLog, now_ns: int | None = None) -> CleaningReport:
    """Delete whole committed segments, oldest first, until the log is within its limits. The active one always stays."""
    log.open()
    now_ns = log.clock() if now_ns is None else now_ns
    report = CleaningReport()
    with log.maintenance:
        facts = [segment.facts for segment in log.segments]
        count = plan_retention(facts, log.options.retention, now_ns, log.high_watermark + 1)
        if count:
            log.producers.save()
            log.sync()
            _save_start(log)
            report.deleted = _drop(log, count)
        _unlink_doomed(log, report)
        if count:
            _save_start(log)
    return report


def _drop(log: PartitionLog, count: int) -> list[int]:
    """Remove the segments from the log, and save the new start of the log before a file is removed."""
    with log.lock:
        dropped = log.segments.drop_oldest(count)
        for segment in dropped:
            segment.retire()
        log.doomed.extend(dropped)
    _save_start(log)
    return [segment.base_offset for segment in dropped]


def _save_start(log: PartitionLog) -> None:
    """Save the start of the log, then its epochs: in the other order, a crash could bring back segments of unknown epochs.

    On a full disk neither can be written until files are removed; a crash before that brings back the segments not yet removed.
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
