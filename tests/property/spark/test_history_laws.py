"""The laws of archive and log as one stream, over archives, logs and positions nobody would think of."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from bascule.lake.coverage import Coverage
from bascule.lake.facts import DataFile
from bascule.spark.read.plan import PartitionKey, TriggerLimits, admit
from bascule.spark.read.state import (
    FILES_WEIGHED_MAX,
    PartitionState,
    average,
    clipped,
    file_ranges,
    joined,
    missing,
    parts,
    resume,
    weighed,
)


def data_file(first: int, last: int, size: int) -> DataFile:
    return DataFile(f"data/{first}.parquet", "orders", 1, 0, first, last, last + 1 - first, size, 0, "2026-11-15")


@st.composite
def coverages(draw: st.DrawFn) -> Coverage | None:
    """Files with holes between them, and perhaps one behind the last. Some holes are losses, and a file may lie around them: it was
    merged of those before and behind."""
    position = draw(st.integers(0, 60))
    files: list[DataFile] = []
    lost = []
    for _ in range(draw(st.integers(0, 6))):
        hole = draw(st.sampled_from([0, 0, 0, 1, 7]))
        if files and hole and draw(st.booleans()):
            lost.append((position, position + hole))
        position += hole
        count = draw(st.integers(1, 20))
        files.append(data_file(position, position + count - 1, draw(st.integers(1, 5_000))))
        position += count
        if count > 4 and draw(st.booleans()):
            lost.append((position - count + 1, position - 2))
    if not files:
        return None
    return Coverage(files[0].first_offset, position + draw(st.sampled_from([0, 0, 4])), tuple(files), tuple(lost))


@st.composite
def logs(draw: st.DrawFn) -> PartitionState:
    start = draw(st.integers(0, 150))
    committed = start + draw(st.integers(0, 80))
    end = committed + draw(st.integers(0, 5))
    size = (end - start) * draw(st.integers(0, 300))
    return PartitionState(log_start_offset=start, end_offset=committed, log_end_offset=end, size_bytes=size)


@st.composite
def states(draw: st.DrawFn) -> PartitionState:
    log, coverage = draw(logs()), draw(coverages())
    return joined(log, coverage)


@st.composite
def ranges(draw: st.DrawFn) -> tuple[PartitionState, int, int]:
    state = draw(states())
    start = draw(st.integers(0, state.end_offset))
    return state, start, draw(st.integers(start, max(start, state.end_offset)))


def there(state: PartitionState, start: int, end: int) -> list[int]:
    """Offsets of a range that somebody has, counted one by one."""
    archived = state.archived
    return [at for at in range(start, end) if at >= state.log_start_offset or (archived is not None and at in archived)]


def offsets(found: list[tuple[int, int]]) -> list[int]:
    return [at for start, end in found for at in range(start, end)]


# ── where from ───────────────────────────────────────────────────────────────────────────────────


@given(ranges())
def test_every_offset_that_is_there_is_read_once_and_in_order(found: tuple[PartitionState, int, int]) -> None:
    state, start, end = found
    assert offsets([(part.start, part.end) for part in parts(state, start, end)]) == there(state, start, end)
    assert all(part.start < part.end for part in parts(state, start, end))


@given(ranges())
def test_what_the_archive_has_is_read_from_the_archive(found: tuple[PartitionState, int, int]) -> None:
    state, start, end = found
    for part in parts(state, start, end):
        for at in range(part.start, part.end):
            assert part.is_archived == (state.archived is not None and at in state.archived)


@given(ranges(), st.integers(0, 80))
def test_reading_in_two_steps_is_reading_in_one(found: tuple[PartitionState, int, int], step: int) -> None:
    state, start, end = found
    middle = min(end, start + step)
    both = parts(state, start, middle) + parts(state, middle, end)
    assert offsets([part[:2] for part in both]) == offsets([part[:2] for part in parts(state, start, end)])


@given(ranges())
def test_what_is_missing_is_what_nobody_has(found: tuple[PartitionState, int, int]) -> None:
    state, start, end = found
    gone = missing(state, start, end)
    first = next((at for at in range(start, end) if at not in there(state, start, end)), None)
    assert (gone is None) == (first is None)
    if gone is not None:
        assert gone[0] == first and gone[0] < gone[1] <= end
        assert there(state, *gone) == []
        assert gone[1] == end or there(state, gone[1], gone[1] + 1)


@given(states(), st.integers(0, 300))
def test_reading_goes_on_at_the_next_offset_that_is_there(state: PartitionState, position: int) -> None:
    following = resume(state, position)
    assert following >= position
    assert there(state, position, following) == []
    assert there(state, following, following + 1), "somebody has it, or the log will"


@given(states())
def test_the_first_offset_is_the_oldest_that_is_there(state: PartitionState) -> None:
    assert there(state, 0, state.first_offset) == []
    assert resume(state, state.first_offset) == state.first_offset


@given(logs(), coverages())
def test_nothing_is_read_that_was_not_committed_and_an_archive_takes_nothing_away(
    log: PartitionState, coverage: Coverage | None
) -> None:
    state = joined(log, coverage)
    assert log.end_offset <= state.end_offset <= log.log_end_offset
    assert state.archived is None or state.archived.end <= state.end_offset
    frozen = clipped(log, coverage)
    assert frozen.end_offset == log.end_offset
    assert set(there(log, 0, log.end_offset)) <= set(there(frozen, 0, log.end_offset))


@given(logs(), coverages(), st.integers(0, 100))
def test_retention_takes_nothing_that_is_archived(log: PartitionState, coverage: Coverage | None, removed: int) -> None:
    later = PartitionState(
        log_start_offset=min(log.log_end_offset, log.log_start_offset + removed),
        end_offset=log.end_offset,
        log_end_offset=log.log_end_offset,
        size_bytes=0,
    )
    before, after = clipped(log, coverage), clipped(later, coverage)
    gone = set(there(before, 0, log.end_offset)) - set(there(after, 0, log.end_offset))
    assert all(after.archived is None or at not in after.archived for at in gone)


# ── how much ─────────────────────────────────────────────────────────────────────────────────────


@given(ranges())
def test_a_backlog_covers_its_range_whatever_it_weighs(found: tuple[PartitionState, int, int]) -> None:
    state, start, end = found
    backlog = weighed(state, start, end)
    assert (backlog.start, backlog.end) == (start, end)
    assert backlog.size_bytes >= 0


@given(ranges(), st.integers(1, 20_000))
def test_a_trigger_within_a_limit_of_bytes_reads_no_more_by_the_sizes_of_files(
    found: tuple[PartitionState, int, int], most: int
) -> None:
    state, start, end = found
    key = PartitionKey("orders", 0)
    backlog = weighed(state, start, end)
    stop = admit({key: backlog}, TriggerLimits(bytes_max=most))[key]
    read = weighed(state, start, stop)
    assert read.size_bytes <= max(Fraction(most), read.head_bytes)
    assert stop == end or weighed(state, start, stop + 1).size_bytes > most - 1, "and no less than it may"


@given(ranges(), st.integers(1, 30), st.integers(1, 20_000))
def test_trigger_after_trigger_reads_everything_once(
    found: tuple[PartitionState, int, int], offsets_max: int, bytes_max: int
) -> None:
    """Across the border between archive and log, whatever the limits are."""
    state, start, end = found
    key, read, position = PartitionKey("orders", 0), list[int](), start
    while position < end:
        stop = admit({key: weighed(state, position, end)}, TriggerLimits(offsets_max=offsets_max, bytes_max=bytes_max))[
            key
        ]
        assert position < stop <= end and stop - position <= offsets_max
        read += offsets([part[:2] for part in parts(state, position, stop)])
        position = stop
    assert read == there(state, start, end)


@given(ranges())
def test_the_average_weighs_what_the_pieces_weigh(found: tuple[PartitionState, int, int]) -> None:
    state, start, end = found
    whole = average(state, start, end)
    assert abs(whole.size_bytes - weighed(state, start, end).size_bytes) <= 10 + (end - start)


def test_files_that_are_far_away_are_weighed_together() -> None:
    files = tuple(data_file(number * 10, number * 10 + 9, 1_000) for number in range(FILES_WEIGHED_MAX * 3))
    log = PartitionState(log_start_offset=5_000, end_offset=5_000, log_end_offset=5_000, size_bytes=0)
    state = joined(log, Coverage(0, len(files) * 10, files))
    backlog = weighed(state, 0, len(files) * 10)
    assert backlog.size_bytes == 1_000 * len(files)
    assert len(backlog.ranges) == FILES_WEIGHED_MAX + 1  # type: ignore[union-attr]


# ── who ──────────────────────────────────────────────────────────────────────────────────────────


@given(coverages(), st.integers(1, 12_000))
def test_tasks_are_cut_at_files_and_cover_everything(coverage: Coverage | None, bytes_max: int) -> None:
    if coverage is None:
        return
    found = file_ranges(coverage, bytes_max)
    assert (found[0][0], found[-1][1]) == (coverage.start, coverage.end)
    assert all(start < end for start, end in found)
    assert all(one[1] == other[0] for one, other in pairwise(found))
    borders = {one.first_offset for one in coverage.files}
    assert all(start in borders for start, _ in found)
    for start, end in found:
        files = coverage.files_in(start, end)
        assert len(files) == 1 or sum(one.bytes for one in files) <= bytes_max
