"""The small files beside a log: what is written is read, and any other bytes are nothing, or the longest good part, never a crash."""

from __future__ import annotations

import json
from dataclasses import asdict, fields

from hypothesis import given
from hypothesis import strategies as st

from bascule.errors import FormatTooNew
from bascule.kernels.wire.checksum import crc32c
from bascule.log.core.epochs import EpochCache, EpochEntry
from bascule.log.core.sparse_index import SparseIndex
from bascule.log.disk import checkpoint as checkpoints
from bascule.log.disk.checkpoint import LogCheckpoint
from bascule.log.recovery.leader_epochs import EPOCHS_FILE, LeaderEpochs, read_epochs
from bascule.log.segments import index_file
from bascule.log.segments.index_file import ENTRY_BYTES, HEADER_BYTES, SegmentTotals
from tests.simulation.log.simulated_disk import SimulatedDisk

INT64 = st.integers(-1, (1 << 63) - 1)
UINT63 = st.integers(0, (1 << 63) - 1)
CHECKPOINTS = st.builds(
    LogCheckpoint,
    **{field.name: st.booleans() if isinstance(field.default, bool) else INT64 for field in fields(LogCheckpoint)},
)
TOTALS = st.builds(SegmentTotals, UINT63, UINT63, UINT63, UINT63, INT64, INT64)


@st.composite
def index_entries(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    offsets = sorted(draw(st.sets(UINT63, max_size=20)))
    positions = sorted(draw(st.sets(st.integers(0, (1 << 32) - 1), min_size=len(offsets), max_size=len(offsets))))
    times = sorted(draw(st.lists(UINT63, min_size=len(offsets), max_size=len(offsets))))
    return list(zip(offsets, positions, times, strict=True))


def whole_index(totals: SegmentTotals, entries: list[tuple[int, int, int]]) -> bytes:
    return index_file.encode_header(totals) + b"".join(index_file.encode_entry(*entry) for entry in entries)


# ── index ────────────────────────────────────────────────────────────────────────────────────────


@given(TOTALS, index_entries())
def test_an_index_is_read_as_it_was_written(totals: SegmentTotals, entries: list[tuple[int, int, int]]) -> None:
    disk = SimulatedDisk()
    index_file.write_index(disk, "/index", totals, SparseIndex(entries))
    assert disk.content("/index") == whole_index(totals, entries)
    assert index_file.read_totals(disk, "/index", totals.base_offset) == totals
    found = index_file.read_index(disk, "/index", totals.base_offset)
    assert found is not None and list(found) == entries
    assert index_file.read_index(disk, "/index", totals.base_offset ^ 1) is None


@given(TOTALS, index_entries(), st.integers(0, 1 << 20))
def test_of_an_index_that_was_cut_the_whole_entries_count(
    totals: SegmentTotals, entries: list[tuple[int, int, int]], at: int
) -> None:
    data = whole_index(totals, entries)
    data = data[: at % (len(data) + 1)]
    assert index_file.decode_header(data, totals.base_offset) == (totals if len(data) >= HEADER_BYTES else None)
    assert list(index_file.decode_entries(data)) == entries[: max(0, len(data) - HEADER_BYTES) // ENTRY_BYTES]


@given(TOTALS, index_entries(), st.integers(0, 1 << 20), st.integers(1, 255))
def test_of_an_index_with_a_bad_byte_the_entries_before_it_count(
    totals: SegmentTotals, entries: list[tuple[int, int, int]], at: int, flip: int
) -> None:
    data = bytearray(whole_index(totals, entries))
    at %= len(data)
    data[at] ^= flip
    in_header = at < HEADER_BYTES
    assert index_file.decode_header(bytes(data), totals.base_offset) == (None if in_header else totals)
    good = len(entries) if in_header else (at - HEADER_BYTES) // ENTRY_BYTES
    assert list(index_file.decode_entries(bytes(data))) == entries[:good]


@given(st.binary(max_size=300), INT64)
def test_any_bytes_can_be_taken_for_an_index(data: bytes, base_offset: int) -> None:
    assert index_file.decode_header(data, base_offset) is None
    assert len(index_file.decode_entries(data)) == 0 or data == bytes(len(data))


# ── checkpoint ───────────────────────────────────────────────────────────────────────────────────


@given(CHECKPOINTS)
def test_a_checkpoint_is_read_as_it_was_written(checkpoint: LogCheckpoint) -> None:
    disk = SimulatedDisk()
    checkpoints.write_checkpoint(disk, "", checkpoint)
    assert checkpoints.read_checkpoint(disk, "") == checkpoint
    assert asdict(checkpoint).keys() <= set(disk.content("/checkpoint").decode().split('"'))


@given(CHECKPOINTS, st.integers(0, 1 << 20), st.integers(1, 255))
def test_a_checkpoint_with_a_bad_byte_is_none(checkpoint: LogCheckpoint, at: int, flip: int) -> None:
    data = bytearray(checkpoints.encode(checkpoint))
    data[at % len(data)] ^= flip
    assert checkpoints.decode(bytes(data), "path") is None


@given(CHECKPOINTS, st.integers(0, 1 << 20), st.binary(min_size=1, max_size=5))
def test_a_checkpoint_that_was_cut_or_has_more_behind_it_is_none(
    checkpoint: LogCheckpoint, at: int, more: bytes
) -> None:
    data = checkpoints.encode(checkpoint)
    assert checkpoints.decode(data[: at % len(data)], "path") is None
    assert checkpoints.decode(data + more, "path") is None


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5)),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=5), inside, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from([field.name for field in fields(LogCheckpoint)])


@given(st.one_of(st.binary(max_size=50), JSON.map(str).map(str.encode)))
def test_any_bytes_can_be_taken_for_a_checkpoint(data: bytes) -> None:
    assert checkpoints.decode(data, "path") is None


@given(st.one_of(JSON, st.dictionaries(NAMES, JSON, max_size=4).map(lambda content: {"version": 1, **content})))
def test_a_good_checksum_makes_no_good_checkpoint(content: object) -> None:
    """Anything at all under a right checksum: a checkpoint of the right kinds, none, or a version that is not known."""
    line = json.dumps(content).encode()
    data = b"%s\n%08x\n" % (line, crc32c(line))
    try:
        found = checkpoints.decode(data, "path")
    except FormatTooNew:
        assert isinstance(content, dict) and content["version"] != 1
        return
    if found is not None:
        assert all(type(value) is type(getattr(LogCheckpoint(), name)) for name, value in asdict(found).items())


# ── leader epochs ────────────────────────────────────────────────────────────────────────────────

ENTRIES = st.lists(st.tuples(st.integers(1, (1 << 64) - 1), UINT63), max_size=8)


def epoch_file(entries: list[tuple[int, int]]) -> tuple[SimulatedDisk, EpochCache]:
    disk = SimulatedDisk()
    epochs = LeaderEpochs(disk, "", EpochCache())
    for epoch, start_offset in sorted(entries):
        if epoch > epochs.latest:
            epochs.enter(epoch, start_offset)
    epochs.save()
    return disk, EpochCache(EpochEntry(entry.epoch, entry.start_offset) for entry in epochs.entries)


@given(ENTRIES)
def test_epochs_are_read_as_they_were_written(entries: list[tuple[int, int]]) -> None:
    disk, cache = epoch_file(entries)
    assert (read_epochs(disk, "") or EpochCache()) == cache


@given(ENTRIES.filter(bool), st.integers(0, 1 << 20), st.integers(1, 255))
def test_an_epoch_file_with_a_bad_byte_is_none(entries: list[tuple[int, int]], at: int, flip: int) -> None:
    disk, _ = epoch_file(entries)
    data = bytearray(disk.content(f"/{EPOCHS_FILE}"))
    data[at % len(data)] ^= flip
    disk.put(f"/{EPOCHS_FILE}", bytes(data))
    assert read_epochs(disk, "") is None


@given(st.binary(max_size=100))
def test_any_bytes_can_be_taken_for_an_epoch_file(data: bytes) -> None:
    disk = SimulatedDisk()
    disk.put(f"/{EPOCHS_FILE}", data)
    assert read_epochs(disk, "") is None
