"""Compaction: of each key only the newest record stays, and a tombstone only for its time.

A run learns the newest offset of every key in the dirty part of the log and pours the sealed segments through the sieve, the oldest
first: a tombstone goes after everything it had deleted. Memory is bounded by the key map; when it is full, the run does what it has
learned and another one goes on from there. Damaged segments are left alone.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field, replace

from bascule.errors import StateError
from bascule.kernels.records import keymap, records
from bascule.kernels.records.keymap import KeyMap
from bascule.log.cleaning.rewriting import Rewrite
from bascule.log.core.compaction import FOREVER, Horizon, group_segments, horizon, is_due
from bascule.log.partition.partition_log import PartitionLog
from bascule.log.segments.damage import find_damage
from bascule.log.segments.segment import Segment

KEY_MAP_BYTES_MIN = 4096
KEY_MAP_BYTES_PER_KEY = 33  # a slot of 24 bytes, three quarters of them in use, rounded up


class CleaningInterrupted(Exception):
    """Truncation, deletion or closing wants the segments: stop and leave the rest as it is."""


@dataclass(slots=True)
class CompactionReport:
    runs: int = 0
    kept: int = 0
    removed: int = 0
    segments_before: int = 0
    segments_after: int = 0
    cleaned_to: int = 0
    keys: int = 0
    interrupted: bool = False
    left_alone: list[str] = field(default_factory=list)
    """Segments that hold damage, with what is wrong."""


def compact(log: PartitionLog, now_ns: int | None = None, *, force: bool = False) -> CompactionReport | None:
    """Compact the log if there is anything to gain (or `force`). None when there is not."""
    log.open()
    now_ns = log.clock() if now_ns is None else now_ns
    with log.maintenance:
        log.interrupt_cleaning.clear()
        facts = [segment.facts for segment in log.segments]
        if len(facts) < 2 or not (force or is_due(facts, log.cleaned_to, log.tombstones_due_ns, now_ns)):
            return None
        report = CompactionReport(segments_before=len(facts))
        log.compacted = True  # in the checkpoint before there is a hole, or a crash would make it look like a loss
        log.settle()
        try:
            _run_until_clean(log, now_ns, report)
        except CleaningInterrupted:
            report.interrupted = True
        _finish(log)
        report.segments_after = len(log.segments)
        report.cleaned_to = log.cleaned_to
        return report


def _run_until_clean(log: PartitionLog, now_ns: int, report: CompactionReport) -> None:
    while True:
        before = log.cleaned_to
        run = _CompactionRun(log, now_ns, report)
        if not run.learn():
            run.sift()
            return
        run.sift()
        if log.cleaned_to <= before:
            return  # young records hold it back; the next tick goes on


def _finish(log: PartitionLog) -> None:
    with log.lock:
        log.epochs.clear_earliest(log.segments.oldest.base_offset)
    log.write_checkpoint()


class _CompactionRun:
    def __init__(self, log: PartitionLog, now_ns: int, report: CompactionReport) -> None:
        self.log = log
        self.now_ns = now_ns
        self.report = report
        self.keys = KeyMap(_key_map_bytes(log), os.urandom(16))
        self.end_offset = log.high_watermark + 1
        self.first_offset = self.learned_to = log.cleaned_to
        self.first_held = FOREVER
        self.oldest_tombstone = FOREVER
        report.runs += 1

    def _check_interrupt(self) -> None:
        if self.log.interrupt_cleaning.is_set():
            raise CleaningInterrupted

    # ── learning ─────────────────────────────────────────────────────────────────────────────────

    def learn(self) -> bool:
        """Fill the key map from the dirty part, the active segment included. True when it is full before the end."""
        for segment in self.log.segments:
            if segment.next_offset > self.log.cleaned_to and self._learn_segment(segment):
                break
        self.report.keys = max(self.report.keys, self.keys.count)
        return self.learned_to < min(self.end_offset, self.log.segments.active.base_offset)

    def _learn_segment(self, segment: Segment) -> bool:
        """True when there is nothing more to learn: the map is full, or the high watermark is reached."""
        position, size = 0, segment.size
        while position < size:
            self._check_interrupt()
            start, data = next(segment.chunks(position, size))
            found = self.keys.learn(data, self.end_offset, first_offset=self.first_offset)
            self.learned_to = max(self.learned_to, found.next_offset)
            position = start + found.stop
            if found.full or (found.reason is None and found.stop < len(data)):
                return True
            if found.reason == "sealed":
                length = records.read_header(data, found.stop).length
                if self._learn_sealed(data[found.stop : found.stop + length]):
                    return True
                position += length
            elif found.reason is not None:
                position = find_damage(segment, position, found.reason).end_position
        return False

    def _learn_sealed(self, batch: bytes) -> bool:
        try:
            clear = self.log.sealer.open(batch)
        except ValueError:
            return False  # damage: the sieve says so
        found = self.keys.learn(clear, self.end_offset, first_offset=self.first_offset)
        self.learned_to = max(self.learned_to, found.next_offset)
        return found.full or (found.reason is None and found.stop == 0)

    # ── sifting ──────────────────────────────────────────────────────────────────────────────────

    def sift(self) -> None:
        log = self.log
        lines = horizon(self.learned_to, log.options.compaction, self.now_ns)
        sealed = [segment for segment in log.segments.sealed if segment.base_offset < self.learned_to]
        groups = group_segments([segment.facts for segment in sealed], log.options.segment_bytes_max)
        for first, stop in groups:
            lines = self._sift_group(tuple(sealed[first:stop]), lines)
        log.compacted = True
        log.cleaned_to = max(log.cleaned_to, min(self.learned_to, self.first_held, log.segments.active.base_offset))
        # Tombstones that stay because of damage are over their time already: they are not looked at again with every tick.
        since = self.now_ns if self.report.left_alone else self.oldest_tombstone
        due = max(since, self.oldest_tombstone) + log.options.compact_tombstone_retention_ns
        log.tombstones_due_ns = None if self.oldest_tombstone == FOREVER else due + 1

    def _sift_group(self, group: tuple[Segment, ...], lines: Horizon) -> Horizon:
        """Returns the lines for what lies behind: there a tombstone stays when damage may hide what it deletes."""
        rewrite = Rewrite(self.log, group)
        counts = self.report.kept, self.report.removed
        try:
            for segment in group:
                _Sieve(self, rewrite, lines).pour(segment)
            rewrite.commit()
            return lines
        except _Damaged as damaged:
            self.report.kept, self.report.removed = counts
            if len(group) == 1:
                self.report.left_alone.append(str(damaged))
                return replace(lines, tombstones_before=0)
        finally:
            rewrite.discard()
        for segment in group:
            lines = self._sift_group((segment,), lines)
        return lines


def _key_map_bytes(log: PartitionLog) -> int:
    """Room for every dirty record to have a key of its own, but never more than the log may use."""
    dirty = sum(segment.records for segment in log.segments if segment.next_offset > log.cleaned_to)
    return min(log.options.compact_memory_bytes, KEY_MAP_BYTES_MIN + dirty * KEY_MAP_BYTES_PER_KEY)


class _Damaged(Exception):
    pass


class _Sieve:
    """Pours one segment into a rewrite."""

    def __init__(self, run: _CompactionRun, rewrite: Rewrite, lines: Horizon) -> None:
        self.run = run
        self.rewrite = rewrite
        self.lines = lines
        self.gap = False

    def pour(self, segment: Segment) -> None:
        position, size = 0, segment.size
        while position < size:
            self.run._check_interrupt()
            start, data = next(segment.chunks(position, size))
            self._mark_hole(data)
            out, found = self._sift(data)
            self._pass_on(memoryview(data)[: found.stop], out, found)
            position = start + found.stop
            if found.reason == "sealed":
                length = records.read_header(data, found.stop).length
                self._pour_sealed(data[found.stop : found.stop + length], segment.path)
                position += length
            elif found.reason is not None:
                raise _Damaged(find_damage(segment, position, found.reason).describe())

    def _mark_hole(self, data: bytes) -> None:
        """Between segments a hole needs no mark; when they become one file it does."""
        with contextlib.suppress(records.BatchError):  # damage: the sieve says so
            if self.rewrite.size and records.read_header(data).base_offset > self.rewrite.next_offset:
                self.gap = True

    def _sift(self, data: bytes | memoryview) -> tuple[bytearray, keymap.Sifted]:
        out = bytearray()
        found = keymap.sift(
            self.run.keys,
            data,
            out,
            end_offset=self.lines.end_offset,
            keep_since=self.lines.keep_since,
            tombstones_before=self.lines.tombstones_before,
            gap=self.gap and self.rewrite.size > 0,
        )
        self.run.report.kept += found.kept
        self.run.report.removed += found.removed
        self.run.first_held = min(self.run.first_held, found.first_held)
        self.run.oldest_tombstone = min(self.run.oldest_tombstone, found.oldest_tombstone)
        return out, found

    def _pass_on(self, data: bytes | memoryview, out: bytearray, found: keymap.Sifted) -> None:
        if found.removed or self.gap:
            self.rewrite.change(out)
        else:
            self.rewrite.keep(data)
        if found.stop:
            self.gap = found.gap

    def _pour_sealed(self, batch: bytes, path: str) -> None:
        log = self.run.log
        try:
            clear = log.sealer.open(batch)
        except ValueError as error:
            raise _Damaged(f"{path}: the batch of offset {records.read_header(batch).base_offset}: {error}") from None
        out, found = self._sift(clear)
        if found.removed or self.gap:
            self.rewrite.change(log.sealer.seal(bytes(out)) if out else b"")
        else:
            self.rewrite.keep(batch)
        self.gap = found.gap


def rewrap_keys(log: PartitionLog) -> int:
    """Wrap the data keys of all batches with the current master key, so that the previous one is needed no more. Returns how many."""
    log.roll()
    log.settle()
    renewed = 0
    with log.maintenance:
        log.interrupt_cleaning.clear()
        for segment in log.segments.sealed:
            rewrite = Rewrite(log, (segment,))
            try:
                renewed += _rewrap_segment(log, segment, rewrite)
                rewrite.commit()
            finally:
                rewrite.discard()
    return renewed


def _rewrap_segment(log: PartitionLog, segment: Segment, rewrite: Rewrite) -> int:
    renewed = 0
    for start, data in segment.chunks():
        at = 0
        while at < len(data):
            if log.interrupt_cleaning.is_set():
                raise StateError(f"wrapping the keys of {log.directory} anew was interrupted", hint="do it again")
            try:
                batch = memoryview(data)[at : at + records.check(data, at)]
            except records.BatchError as error:
                raise find_damage(segment, start + at, error.reason).error() from None
            wrapped = log.sealer.rewrap(batch)
            rewrite.keep(batch) if wrapped is None else rewrite.change(wrapped)
            renewed += wrapped is not None
            at += len(batch)
    return renewed
