"""Which files are merged, and what is left of a history of commits: laws that hold for every archive."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from itertools import groupby, pairwise
from pathlib import Path
from unittest import mock

from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from bascule.lake.archive import Archive
from bascule.lake.compaction import Merge, plan_merges
from bascule.lake.delta.log import commit_name
from bascule.lake.facts import ArchiveState, Commit, Covered, DataFile

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
        one = DataFile(
            f"date=2026-11-15/{number}.parquet",
            "orders",
            7,
            0,
            offset,
            offset + rows - 1,
            rows,
            10,
            number,
            "2026-11-15",
        )
        offset += rows
        files.append(one)
        commits.append(Commit(number, "append", number, "q", number, (one,), (), (Covered("orders", 7, 0, 0, offset),)))
    return commits


@given(histories(), st.integers(1, 7), st.booleans(), st.integers(0, 25))
@settings(deadline=None, max_examples=25)
def test_a_checkpoint_and_the_commits_after_it_are_all_commits(
    commits: list[Commit], every: int, keeps: bool, seen_at: int
) -> None:
    with tempfile.TemporaryDirectory() as folder, mock.patch("os.fsync"):
        archive = Archive(Path(folder) / "a")
        archive.create(["orders"])
        state, reader = archive.state(), ArchiveState(number=-1)
        for commit in commits:
            state.apply(archive.commit(commit, state))
            if commit.number % every == 0:
                DeltaTable(archive.path).create_checkpoint()
                for number in range(0 if keeps else commit.number):
                    (archive.path / commit_name(number)).unlink(missing_ok=True)
            if commit.number == seen_at:
                reader = archive.state()
        for found in (archive.state(), Archive(archive.path).refresh(reader)):
            assert (found.files, found.next_offsets, found.chain) == (state.files, state.next_offsets, state.chain)
            assert found.whole() == found.claimed == state.whole(), "whenever it was looked at"
