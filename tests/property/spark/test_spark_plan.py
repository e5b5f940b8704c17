"""The laws of `bascule.spark.read.plan`, over ranges and limits nobody would think of."""

from __future__ import annotations

import time
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from bascule.spark.read.plan import OffsetRange, PartitionKey, SplitLimits, TriggerLimits, admit, gather, is_due, split
from bascule.spark.read.state import PartitionState

Backlogs = dict[PartitionKey, OffsetRange]

keys = st.builds(PartitionKey, st.sampled_from(["a", "b", "orders"]), st.integers(0, 20))
weights = st.one_of(
    st.just(Fraction(0)), st.builds(Fraction, st.integers(1, 10**9), st.integers(1, 10**6)), st.just(Fraction(1, 3))
)


@st.composite
def ranges(draw: st.DrawFn) -> OffsetRange:
    start = draw(st.integers(0, 1 << 62))
    count = draw(st.one_of(st.integers(0, 5), st.integers(0, 10**4), st.integers(0, 10**12)))
    return OffsetRange(start, start + count, draw(weights))


backlogs = st.dictionaries(keys, ranges(), max_size=8)
most = st.one_of(st.none(), st.integers(1, 50), st.integers(1, 10**13))
trigger_limits = st.builds(TriggerLimits, offsets_max=most, bytes_max=most)
small_ranges = st.dictionaries(
    keys,
    st.builds(
        lambda start, count, weight: OffsetRange(start, start + count, weight),
        st.integers(0, 99),
        st.integers(0, 400),
        weights,
    ),
    max_size=6,
)
few = st.one_of(st.none(), st.integers(1, 500))
split_limits = st.builds(
    SplitLimits,
    partitions_min=few,
    offsets_max=few,
    bytes_max=st.one_of(st.none(), st.integers(1, 10**10)),
    gathered_offsets_max=st.integers(1, 600),
)


def admitted(waiting: Backlogs, limits: TriggerLimits) -> dict[PartitionKey, int]:
    ends = admit(waiting, limits)
    return {key: ends[key] - waiting[key].start for key in waiting}


def waiting_in(found: Backlogs) -> Backlogs:
    return {key: each for key, each in found.items() if each.count > 0}


# ── how far ──────────────────────────────────────────────────────────────────────────────────────


@given(backlogs, trigger_limits)
def test_every_partition_has_an_end_and_it_is_within_its_range(found: Backlogs, limits: TriggerLimits) -> None:
    ends = admit(found, limits)
    assert ends.keys() == found.keys()
    assert all(found[key].start <= ends[key] <= found[key].end for key in found)


@given(backlogs, trigger_limits)
def test_every_backlogged_partition_advances(found: Backlogs, limits: TriggerLimits) -> None:
    advanced = admitted(found, limits)
    assert all(advanced[key] >= 1 for key in waiting_in(found))


@given(backlogs, trigger_limits)
def test_the_limits_hold_but_for_one_offset_of_each_partition(found: Backlogs, limits: TriggerLimits) -> None:
    advanced = admitted(found, limits)
    waiting = waiting_in(found)
    if limits.offsets_max is not None:
        assert sum(advanced.values()) <= max(limits.offsets_max, len(waiting))
    if limits.bytes_max is not None:
        read = sum(advanced[key] * found[key].bytes_per_offset for key in found)
        assert read <= max(limits.bytes_max, sum(each.bytes_per_offset for each in waiting.values()))


@given(backlogs)
def test_without_limits_everything_is_read(found: Backlogs) -> None:
    assert admit(found, TriggerLimits()) == {key: each.end for key, each in found.items()}


@given(backlogs, st.integers(1, 10**13))
def test_a_limit_is_used_up(found: Backlogs, limit: int) -> None:
    """All but what is lost by rounding down, less than one offset a partition."""
    total = sum(each.count for each in found.values())
    read = sum(admitted(found, TriggerLimits(offsets_max=limit)).values())
    assert read == total or read > limit - len(waiting_in(found))


@given(backlogs, st.integers(1, 10**12), st.integers(0, 10**12), st.booleans())
def test_a_higher_limit_never_gives_a_partition_less(found: Backlogs, limit: int, more: int, is_bytes: bool) -> None:
    def read(most: int) -> dict[PartitionKey, int]:
        return admitted(found, TriggerLimits(bytes_max=most) if is_bytes else TriggerLimits(offsets_max=most))

    less, greater = read(limit), read(limit + more)
    assert all(less[key] <= greater[key] for key in found)


@given(backlogs, st.integers(1, 10**13))
def test_a_larger_backlog_never_gets_less(found: Backlogs, limit: int) -> None:
    advanced = admitted(found, TriggerLimits(offsets_max=limit))
    by_backlog = sorted(found, key=lambda key: found[key].count)
    assert all(advanced[small] <= advanced[large] for small, large in pairwise(by_backlog))


@given(backlogs, st.integers(1, 10**13))
def test_a_small_partition_is_not_starved_by_large_ones(found: Backlogs, limit: int) -> None:
    """Whatever the others have, it gets its even part of half the limit, or all it has."""
    waiting = waiting_in(found)
    advanced = admitted(found, TriggerLimits(offsets_max=limit))
    for key, each in waiting.items():
        assert advanced[key] >= min(each.count, (limit - len(waiting)) // (2 * len(waiting)))


@given(backlogs, trigger_limits)
def test_reading_on_comes_to_the_end(found: Backlogs, limits: TriggerLimits) -> None:
    """Triggers are monotone: the next one begins where the last one ended, and each takes something."""
    left = {key: OffsetRange(0, min(each.count, 40), each.bytes_per_offset) for key, each in found.items()}
    for _ in range(sum(each.count for each in left.values())):
        ends = admit(left, limits)
        left = {key: OffsetRange(ends[key], each.end, each.bytes_per_offset) for key, each in left.items()}
    assert not waiting_in(left)


def test_thousands_of_partitions_are_planned_in_a_moment() -> None:
    """Exact fractions took nine seconds for a thousand partitions, each with a denominator of its own."""
    found = {}
    for number in range(2_000):
        span = 1_000_003 + number * 7_919
        state = PartitionState(log_start_offset=0, end_offset=span, log_end_offset=span, size_bytes=span * 100 + number)
        found[PartitionKey("a", number)] = OffsetRange(0, span, state.bytes_per_offset)
    before = time.process_time()
    admit(found, TriggerLimits(offsets_max=10**6, bytes_max=10**8))
    split(found, SplitLimits(partitions_min=4_000, bytes_max=10**8))
    assert time.process_time() - before < 8


def test_one_large_partition_does_not_hold_up_a_small_one() -> None:
    found = {PartitionKey("a", 0): OffsetRange(0, 10_000_000), PartitionKey("b", 0): OffsetRange(0, 100)}
    assert admitted(found, TriggerLimits(offsets_max=1_000))[PartitionKey("b", 0)] == 100


def test_the_smaller_of_two_limits_decides() -> None:
    found = {PartitionKey("a", 0): OffsetRange(0, 1_000, Fraction(100))}
    assert admit(found, TriggerLimits(offsets_max=500, bytes_max=10_000)) == {PartitionKey("a", 0): 100}
    assert admit(found, TriggerLimits(offsets_max=50, bytes_max=10_000)) == {PartitionKey("a", 0): 50}


# ── when ─────────────────────────────────────────────────────────────────────────────────────────


@given(st.integers(0, 1000), st.one_of(st.none(), st.integers(1, 1000)), st.integers(0, 1000), st.integers(0, 1000))
def test_a_trigger_waits_for_enough_but_not_for_ever(backlog: int, least: int | None, delay: int, waited: int) -> None:
    limits = TriggerLimits(offsets_min=least, delay_max_ms=delay)
    if backlog == 0:
        assert not is_due(backlog, limits, waited)
    elif least is None or backlog >= least:
        assert is_due(backlog, limits, waited)
    else:
        assert is_due(backlog, limits, waited) == (waited >= delay)


# ── who reads what ───────────────────────────────────────────────────────────────────────────────


@given(small_ranges, split_limits)
def test_pieces_cover_the_ranges_exactly_and_none_is_empty(found: Backlogs, limits: SplitLimits) -> None:
    pieces = split(found, limits)
    assert all(piece.count > 0 for _, piece in pieces)
    for key, each in found.items():
        covered = [offset for of, piece in pieces if of == key for offset in range(piece.start, piece.end)]
        assert covered == list(range(each.start, each.end))


@given(small_ranges, split_limits)
def test_no_piece_exceeds_what_a_task_may_read(found: Backlogs, limits: SplitLimits) -> None:
    for _, piece in split(found, limits):
        assert limits.offsets_max is None or piece.count <= limits.offsets_max
        assert limits.bytes_max is None or piece.count == 1 or piece.size_bytes <= limits.bytes_max


@given(small_ranges, split_limits)
def test_there_are_as_many_pieces_as_asked_for_while_there_are_offsets(found: Backlogs, limits: SplitLimits) -> None:
    total = sum(each.count for each in found.values())
    assert len(split(found, limits)) >= min(limits.partitions_min or 0, total)


@given(small_ranges)
def test_without_limits_a_task_reads_a_partition(found: Backlogs) -> None:
    assert split(found, SplitLimits()) == sorted(waiting_in(found).items())


@given(small_ranges, st.integers(1, 200))
def test_pieces_of_a_partition_differ_by_one_offset_at_most(found: Backlogs, least: int) -> None:
    pieces = split(found, SplitLimits(partitions_min=least))
    for key in found:
        counts = [piece.count for of, piece in pieces if of == key]
        assert not counts or max(counts) - min(counts) <= 1


@given(small_ranges, split_limits)
def test_every_piece_is_read_by_one_task_and_in_its_order(found: Backlogs, limits: SplitLimits) -> None:
    pieces = split(found, limits)
    tasks = gather(pieces, limits)
    assert [piece for task in tasks for piece in task] == pieces
    assert all(tasks), "no task is empty"


@given(small_ranges, split_limits)
def test_a_task_of_several_pieces_keeps_every_limit(found: Backlogs, limits: SplitLimits) -> None:
    for task in gather(split(found, limits), limits):
        offsets, size = sum(piece.count for _, piece in task), sum(piece.size_bytes for _, piece in task)
        if len(task) > 1:
            assert offsets <= min(limits.gathered_offsets_max, limits.offsets_max or offsets)
            assert limits.bytes_max is None or size <= limits.bytes_max


@given(small_ranges, split_limits)
def test_gathering_leaves_as_many_tasks_as_asked_for(found: Backlogs, limits: SplitLimits) -> None:
    pieces = split(found, limits)
    assert len(gather(pieces, limits)) >= min(limits.partitions_min or 0, len(pieces))


@given(small_ranges, split_limits, weights)
def test_tasks_of_a_repeated_batch_do_not_depend_on_estimates(
    found: Backlogs, limits: SplitLimits, weight: Fraction
) -> None:
    """Bytes are estimated anew when a batch is repeated; without a limit of bytes they may not decide which task reads a row."""
    limits = replace(limits, bytes_max=None)
    other = {key: replace(each, bytes_per_offset=weight) for key, each in found.items()}

    def cut(ranges: Backlogs) -> list[list[tuple[PartitionKey, int, int]]]:
        tasks = gather(split(ranges, limits), limits)
        return [[(key, piece.start, piece.end) for key, piece in task] for task in tasks]

    assert cut(found) == cut(other)


@given(small_ranges, st.integers(1, 600))
def test_two_tasks_in_a_row_would_not_fit_into_one(found: Backlogs, most: int) -> None:
    tasks = gather(split(found, SplitLimits()), SplitLimits(gathered_offsets_max=most))
    counts = [sum(piece.count for _, piece in task) for task in tasks]
    assert all(one + other[0][1].count > most for one, other in zip(counts, tasks[1:], strict=False))


def test_many_small_partitions_are_few_tasks() -> None:
    found = {PartitionKey("a", number): OffsetRange(0, 100) for number in range(64)}
    limits = SplitLimits(gathered_offsets_max=2_000)
    assert [len(task) for task in gather(split(found, limits), limits)] == [20, 20, 20, 4]
    limits = replace(limits, partitions_min=8)
    assert len(gather(split(found, limits), limits)) == 13


def test_the_largest_pieces_are_cut_first() -> None:
    ranges = {PartitionKey("a", 0): OffsetRange(0, 100), PartitionKey("b", 0): OffsetRange(0, 60)}
    found = [(key.stream, piece.count) for key, piece in split(ranges, SplitLimits(partitions_min=4, offsets_max=50))]
    assert found == [("a", 50), ("a", 50), ("b", 30), ("b", 30)]
    found = [(key.stream, piece.count) for key, piece in split(ranges, SplitLimits(partitions_min=5, offsets_max=50))]
    assert sorted(count for name, count in found if name == "a") == [33, 33, 34]
