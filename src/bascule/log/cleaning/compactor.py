"""Compaction: keeps the newest record of each key, and removes tombstones after their retention time.

A run reads the newest offset of every key in the dirty part of the log into a key map, and rewrites the sealed segments without older
records, oldest segment first, so that a tombstone is removed after all records that it deletes. The key map bounds the memory: when it
is full, the run rewrites with the keys it has, and another run follows. Damaged segments are not changed.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field, replace

from bascule.kernels.records import keymap, records
from bascule.kernels.records.keymap import KeyMap
from bascule.log.cleaning.rewriting import Rewrite
from bascule.log.core.compaction import FOREVER, Horizon, group_segments, horizon, is_due
from bascule.log.partition.partition_log import PartitionLog
from bascule.log.segments.damage import find_damage
from bascule.log.segments.segment import Segment

KEY_MAP_BYTES_MIN = 4096
KEY_MAP_BYTES_PER_KEY = 33  # a slot has 24 bytes, and three quarters of the slots are used


class CleaningInterrupted(Exception):
    """Stops a run because the log is being truncated, deleted or closed."""


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
    """Damaged segments, with a description of the damage."""


def compact(log: PartitionLog, now_ns: int | None = None, *, force: bool = False) -> CompactionReport | None:
    """Compact the log if that can remove records, or with `force`. Returns None if it did not run."""
    log.open()
    now_ns = log.clock() if now_ns is None else now_ns
    with log.maintenance:
        log.interrupt_cleaning.clear()
        facts = [segment.facts for segment in log.segments]
        if len(facts) < 2 or not (force or is_due(facts, log.cleaned_to, log.tombstones_due_ns, now_ns)):
            return None
        report = CompactionReport(segments_before=len(facts))
        log.compacted = True  # in the checkpoint before the first gap, which recovery would report as missing
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
            return  # records within the minimum lag remain; the next tick continues


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
        """Fill the key map from the dirty part, the active segment included. True if it is full before the end."""
        for segment in self.log.segments:
            if segment.next_offset > self.log.cleaned_to and self._learn_segment(segment):
                break
        self.report.keys = max(self.report.keys, self.keys.count)
        return self.learned_to < min(self.end_offset, self.log.segments.active.base_offset)

    def _learn_segment(self, segment: Segment) -> bool:
        """Read the keys of one segment. True if the map is full or the high watermark is reached."""
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
            return False  # damage: _Sieve reports it
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
        # Tombstones that stay because of damage have expired already; they must not cause a run with every tick.
        since = self.now_ns if self.report.left_alone else self.oldest_tombstone
        due = max(since, self.oldest_tombstone) + log.options.compact_tombstone_retention_ns
        log.tombstones_due_ns = None if self.oldest_tombstone == FOREVER else due + 1

    def _sift_group(self, group: tuple[Segment, ...], lines: Horizon) -> Horizon:
        """Rewrite one group. Returns the bounds for later groups: after damage, which may hide older records, tombstones stay."""
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
    """Return the size of a map with one key per dirty record, at most the limit of the log."""
    dirty = sum(segment.records for segment in log.segments if segment.next_offset > log.cleaned_to)
    return min(log.options.compact_memory_bytes, KEY_MAP_BYTES_MIN + dirty * KEY_MAP_BYTES_PER_KEY)


class _Damaged(Exception):
    pass


class _Sieve:
    """Copies the records of a segment that stay into a rewrite."""

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
        """Mark a gap between segments that become one file."""
        with contextlib.suppress(records.BatchError):  # damage: _Sieve reports it
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
