"""A log on a simulated disk, a random workload, power that fails anywhere, and a memory of what must have survived."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from bascule.errors import CorruptBatch
from bascule.kernels.records.records import Record
from bascule.log import LogOptions, PartitionLog
from bascule.log.cleaning.cleaner import apply_retention
from bascule.log.cleaning.compactor import compact
from bascule.log.recovery.report import RecoveryReport
from bascule.log.segments.slices import BatchSlice
from tests.simulation.log.simulated_disk import PowerLoss, SimulatedDisk
from tests.support.logs import (
    KEYS,
    SECOND,
    Draft,
    ManualSyncer,
    Stored,
    batch_of,
    epoch_of,
    placed,
    random_draft,
    read_around_damage,
)

DIRECTORY: Final = "/data/streams/power/0"
START: Final = 1_700_000_000 * SECOND


def random_options(rng: random.Random) -> LogOptions:
    return LogOptions(
        segment_bytes_max=rng.choice((1, 700, 1500, 4000)),
        retention_records_max=rng.choice((1, 10, 40)),
        compact=True,
        compact_min_lag_ns=rng.choice((0, 0, 20 * SECOND)),
        compact_tombstone_retention_ns=rng.choice((0, 1000 * SECOND)),
        compression=rng.choice(("none", "none", "zstd")),
        encryption=rng.random() < 0.1,
    )


@dataclass
class Memory:
    """What was written, and what of it may be missing."""

    history: dict[int, Stored] = field(default_factory=dict)
    """Everything written and not truncated."""

    attempted: list[Stored] = field(default_factory=list)
    """Records of an append that did not return."""

    failed: set[Stored] = field(default_factory=set)
    """Records of appends that were refused. Should the disk refuse to cut them off as well, power loss may bring them back."""

    synced_end: int = 0
    retained_from: int = 0
    """Retention may have deleted what lies below."""

    compacted_to: int = 0
    """Compaction has looked at what lies below."""

    gaps: set[int] = field(default_factory=set)
    """Offsets that the leader's compaction had removed before this log got them."""

    truncating: int | None = None
    """A truncation that did not return: later records are there or not."""

    resetting_to: int | None = None
    """Where a reset that did not return wanted to begin: of what was there before, anything may be left."""

    absent: set[int] = field(default_factory=set)
    """What was rightly missing once. It may come back, where a removal was not synced; it need not."""

    damaged: set[int] = field(default_factory=set)
    """Offsets that were rightly reported as damage once: nothing repairs them."""

    @property
    def promised_end(self) -> int:
        return self.synced_end if self.truncating is None else min(self.synced_end, self.truncating)


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.options = random_options(self.rng)
        self.disk = SimulatedDisk(seed)
        self.disk.make_directory("/data")
        self.disk.sync_directory("/")
        self.memory = Memory()
        self.now = START
        self.epoch = 1
        self.crashes = 0
        self.has_bad_disk = False
        self.doing = "nothing"
        self.log = self._new_log()

    def _new_log(self) -> PartitionLog:
        return PartitionLog(
            DIRECTORY, self.options, disk=self.disk, syncer=ManualSyncer(), keys=KEYS, clock=lambda: self.now
        )

    # ── living ───────────────────────────────────────────────────────────────────────────────────

    def live(self, steps: int) -> None:
        """Open the log and work on it; the power may fail before all steps are done."""
        try:
            self.reopen()
            for _ in range(steps):
                action = self.rng.choices(ACTIONS, WEIGHTS)[0]
                self.doing = action.__name__
                action(self)
                self.memory.synced_end = self.log.synced_end_offset
                self.now += self.rng.choice((0, 1, SECOND, 10 * SECOND))
            self.doing = "nothing"
        except PowerLoss:
            pass

    def reopen(self) -> None:
        self.doing = f"opening after {self.doing.removeprefix('opening after ')}"
        self.log = self._new_log()
        report = self.log.open()
        with self.disk.readable():
            self.check(report)

    def append(self) -> None:
        log, memory, rng = self.log, self.memory, self.rng
        drafts = [random_draft(rng, value_bytes_max=40) for _ in range(rng.choice((1, 1, 2, 5)))]
        if rng.random() < 0.1:
            drafts.append(Draft(b"large", rng.randbytes(rng.randrange(1500))))
        if rng.random() < 0.1:
            self.epoch += rng.randint(1, 3)
        stamp = max(self.now, log.last_timestamp)
        memory.attempted = placed(drafts, log.log_end_offset, max(self.epoch, log.latest_epoch), stamp)
        appended = log.append(batch_of(drafts), leader_epoch=max(self.epoch, log.latest_epoch))
        assert appended.base_offset == memory.attempted[0].offset
        memory.history.update((stored.offset, stored) for stored in memory.attempted)
        memory.absent -= {stored.offset for stored in memory.attempted}
        memory.damaged -= {stored.offset for stored in memory.attempted}
        memory.attempted = []

    def sync(self) -> None:
        self.log.sync()

    def checkpoint(self) -> None:
        self.log.write_checkpoint(durable=self.rng.random() < 0.2)

    def roll(self) -> None:
        self.log.roll()

    def commit(self) -> None:
        self.log.advance_high_watermark(self.rng.randint(0, self.log.log_end_offset))

    def begin_epoch(self) -> None:
        self.epoch = max(self.epoch, self.log.latest_epoch) + 1
        self.log.begin_epoch(self.epoch)

    def truncate(self) -> None:
        log, memory = self.log, self.memory
        offset = self.rng.randint(max(log.high_watermark + 1, log.log_start_offset), log.log_end_offset)
        memory.truncating = offset
        log.truncate(offset)
        assert log.log_end_offset <= offset
        memory.truncating = None
        memory.history = {at: stored for at, stored in memory.history.items() if at < log.log_end_offset}
        memory.damaged = {at for at in memory.damaged if at < log.log_end_offset}

    def reset(self) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        self._reset_to(self.rng.choice((start, end, end + self.rng.randrange(5))))

    def _reset_to(self, offset: int) -> None:
        log, memory = self.log, self.memory
        memory.truncating = 0
        memory.resetting_to = offset
        log.reset_to(offset)
        assert (log.log_start_offset, log.log_end_offset) == (offset, offset)
        self.memory = Memory(synced_end=offset, retained_from=offset)

    def reset_anywhere(self) -> None:
        """Also to offsets that retention has removed: another leader still has them."""
        start, end = self.log.log_start_offset, self.log.log_end_offset
        self._reset_to(self.rng.choice((start, end, end + self.rng.randrange(5), self.rng.randint(0, start))))

    def replicate(self) -> None:
        """Append batches of a leader; compaction may have left gaps before them."""
        log, memory, rng = self.log, self.memory, self.rng
        data, base_offset, epoch, stamp = b"", log.log_end_offset, max(self.epoch, log.latest_epoch), self.now
        stamp = max(stamp, log.last_timestamp)
        memory.attempted = []
        for _ in range(rng.randint(1, 3)):
            gap = rng.choice((0, 0, 0, rng.randrange(4)))
            memory.gaps |= set(range(base_offset, base_offset + gap))
            base_offset += gap
            epoch += rng.choice((0, 0, 0, 1))
            drafts = [random_draft(rng, value_bytes_max=40)._replace(time_delta=0) for _ in range(rng.randint(1, 3))]
            memory.attempted += placed(drafts, base_offset, epoch, stamp)
            with batch_of(drafts).stamp(base_offset, epoch, stamp) as batch:
                data += bytes(batch)
            base_offset += len(drafts)
        self.epoch = epoch
        if log.segments.oldest.is_empty:
            memory.retained_from = max(memory.retained_from, memory.attempted[0].offset)  # an empty log moves its start
        try:
            log.append_replicated(data)
        finally:
            written = [stored for stored in memory.attempted if stored.offset < log.log_end_offset]
            memory.history.update((stored.offset, stored) for stored in written)
            memory.absent -= {stored.offset for stored in written}
            memory.damaged -= {stored.offset for stored in written}
            memory.attempted = memory.attempted[len(written) :]

    def query(self) -> None:
        """A read that the disk refuses fails; every other one has the result that it has on a good disk."""
        log, rng = self.log, self.rng
        offset, size = rng.randint(0, log.log_end_offset), rng.choice((1, 300, 1 << 20))
        at = rng.choice((START, self.now, log.last_timestamp, rng.randint(START, self.now)))
        ask = rng.choice(
            (
                lambda: _content(log.read(offset, bytes_max=size, committed=False)),
                lambda: _content(log.read_reverse(offset, bytes_max=size, committed=False)),
                lambda: log.earliest_offset_at(at),
                lambda: log.oldest_offset,
            )
        )
        found = _outcome(ask)
        with self.disk.readable():
            assert found == _outcome(ask)

    def retain(self) -> None:
        self.memory.retained_from = self.log.segments.active.base_offset
        apply_retention(self.log, self.now)

    def compact(self) -> None:
        self.memory.compacted_to = max(self.memory.compacted_to, self.log.high_watermark + 1)
        compact(self.log, self.now, force=self.rng.random() < 0.5)

    def restart(self) -> None:
        """A clean stop and a start."""
        self.log.close()
        assert self.disk.open_handles == 0 or self.has_bad_disk
        self.reopen()

    def die(self) -> None:
        """The process is killed, another one starts."""
        self._after_death(self.disk.kill())
        self.reopen()

    # ── dying ────────────────────────────────────────────────────────────────────────────────────

    def lose_power(self) -> None:
        self._after_death(self.disk.crash(self.rng))

    def kill(self) -> None:
        self._after_death(self.disk.kill())

    def _after_death(self, disk: SimulatedDisk) -> None:
        self.crashes += 1
        self.disk = disk

    # ── what must hold ───────────────────────────────────────────────────────────────────────────

    def _is_known_damage(self, offsets: set[int]) -> bool:
        """Reported before. Where the index is lost, the report also takes in the hole that compaction left behind the damage."""
        more = offsets - self.memory.damaged
        return not more or (more != offsets and max(more) < self.memory.compacted_to)

    def _may_be_cut(self, offset: int) -> bool:
        """A truncation that did not return may also take the hole away that was left in front of it: damage, or what was compacted."""
        memory = self.memory
        is_hole = offset < memory.compacted_to or offset in memory.gaps
        return offset in memory.damaged or (memory.truncating is not None and is_hole)

    def check(self, report: RecoveryReport) -> None:
        """After every open: compare with the memory, then remember what is there now."""
        log, memory = self.log, self.memory
        found, damage = read_around_damage(log)
        reported = [set(range(one.first_offset, one.next_offset or 0)) for one in damage]
        reported += [set(range(one.first_offset, one.next_offset)) for one in report.damage]
        reported += [set(range(first, end)) for first, end in report.missing]
        excused = set().union(*reported)
        if "checkpoint" not in report.rebuilt:
            # Only without a checkpoint recovery cannot tell what was never synced from what has been damaged.
            assert all(self._is_known_damage(one) for one in reported), report.lines()
        self._check_found(found)
        if memory.resetting_to is None:
            self._check_absent({stored.offset: stored for stored in found}, excused)
        begins = [
            memory.resetting_to or 0,
            memory.retained_from,
            memory.compacted_to,
            *(at + 1 for at in memory.damaged),
        ]
        start = max(begins)
        while start in memory.gaps:
            start += 1
        assert log.log_start_offset <= start
        promised = memory.promised_end
        while promised > log.log_end_offset and self._may_be_cut(promised - 1):
            promised -= 1
        possible = [*self._known(), *(stored.offset for stored in memory.failed)]
        ends = [promised, *(at + 1 for at in possible)]
        if memory.truncating is not None:
            ends += [memory.resetting_to or 0, memory.synced_end]  # it may not have begun
        assert promised <= log.log_end_offset <= max(ends)
        assert log.high_watermark < log.log_end_offset
        self._remember(found, excused)

    def _known(self) -> dict[int, Stored]:
        return {**self.memory.history, **{stored.offset: stored for stored in self.memory.attempted}}

    def _check_found(self, found: list[Stored]) -> None:
        known = self._known()
        for stored in found:
            is_known = known.get(stored.offset) == stored or stored in self.memory.failed
            assert is_known, f"{stored} was never written, or something else was"
        for before, behind in pairwise(found):
            assert before.offset < behind.offset and before.timestamp <= behind.timestamp
        entries = self.log.epoch_entries
        for stored in found:
            assert epoch_of(entries, stored.offset) == stored.leader_epoch, entries
        offsets = {stored.offset for stored in found}
        whole = {stored.offset for stored in self.memory.attempted}
        assert whole <= offsets or not whole & offsets or self.memory.failed, "half of a batch was kept"

    def _check_absent(self, found: dict[int, Stored], excused: set[int]) -> None:
        """From the newest to the oldest, so that it is known what came behind a record that is not there."""
        memory = self.memory
        newest_found = max(found, default=-1)
        behind: dict[bytes, bool] = {}
        for offset, stored in sorted(self._known().items(), reverse=True):
            if offset not in found and offset not in memory.absent and offset < max(memory.promised_end, newest_found):
                gone = offset < memory.retained_from or self._may_be_compacted(stored, behind)
                unsynced = offset >= memory.promised_end and offset in excused
                assert gone or unsynced, f"{stored} is lost"
            is_damaged = offset in memory.damaged or offset in excused
            counts = offset < min(memory.compacted_to, self.log.log_end_offset) and not is_damaged
            if stored.key is not None and counts:
                if offset in found and stored.key in behind:
                    assert behind[stored.key], f"{stored} is back although its tombstone has gone"
                behind[stored.key] = behind.get(stored.key, False) or offset in found

    def _may_be_compacted(self, stored: Stored, behind: dict[bytes, bool]) -> bool:
        if stored.key is None or stored.offset >= self.memory.compacted_to:
            return False
        expired = stored.value is None and self.options.compact_tombstone_retention_ns == 0
        return stored.key in behind or expired

    def _remember(self, found: list[Stored], excused: set[int]) -> None:
        memory, log = self.memory, self.log
        if memory.attempted and found and found[-1].offset >= memory.attempted[0].offset:
            memory.history.update((stored.offset, stored) for stored in memory.attempted)
        memory.history = {at: stored for at, stored in memory.history.items() if at < log.log_end_offset}
        memory.absent = set(memory.history) - {stored.offset for stored in found}
        memory.damaged = {at for at in memory.damaged | excused if at < log.log_end_offset}
        memory.damaged -= {stored.offset for stored in found}
        memory.history.update((stored.offset, stored) for stored in found)
        memory.attempted = []
        memory.failed = set()
        memory.truncating = None
        memory.resetting_to = None
        memory.retained_from = max(memory.retained_from, log.log_start_offset)
        memory.synced_end = log.synced_end_offset
        memory.compacted_to = min(memory.compacted_to, log.log_end_offset)
        self.epoch = max(1, log.latest_epoch)


def _content(found: BatchSlice | None) -> tuple[int, list[Record]] | None:
    return None if found is None else (found.next_offset, found.records())


def _outcome(ask: Callable[[], object]) -> object:
    """What was found, or what is damaged."""
    try:
        return ask()
    except CorruptBatch as error:
        return error.message


ACTIONS: Final[list[Callable[[World], None]]] = [
    World.append,
    World.sync,
    World.checkpoint,
    World.roll,
    World.commit,
    World.begin_epoch,
    World.truncate,
    World.reset,
    World.retain,
    World.compact,
    World.restart,
    World.die,
]
WEIGHTS: Final = (40, 10, 6, 6, 10, 3, 5, 1, 4, 8, 3, 4)
MORE_ACTIONS: Final = [*ACTIONS, World.replicate, World.reset_anywhere, World.query]
MORE_WEIGHTS: Final = (*WEIGHTS, 20, 3, 20)
