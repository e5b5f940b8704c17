"""Which files are merged, and what is left of a history of commits: laws that hold for every archive."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from itertools import groupby, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bascule.lake import housekeeping
from bascule.lake.archive import Archive
from bascule.lake.compaction import Merge, plan_merges
from bascule.lake.facts import ArchiveState, Commit, Covered, DataFile
from bascule.lake.housekeeping import Housekeeping

TARGET = 1000


@st.composite
def archives(draw: st.DrawFn) -> list[DataFile]:
    """Files of some partitions, in order and without overlaps; days may go back, as clocks do."""
    found = []
    for stream_id, partition in draw(
        st.lists(st.tuples(st.integers(1, 2), st.integers(0, 2)), max_size=4, unique=True)
    ):
        offset = 0
        for number in range(draw(st.integers(0, 25))):
            first = offset + draw(st.sampled_from((0, 0, 0, 5)))
            rows = draw(st.integers(1, 50))
            offset = first + rows
            size = draw(st.integers(1, 60) | st.integers(1, 1500))
            date = f"2026-11-1{draw(st.sampled_from((1, 1, 1, 1, 2)))}"
            path = f"data/date={date}/{stream_id}-{partition}-{number}.parquet"
            found.append(DataFile(path, "orders", stream_id, partition, first, offset - 1, rows, size, 0, date))
    return draw(st.permutations(found)) if len(found) < 30 else found


def merged(merge: Merge) -> DataFile:
    """The file that comes of it, if merging saves nothing."""
    first, last = merge.files[0], merge.files[-1]
    rows, size = sum(one.rows for one in merge.files), sum(one.bytes for one in merge.files)
    return DataFile(
        first.path + "+",
        first.stream,
        first.stream_id,
        first.partition,
        first.first_offset,
        last.last_offset,
        rows,
        size,
        0,
        first.date,
    )


def in_order(files: Sequence[DataFile]) -> list[DataFile]:
    return sorted(files, key=lambda one: (one.stream, one.stream_id, one.partition, one.first_offset))


def applied(files: Sequence[DataFile], merges: Sequence[Merge]) -> list[DataFile]:
    gone = {one.path for merge in merges for one in merge.files}
    return in_order([one for one in files if one.path not in gone] + [merged(merge) for merge in merges])


@given(archives())
def test_merges_are_of_neighbours_of_one_partition_and_day(files: list[DataFile]) -> None:
    order = in_order(files)
    for merge in plan_merges(files, TARGET):
        at = order.index(merge.files[0])
        assert tuple(order[at : at + len(merge.files)]) == merge.files
        assert len({(one.stream_id, one.partition, one.date) for one in merge.files}) == 1
        assert len(merge.files) > 1
        assert merge.bytes <= TARGET


@given(archives())
def test_the_same_rows_and_offsets_in_fewer_files(files: list[DataFile]) -> None:
    merges = plan_merges(files, TARGET)
    named = [one.path for merge in merges for one in merge.files]
    assert len(named) == len(set(named))
    after = applied(files, merges)
    assert sum(one.rows for one in after) == sum(one.rows for one in files)
    assert len(after) == len(files) - sum(len(merge.files) - 1 for merge in merges)
    for one, following in pairwise(after):
        same = (one.stream_id, one.partition) == (following.stream_id, following.partition)
        assert not same or one.last_offset < following.first_offset


@given(archives())
def test_planned_again_there_is_nothing_to_do(files: list[DataFile]) -> None:
    assert plan_merges(applied(files, plan_merges(files, TARGET)), TARGET) == []


@given(archives())
def test_what_is_large_enough_is_left_alone(files: list[DataFile]) -> None:
    large = [DataFile(**{name: getattr(one, name) for name in DataFile.__slots__} | {"bytes": TARGET}) for one in files]
    assert plan_merges(large, TARGET) == []


@given(archives())
def test_what_stays_small_is_few_files(files: list[DataFile]) -> None:
    """Between two that cannot be merged because they would be too large, sizes at least halve."""
    after = applied(files, plan_merges(files, TARGET))
    for _, group in groupby(after, key=lambda one: (one.stream_id, one.partition, one.date)):
        sizes = [one.bytes for one in group]
        for size, following in pairwise(sizes):
            assert size >= 2 * following or size + following > TARGET
        assert len(sizes) <= 2 * (sum(sizes) / TARGET + 1) + (math.log2(TARGET) + 1) * (sum(sizes) / TARGET + 1)


# ── the sum of commits ───────────────────────────────────────────────────────────────────────────


@st.composite
def histories(draw: st.DrawFn) -> list[Commit]:
    commits: list[Commit] = []
    files: list[DataFile] = []
    offset = 0
    for number in range(1, draw(st.integers(1, 25)) + 1):
        if len(files) > 1 and draw(st.booleans()):
            commits.append(
                Commit(
                    number,
                    "compact",
                    number,
                    added=(merged(Merge(tuple(files))),),
                    removed=tuple(one.path for one in files),
                )
            )
            files = [merged(Merge(tuple(files)))]
            continue
        rows = draw(st.integers(1, 9))
        one = DataFile(f"data/{number}", "orders", 7, 0, offset, offset + rows - 1, rows, 10, number, "2026-11-15")
        offset += rows
        files.append(one)
        commits.append(Commit(number, "append", number, "q", number, (one,), (), (Covered("orders", 7, 0, 0, offset),)))
    return commits


@given(histories(), st.integers(1, 7), st.sampled_from((0.0, 1e9)), st.integers(0, 25))
@settings(deadline=None)
def test_a_sum_and_the_commits_behind_it_are_all_commits(
    commits: list[Commit], every: int, keep: float, seen_at: int
) -> None:
    whole = ArchiveState()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(housekeeping, "STATE_COMMITS", every)
        archive = Archive(Path(folder) / "a")
        archive.create(["orders"])
        keeper = Housekeeping(archive, keep)
        state = keeper.begin()
        reader = ArchiveState()
        for commit in commits:
            archive.commit(commit)
            whole.apply(commit)
            state.apply(commit)
            keeper.after(commit, state)
            if commit.number == seen_at:
                reader = archive.state()
        assert archive.state() == whole == state
        assert Archive(archive.path).refresh(reader) == whole, "for whoever looked before commits were summed up too"
        assert len(archive.state_numbers()) <= 2
        kept = len(list(archive.kept_commits()))
        assert kept == len(commits) if keep else kept <= 2 * every + 1
