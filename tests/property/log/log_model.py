"""What a partition log must do, as a list and a few lines: the specification, once more and without files."""

from __future__ import annotations

from dataclasses import dataclass, field

from bascule.log import LogOptions
from bascule.log.core.epochs import EpochEntry
from tests.support.logs import Draft, Stored, placed


@dataclass
class ModelSegment:
    base_offset: int
    records: list[Stored] = field(default_factory=list)


@dataclass
class Model:
    """Which batch went into which segment is told by the log: sizes are its own affair. Everything else is decided here."""

    options: LogOptions
    segments: list[ModelSegment] = field(default_factory=lambda: [ModelSegment(0)])
    end_offset: int = 0
    high_watermark: int = -1
    last_timestamp: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=list)
    """(epoch, first offset written in it)"""

    @property
    def records(self) -> list[Stored]:
        return [stored for segment in self.segments for stored in segment.records]

    @property
    def start_offset(self) -> int:
        return self.segments[0].base_offset

    @property
    def latest_epoch(self) -> int:
        return self.epochs[-1][0] if self.epochs else 0

    # ── writing ──────────────────────────────────────────────────────────────────────────────────

    def append(self, drafts: list[Draft], epoch: int, timestamp: int, bases: list[int]) -> None:
        self.enter_epoch(epoch, self.end_offset)
        self.take(placed(drafts, self.end_offset, epoch, max(timestamp, self.last_timestamp)), bases)

    def take(self, stored: list[Stored], bases: list[int]) -> None:
        self.end_offset = stored[-1].offset + 1
        self.last_timestamp = stored[-1].timestamp
        self.replace(self.records + stored, bases)

    def replace(self, stored: list[Stored], bases: list[int]) -> None:
        """These are the records now, in segments that begin at `bases`."""
        assert bases == sorted(set(bases)) and bases[-1] <= self.end_offset
        assert not stored or bases[0] <= stored[0].offset
        ends = [*bases[1:], self.end_offset + 1]
        self.segments = [
            ModelSegment(base, [one for one in stored if base <= one.offset < end])
            for base, end in zip(bases, ends, strict=True)
        ]
        self.forget_epochs_below(self.start_offset)

    def align(self, bases: list[int]) -> None:
        self.replace(self.records, bases)

    def enter_epoch(self, epoch: int, start_offset: int) -> None:
        if epoch > self.latest_epoch:
            while self.epochs and self.epochs[-1][1] >= start_offset:
                self.epochs.pop()
            self.epochs.append((epoch, start_offset))

    def commit(self, offset: int) -> None:
        self.high_watermark = max(self.high_watermark, min(offset, self.end_offset - 1))

    # ── removing ─────────────────────────────────────────────────────────────────────────────────

    def truncate(self, offset: int, bases: list[int]) -> None:
        self.end_offset = offset = max(offset, self.start_offset)
        self.forget_epochs_from(offset)
        self.high_watermark = min(self.high_watermark, offset - 1)
        self.replace([stored for stored in self.records if stored.offset < offset], bases)

    def reset(self, offset: int) -> None:
        latest = self.latest_epoch
        self.segments = [ModelSegment(offset)]
        self.end_offset = offset
        self.high_watermark = offset - 1
        self.last_timestamp = 0
        self.forget_epochs_from(offset)
        self.forget_epochs_below(offset)
        assert self.latest_epoch <= latest

    def retain(self, now: int, sizes: dict[int, int]) -> list[int]:
        """Whole committed segments from the oldest on, never the active one; age, records, bytes. Returns the base offsets of those
        that go."""
        options, count = self.options, 0
        sealed = self.segments[:-1]
        if options.retention_age_max_ns:
            young = [n for n, one in enumerate(sealed) if last_time(one) >= now - options.retention_age_max_ns]
            count = young[0] if young else len(sealed)
        for limit, measure in (
            (options.retention_records_max, {one.base_offset: len(one.records) for one in self.segments}),
            (options.retention_bytes_max, sizes),
        ):
            while (
                limit and count < len(sealed) and sum(measure[one.base_offset] for one in self.segments[count:]) > limit
            ):
                count += 1
        while count and self.segments[count].base_offset > self.high_watermark + 1:
            count -= 1
        gone, self.segments = self.segments[:count], self.segments[count:]
        if gone:
            self.forget_epochs_below(self.start_offset)
        return [segment.base_offset for segment in gone]

    def forget_epochs_from(self, offset: int) -> None:
        self.epochs = [(epoch, start) for epoch, start in self.epochs if start < offset]

    def forget_begun(self, found: tuple[EpochEntry, ...]) -> None:
        """After a crash an epoch that has no record may be another one than before, or none: nobody depended on it."""
        written = [(epoch, start) for epoch, start in self.epochs if start < self.end_offset]
        begun = [(entry.epoch, entry.start_offset) for entry in found if entry.start_offset >= self.end_offset]
        assert all(epoch <= self.latest_epoch for epoch, _ in begun)
        self.epochs = written + begun

    def forget_epochs_below(self, offset: int) -> None:
        below = [epoch for epoch, start in self.epochs if start <= offset]
        if below:
            self.epochs = [(below[-1], offset)] + [(epoch, start) for epoch, start in self.epochs if start > offset]

    def compacted(self, now: int) -> list[Stored]:
        """What a compaction that is not held up by anything leaves."""
        committed = [stored for stored in self.records if stored.offset <= self.high_watermark]
        newest = {stored.key: stored.offset for stored in committed if stored.key is not None}
        active = self.segments[-1].base_offset
        return [
            stored
            for stored in self.records
            if stored.offset >= active or stored.offset > self.high_watermark or self._stays(stored, newest, now)
        ]

    def _stays(self, stored: Stored, newest: dict[bytes, int], now: int) -> bool:
        options = self.options
        if stored.key is None:
            return True
        if options.compact_min_lag_ns and stored.timestamp >= now - options.compact_min_lag_ns:
            return True
        if newest[stored.key] > stored.offset:
            return False
        return stored.value is not None or stored.timestamp >= now - options.compact_tombstone_retention_ns

    # ── answers ──────────────────────────────────────────────────────────────────────────────────

    def earliest_at(self, timestamp: int) -> int:
        return next((stored.offset for stored in self.records if stored.timestamp >= timestamp), self.end_offset)

    def latest_at(self, timestamp: int) -> int | None:
        return next((stored.offset for stored in reversed(self.records) if stored.timestamp <= timestamp), None)

    def readable(self, offset: int, *, committed: bool) -> list[Stored]:
        end = self.high_watermark + 1 if committed else self.end_offset
        return [stored for stored in self.records if offset <= stored.offset < end]


def last_time(segment: ModelSegment) -> int:
    return segment.records[-1].timestamp if segment.records else -1
