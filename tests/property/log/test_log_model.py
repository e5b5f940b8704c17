"""A real log against a model of a few lines, under any sequence of operations: the same records, epochs and answers after each."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    get_state_machine_test,
    initialize,
    invariant,
    precondition,
    rule,
)

from bascule.errors import (
    CallerError,
    EpochFenced,
    InvalidRecord,
    LogEmpty,
    OffsetOutOfRange,
    RejectedBatch,
    TimestampOutOfRange,
)
from bascule.kernels.records import records
from bascule.log import LogOptions, PartitionLog, ReverseReader
from bascule.log.cleaning.cleaner import apply_retention
from bascule.log.cleaning.compactor import compact
from bascule.log.disk.operations import PosixDisk
from bascule.log.recovery.report import RecoveryReport
from tests.property.log.log_model import Model
from tests.support.logs import (
    KEYS,
    SECOND,
    Draft,
    ManualSyncer,
    Stored,
    as_stored,
    batch_of,
    placed,
    read_all,
    small_limits,
)

MEMORY = "/dev/shm"
"""Files, but no disk to wait for."""

NAMES = st.sampled_from((b"a", b"b", b"a-name-of-some-length"))
HEADERS = st.lists(st.tuples(NAMES, st.binary(max_size=10)), max_size=3).map(tuple)
DRAFTS = st.builds(
    Draft,
    key=st.sampled_from((None, b"", b"k1", b"k2", b"k3", b"k4")),
    value=st.one_of(st.none(), st.binary(max_size=30), st.integers(100, 900).map(bytes)),
    headers=HEADERS,
    subject=st.sampled_from((b"s", b"s", b"other")),
    reply=st.sampled_from((b"", b"", b"reply")),
    time_delta=st.sampled_from((0, 0, 1, SECOND)),
)
BATCHES = st.lists(DRAFTS, min_size=1, max_size=6)
STEPS = st.sampled_from((-SECOND, 0, 1, SECOND, 30 * SECOND))
BUDGETS = st.sampled_from((1, 60, 300, 5000, 1 << 20))
LIMITS = st.sampled_from((0, 0, 1, 5, 20))

OPTIONS = st.builds(
    LogOptions,
    segment_bytes_max=st.sampled_from((1, 300, 1000, 5000, 1 << 20)),
    retention_age_max_ns=st.sampled_from((0, 0, 1, 20 * SECOND)),
    retention_records_max=LIMITS,
    retention_bytes_max=st.sampled_from((0, 0, 1, 500, 3000)),
    compact=st.just(True),
    compact_min_lag_ns=st.sampled_from((0, 0, 10 * SECOND)),
    compact_tombstone_retention_ns=st.sampled_from((0, 10 * SECOND, 1000 * SECOND)),
    compact_memory_bytes=st.sampled_from((4096, 1 << 20)),
    compression=st.sampled_from(("none", "zstd")),
    encryption=st.booleans(),
)


class QuickDisk(PosixDisk):
    """Nothing here loses power."""

    def sync(self, handle: int) -> None:
        pass

    def sync_directory(self, path: str) -> None:
        pass


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="bascule-model-", dir=MEMORY if Path(MEMORY).is_dir() else None))
        self.limits = small_limits(index_interval=150, scan_chunk=1000)
        self.limits.__enter__()
        self.lives = 0
        self.now = 1000 * SECOND

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close()
        self.limits.__exit__(None, None, None)
        shutil.rmtree(self.home)

    @initialize(options=OPTIONS)
    def begin(self, options: LogOptions) -> None:
        self.model = Model(options)
        self.directory = self.home / "log-0"
        self._open()

    def _open(self) -> RecoveryReport:
        self.log = PartitionLog(
            str(self.directory),
            self.model.options,
            disk=QuickDisk(),
            syncer=ManualSyncer(),
            keys=KEYS,
            clock=lambda: self.now,
        )
        return self.log.open()

    @property
    def bases(self) -> list[int]:
        return [segment.base_offset for segment in self.log.segments]

    # ── writing ──────────────────────────────────────────────────────────────────────────────────

    @rule(drafts=BATCHES, step=STEPS, new_epochs=st.sampled_from((0, 0, 0, 1, 5)), explicit=st.booleans())
    def append(self, drafts: list[Draft], step: int, new_epochs: int, explicit: bool) -> None:
        self.now += step
        epoch = self.model.latest_epoch + new_epochs
        base_offset = self.model.end_offset
        appended = self.log.append(
            batch_of(drafts),
            leader_epoch=epoch if explicit or new_epochs else None,
            timestamp=self.now if explicit else None,
        )
        self.model.append(drafts, epoch, self.now, self.bases)
        assert (appended.base_offset, appended.last_offset) == (base_offset, self.model.end_offset - 1)
        assert appended.timestamp == self.model.records[-len(drafts)].timestamp - drafts[0].time_delta

    @rule(batches=st.lists(BATCHES, min_size=2, max_size=6), step=STEPS)
    def fill_segments(self, batches: list[list[Draft]], step: int) -> None:
        """Many small ones, so that there is something to merge and to delete."""
        for drafts in batches:
            self.append(drafts, step, 0, explicit=False)
            self.roll()
        self.commit(0)

    @rule(
        batches=st.lists(BATCHES, min_size=1, max_size=3), leader=OPTIONS, step=STEPS, gap=st.sampled_from((0, 0, 0, 3))
    )
    def append_replicated(self, batches: list[list[Draft]], leader: LogOptions, step: int, gap: int) -> None:
        """Bytes as another log gives them, sealed as that one does."""
        self.now += step
        model, source = self.model, self._leader(leader, self.model.end_offset + gap)
        expected: list[list[Stored]] = []
        for number, drafts in enumerate(batches):
            epoch = max(1, model.latest_epoch) + number
            stamp = max(self.now, source.last_timestamp, model.last_timestamp)
            expected.append(placed(drafts, source.log_end_offset, epoch, stamp))
            source.append(batch_of(drafts), leader_epoch=epoch, timestamp=stamp)
        data = raw_bytes(source)
        source.delete()
        appended = self.log.append_replicated(data)
        assert appended is not None and appended.base_offset == expected[0][0].offset
        end_offset = model.end_offset
        for stored in expected:
            model.enter_epoch(stored[0].leader_epoch, end_offset)
            end_offset = stored[-1].offset + 1
        model.take([one for stored in expected for one in stored], self.bases)

    def _leader(self, options: LogOptions, offset: int) -> PartitionLog:
        source = PartitionLog(
            str(self.home / "leader"),
            options,
            disk=QuickDisk(),
            syncer=ManualSyncer(),
            keys=KEYS,
            clock=lambda: self.now,
        )
        source.reset_to(offset)
        return source

    @rule(byte=st.integers(0, 1 << 16))
    def damaged_bytes_are_refused(self, byte: int) -> None:
        source = self._leader(LogOptions(), self.model.end_offset)
        source.append(batch_of([Draft(b"k1", b"v")]), leader_epoch=self.model.latest_epoch + 1, timestamp=self.now)
        data = bytearray(raw_bytes(source))
        source.delete()
        data[byte % len(data)] ^= 1 << byte % 8
        with pytest.raises(RejectedBatch):
            self.log.append_replicated(bytes(data))

    @rule(ahead=st.integers(1, 3))
    def begin_epoch(self, ahead: int) -> None:
        self.log.begin_epoch(self.model.latest_epoch + ahead)
        self.model.enter_epoch(self.model.latest_epoch + ahead, self.model.end_offset)

    @precondition(lambda self: self.model.latest_epoch > 1)
    @rule()
    def a_deposed_leader_is_fenced(self) -> None:
        with pytest.raises(EpochFenced):
            self.log.append(batch_of([Draft(None, b"")]), leader_epoch=self.model.latest_epoch - 1)

    @rule()
    def an_empty_batch_is_refused(self) -> None:
        with pytest.raises(InvalidRecord):
            self.log.append(batch_of([]))

    @rule()
    def roll(self) -> None:
        before = self.bases
        self.log.roll()
        expected = before if self.log.segments.oldest.is_empty and len(before) == 1 else None
        assert self.log.segments.active.is_empty
        assert expected is None or self.bases == expected
        self.model.align(self.bases)

    @rule(back=st.integers(-5, 20))
    def commit(self, back: int) -> None:
        offset = self.model.end_offset - back
        self.model.commit(offset)
        assert self.log.advance_high_watermark(offset) == self.model.high_watermark

    @rule()
    def sync(self) -> None:
        self.log.sync()
        assert self.log.synced_end_offset == self.model.end_offset

    # ── removing ─────────────────────────────────────────────────────────────────────────────────

    @rule(step=STEPS)
    def retain(self, step: int) -> None:
        self.now += step
        sizes = {segment.base_offset: segment.size for segment in self.log.segments}
        report = apply_retention(self.log, self.now)
        assert report.deleted == self.model.retain(self.now, sizes)
        assert not report.failures

    @rule(data=st.data(), step=STEPS, force=st.booleans())
    def compact(self, data: st.DataObject, step: int, force: bool) -> None:
        self.now += step
        if data.draw(st.booleans()) and self.model.records:
            # exactly when a record has served its time, or a moment before or after
            options = self.model.options
            served = data.draw(st.sampled_from([stored.timestamp for stored in self.model.records]))
            wait = data.draw(st.sampled_from((options.compact_min_lag_ns, options.compact_tombstone_retention_ns)))
            self.now = served + wait + data.draw(st.sampled_from((-1, 0, 1)))
        left = self.model.compacted(self.now)
        report = compact(self.log, self.now, force=force)
        if report is None:
            return
        assert not report.left_alone and not report.interrupted
        removed = len(self.model.records) - len(left)
        self.model.replace(left, self.bases)
        assert (report.removed, self.log.record_count) == (removed, len(left))

    @rule(back=st.integers(0, 12))
    def truncate(self, back: int) -> None:
        offset = max(0, self.model.end_offset - back)
        if offset <= self.model.high_watermark and offset < self.model.end_offset:
            with pytest.raises(CallerError):
                self.log.truncate(offset)
            return
        before = self.model.last_timestamp
        has_begun = self.model.epochs and self.model.epochs[-1][1] >= self.model.end_offset
        self.log.truncate(offset)
        if offset < self.model.end_offset or has_begun:  # an epoch without records goes too
            self.model.truncate(offset, self.bases)
            latest = max((stored.timestamp for stored in self.model.records), default=0)
            assert latest <= self.log.last_timestamp <= before
            self.model.last_timestamp = self.log.last_timestamp
            assert self.log.synced_end_offset == self.model.end_offset

    @rule(ahead=st.integers(-3, 10))
    def reset(self, ahead: int) -> None:
        offset = max(0, self.model.end_offset + ahead)
        self.log.reset_to(offset)
        self.model.reset(offset)

    # ── starting again ───────────────────────────────────────────────────────────────────────────

    @rule()
    def close_and_open(self) -> None:
        self.log.close()
        assert self._open().is_clean
        assert self.log.synced_end_offset == self.model.end_offset

    @rule(checkpoint=st.booleans())
    def die_and_open(self, checkpoint: bool) -> None:
        """As if the process had been killed: another one begins with the files as they are."""
        if checkpoint:
            self.log.write_checkpoint()
        self.lives += 1
        corpse, self.directory = self.directory, self.home / f"log-{self.lives}"
        shutil.copytree(corpse, self.directory)
        self.log.close()
        shutil.rmtree(corpse)
        report = self._open()
        assert not report.damage and not report.missing and report.cut_reason is None, report.lines()
        assert self.log.high_watermark <= self.model.high_watermark
        assert not checkpoint or self.log.high_watermark == self.model.high_watermark
        self.model.high_watermark = self.log.high_watermark
        self.model.forget_begun(self.log.epoch_entries)

    # ── asking ───────────────────────────────────────────────────────────────────────────────────

    @rule(back=st.integers(-2, 40), budget=BUDGETS, committed=st.booleans())
    def read(self, back: int, budget: int, committed: bool) -> None:
        offset = max(0, self.model.end_offset - back)
        if offset > self.model.end_offset and not committed:
            with pytest.raises(OffsetOutOfRange):
                self.log.read(offset, committed=False)
            return
        found: list[Stored] = []
        expected = self.model.readable(offset, committed=committed)
        while (piece := self.log.read(offset, bytes_max=budget, committed=committed)) is not None:
            header = records.read_header(piece.data)
            assert piece.nbytes <= budget or piece.nbytes == header.length
            assert piece.next_offset > offset
            found += map(as_stored, piece.records())
            offset = piece.next_offset
        assert found == expected

    @rule(back=st.integers(-2, 40), stop=st.integers(0, 30), budget=BUDGETS, committed=st.booleans())
    def read_backwards(self, back: int, stop: int, budget: int, committed: bool) -> None:
        model = self.model
        offset, stop_offset = max(0, model.end_offset - back), max(0, model.end_offset - stop)
        newest = model.high_watermark if committed else model.end_offset - 1
        if not model.records or newest < 0:
            with pytest.raises(LogEmpty):
                ReverseReader(self.log, offset, committed=committed)
            return
        reader = ReverseReader(self.log, offset, stop_offset=stop_offset, committed=committed, bytes_max=budget)
        expected = [one for one in model.readable(stop_offset, committed=committed) if one.offset <= offset]
        assert list(map(as_stored, reader)) == expected[::-1]

    @rule(data=st.data())
    def look_up_times(self, data: st.DataObject) -> None:
        times = sorted({stored.timestamp for stored in self.model.records} | {0, self.now})
        timestamp = data.draw(st.sampled_from(times)) + data.draw(st.sampled_from((-1, 0, 1)))
        assert self.log.earliest_offset_at(timestamp) == self.model.earliest_at(timestamp)
        latest = self.model.latest_at(timestamp)
        if latest is None:
            with pytest.raises(TimestampOutOfRange):
                self.log.latest_offset_at(timestamp)
        else:
            assert self.log.latest_offset_at(timestamp) == latest

    # ── always ───────────────────────────────────────────────────────────────────────────────────

    @precondition(lambda self: hasattr(self, "log"))
    @invariant()
    def everything_is_as_in_the_model(self) -> None:
        log, model = self.log, self.model
        stored = model.records
        assert read_all(log) == stored
        assert read_all(log, committed=True) == model.readable(0, committed=True)
        assert log.record_count == len(stored)
        assert (log.log_end_offset, log.newest_offset) == (model.end_offset, model.end_offset - 1)
        assert log.oldest_offset == (stored[0].offset if stored else -1)
        assert log.high_watermark == model.high_watermark
        assert log.last_timestamp == model.last_timestamp
        assert [(entry.epoch, entry.start_offset) for entry in log.epoch_entries] == model.epochs
        assert log.latest_epoch == model.latest_epoch
        assert log.size_bytes == sum(path.stat().st_size for path in self.directory.glob("*.log"))
        assert self.bases == [segment.base_offset for segment in model.segments]


def raw_bytes(source: PartitionLog) -> bytes:
    pieces: list[Any] = []
    offset = source.log_start_offset
    while (piece := source.read(offset, bytes_max=200, committed=False)) is not None:
        pieces.append(bytes(piece.data))
        offset = piece.next_offset
    return b"".join(pieces)


def effort(examples: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def run(seed: int, examples: int) -> None:
    """Without a seed of its own every run would try the same examples: Hypothesis takes it from the text of the test."""
    hypothesis.seed(seed)(get_state_machine_test(LogMachine, settings=effort(examples)))()


@pytest.mark.parametrize("part", range(2))
def test_a_log_and_its_model_agree(part: int) -> None:
    run(part, 100)


@pytest.mark.soak
def test_a_log_and_its_model_agree_for_a_long_time(soak_seconds: float) -> None:
    stop = time.monotonic() + soak_seconds
    while time.monotonic() < stop:
        seed = random.SystemRandom().randrange(1 << 32)
        print(f"seed {seed}")
        run(seed, 500)
