"""Laws of the log's decisions: retention, grouping, the sparse index, leader epochs. Each against the plainest way to say it."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from bascule.log.core.compaction import FOREVER, CompactionLimits, group_segments, horizon, is_due
from bascule.log.core.epochs import EpochCache, EpochEntry, format_epochs, parse_epochs
from bascule.log.core.retention import RetentionLimits, SegmentFacts, plan_retention
from bascule.log.core.sparse_index import SparseIndex

TIMES = st.integers(0, 100)
ALL = 1 << 62
"""More offsets than any log has: everything is committed."""


@st.composite
def segments(draw: st.DrawFn, min_size: int = 0) -> list[SegmentFacts]:
    """Neighbours as a log has them: offsets and times rise."""
    count = draw(st.integers(min_size, 8))
    base, time, found = draw(st.integers(0, 50)), 0, []
    for _ in range(count):
        size = draw(st.integers(0, 50))
        time += draw(st.integers(0, 20))
        found.append(SegmentFacts(base, draw(st.integers(0, 100)), size, time if size else -1))
        base += size + draw(st.integers(0, 3))
    return found


LIMITS = st.builds(RetentionLimits, st.integers(0, 60), st.integers(0, 150), st.integers(0, 300))


# ── retention ────────────────────────────────────────────────────────────────────────────────────


def within(kept: list[SegmentFacts], limits: RetentionLimits) -> bool:
    records = sum(segment.records for segment in kept)
    size = sum(segment.bytes for segment in kept)
    return (not limits.records_max or records <= limits.records_max) and (
        not limits.bytes_max or size <= limits.bytes_max
    )


@given(segments(), LIMITS, TIMES)
def test_retention_never_deletes_the_active_segment(
    found: list[SegmentFacts], limits: RetentionLimits, now: int
) -> None:
    assert 0 <= plan_retention(found, limits, now, ALL) <= max(0, len(found) - 1)


@given(segments(min_size=1), LIMITS, TIMES)
def test_what_retention_keeps_is_within_the_limits_unless_the_active_segment_alone_is_not(
    found: list[SegmentFacts], limits: RetentionLimits, now: int
) -> None:
    kept = found[plan_retention(found, limits, now, ALL) :]
    assert within(kept, limits) or len(kept) == 1
    if limits.age_max_ns and len(kept) > 1:
        assert kept[0].last_timestamp >= now - limits.age_max_ns


@given(segments(min_size=1), LIMITS, TIMES)
def test_retention_deletes_nothing_that_no_limit_asks_for(
    found: list[SegmentFacts], limits: RetentionLimits, now: int
) -> None:
    count = plan_retention(found, limits, now, ALL)
    if count:
        last = found[count - 1]
        expired = bool(limits.age_max_ns) and last.last_timestamp < now - limits.age_max_ns
        assert expired or not within(found[count - 1 :], limits)


@given(segments(), LIMITS, TIMES)
def test_retention_has_nothing_more_to_do_after_it_was_done(
    found: list[SegmentFacts], limits: RetentionLimits, now: int
) -> None:
    assert plan_retention(found[plan_retention(found, limits, now, ALL) :], limits, now, ALL) == 0


@given(segments(), TIMES)
def test_without_limits_everything_stays(found: list[SegmentFacts], now: int) -> None:
    assert plan_retention(found, RetentionLimits(), now, ALL) == 0


@given(segments(), LIMITS, TIMES, st.integers(0, 50))
def test_time_only_ever_deletes_more(found: list[SegmentFacts], limits: RetentionLimits, now: int, later: int) -> None:
    assert plan_retention(found, limits, now, ALL) <= plan_retention(found, limits, now + later, ALL)


@given(segments(min_size=1), LIMITS, TIMES, st.integers(0, 400))
def test_retention_deletes_what_is_committed_and_no_more(
    found: list[SegmentFacts], limits: RetentionLimits, now: int, committed: int
) -> None:
    count = plan_retention(found, limits, now, committed)
    assert count == 0 or found[count].base_offset <= committed
    unbound = plan_retention(found, limits, now, ALL)
    assert count == unbound or found[count + 1].base_offset > committed


# ── compaction ───────────────────────────────────────────────────────────────────────────────────


@given(segments(), st.integers(1, 200))
def test_groups_are_neighbours_that_cover_every_segment_once(found: list[SegmentFacts], bytes_max: int) -> None:
    groups = group_segments(found, bytes_max)
    assert [index for first, stop in groups for index in range(first, stop)] == list(range(len(found)))
    assert all(first < stop for first, stop in groups)


@given(segments(), st.integers(1, 200))
def test_a_group_fits_one_segment_unless_it_is_one(found: list[SegmentFacts], bytes_max: int) -> None:
    for first, stop in group_segments(found, bytes_max):
        assert stop - first == 1 or sum(segment.bytes for segment in found[first:stop]) <= bytes_max


@given(segments(), st.integers(1, 200))
def test_no_group_could_take_the_next_segment_as_well(found: list[SegmentFacts], bytes_max: int) -> None:
    for (first, stop), _ in pairwise(group_segments(found, bytes_max)):
        assert sum(segment.bytes for segment in found[first : stop + 1]) > bytes_max


@given(st.integers(0, 1000), st.integers(0, 100), st.integers(0, 100), st.integers(0, 1000))
def test_the_lines_of_a_compaction(learned_to: int, lag: int, retention: int, now: int) -> None:
    lines = horizon(learned_to, CompactionLimits(lag, retention, 1), now)
    assert lines.end_offset == learned_to
    assert lines.keep_since == (now - lag if lag else FOREVER)
    assert lines.tombstones_before == now - retention


@given(segments(), st.integers(0, 400), st.one_of(st.none(), TIMES), TIMES)
def test_compaction_is_due_for_dirt_or_old_tombstones_only(
    found: list[SegmentFacts], cleaned_to: int, tombstones_due: int | None, now: int
) -> None:
    dirty = len(found) > 1 and found[-1].base_offset > cleaned_to
    old = len(found) > 1 and tombstones_due is not None and tombstones_due <= now
    assert is_due(found, cleaned_to, tombstones_due, now) == (dirty or old)


# ── sparse index ─────────────────────────────────────────────────────────────────────────────────

Entries = list[tuple[int, int, int]]


@st.composite
def entries(draw: st.DrawFn) -> Entries:
    """(offset, position, timestamp): offsets and positions rise, times do not fall."""
    offset, position, timestamp, found = draw(st.integers(0, 10)), 0, 0, []
    for _ in range(draw(st.integers(0, 12))):
        found.append((offset, position, timestamp))
        offset += draw(st.integers(1, 10))
        position += draw(st.integers(1, 50))
        timestamp += draw(st.integers(0, 5))
    return found


@given(entries(), st.integers(-5, 150))
def test_the_entry_for_an_offset(found: Entries, offset: int) -> None:
    expected = [(one[0], one[1]) for one in found if one[0] <= offset]
    assert SparseIndex(found).entry_for_offset(offset) == (expected[-1] if expected else None)


@given(entries(), st.integers(-5, 80))
def test_the_offset_to_look_for_a_time_from(found: Entries, timestamp: int) -> None:
    expected = [one[0] for one in found if one[2] < timestamp]
    assert SparseIndex(found).offset_for_timestamp(timestamp) == (expected[-1] if expected else 0)


@given(entries(), st.integers(-5, 700))
def test_the_entries_around_a_position(found: Entries, position: int) -> None:
    index = SparseIndex(found)
    behind = [one[1] for one in found if one[1] > position]
    before = [(one[0], one[1]) for one in found if one[1] < position]
    assert index.entry_behind(position) == (behind[0] if behind else None)
    assert index.offset_before(position) == (before[-1] if before else None)


@given(entries(), st.integers(0, 700), st.integers(0, 300))
def test_where_a_reverse_read_begins(found: Entries, position: int, back: int) -> None:
    near = [one[1] for one in found if position - back <= one[1] <= position]
    before = [one[1] for one in found if one[1] <= position]
    expected = near[0] if near else (before[-1] if before else 0)
    assert SparseIndex(found).entry_before(position, back) == expected


@given(entries(), st.integers(0, 700))
def test_truncating_forgets_what_lies_behind(found: Entries, position: int) -> None:
    index = SparseIndex(found)
    index.truncate(position)
    kept = [one for one in found if one[1] < position]
    assert list(index) == kept
    assert len(index) == len(kept)
    assert index.last_position == (kept[-1][1] if kept else -1)


@given(entries(), st.integers(1, 100))
def test_spaced_entries_lie_apart_and_lose_no_more_than_the_interval(found: Entries, interval: int) -> None:
    index = SparseIndex(interval_bytes=interval)
    index.add_spaced(found)
    kept = list(index)
    assert all(behind[1] - before[1] >= interval for before, behind in pairwise(kept))
    for one in found:
        assert any(0 <= one[1] - near[1] < interval for near in kept)


@given(entries(), st.integers(0, 12))
def test_entries_from_a_number_on(found: Entries, start: int) -> None:
    assert SparseIndex(found).entries_from(start) == found[start:]


# ── leader epochs ────────────────────────────────────────────────────────────────────────────────


class NaiveEpochs:
    """Who wrote which offset, one by one."""

    def __init__(self) -> None:
        self.starts: dict[int, int] = {}

    def assign(self, epoch: int, start: int) -> None:
        if epoch > max(self.starts, default=0):
            self.starts = {known: begin for known, begin in self.starts.items() if begin < start}
            self.starts[epoch] = start

    def epoch_of(self, offset: int) -> int:
        return max((epoch for epoch, start in self.starts.items() if start <= offset), default=0)

    def end_offset(self, epoch: int, log_end: int) -> int:
        return min((start for known, start in self.starts.items() if known > epoch), default=log_end)

    def clear_latest(self, offset: int) -> None:
        self.starts = {epoch: start for epoch, start in self.starts.items() if start < offset}

    def clear_earliest(self, offset: int) -> None:
        holder = self.epoch_of(offset)
        if holder:
            self.starts = {epoch: start for epoch, start in self.starts.items() if start > offset}
            self.starts[holder] = offset


CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("assign"), st.integers(0, 12), st.integers(0, 40)),
        st.tuples(st.just("clear_latest"), st.integers(0, 40), st.just(0)),
        st.tuples(st.just("clear_earliest"), st.integers(0, 40), st.just(0)),
    ),
    max_size=12,
)


def after(changes: list[tuple[str, int, int]]) -> tuple[EpochCache, NaiveEpochs]:
    cache, naive = EpochCache(), NaiveEpochs()
    for what, first, second in changes:
        arguments = (first, second) if what == "assign" else (first,)
        before = cache.entries
        changed = getattr(cache, what)(*arguments)
        getattr(naive, what)(*arguments)
        assert changed == (cache.entries != before)
    return cache, naive


@given(CHANGES)
def test_the_epoch_cache_is_what_a_plain_table_says(changes: list[tuple[str, int, int]]) -> None:
    cache, naive = after(changes)
    assert {entry.epoch: entry.start_offset for entry in cache.entries} == naive.starts
    assert cache.latest_epoch == max(naive.starts, default=0)
    for offset in range(45):
        assert cache.epoch_of(offset) == naive.epoch_of(offset)
    for epoch in range(14):
        assert cache.end_offset(epoch, 45) == naive.end_offset(epoch, 45)


@given(CHANGES)
def test_epochs_and_their_starts_rise(changes: list[tuple[str, int, int]]) -> None:
    cache, _ = after(changes)
    for before, behind in pairwise(cache.entries):
        assert before.epoch < behind.epoch and before.start_offset < behind.start_offset


@given(CHANGES)
def test_epochs_survive_being_written_and_read(changes: list[tuple[str, int, int]]) -> None:
    cache, _ = after(changes)
    assert parse_epochs(format_epochs(cache)) == cache


@given(st.one_of(st.text(), st.lists(st.sampled_from(["0", "1", "2", "-1", "1 2", "2 1", "\u0663"])).map("\n".join)))
def test_anything_else_is_refused_as_an_epoch_file(text: str) -> None:
    try:
        cache = parse_epochs(text)
    except ValueError:
        return
    assert format_epochs(cache).split() == text.split()


@given(CHANGES, st.integers(0, 200), st.sampled_from("0123456789 \nx-"))
def test_a_changed_epoch_file_is_another_one_or_none(changes: list[tuple[str, int, int]], at: int, char: str) -> None:
    cache, _ = after(changes)
    text = format_epochs(cache)
    at %= len(text)
    try:
        found = parse_epochs(text[:at] + char + text[at + 1 :])
    except ValueError:
        return
    assert list(found.entries) == sorted(found.entries, key=lambda entry: entry.epoch)
    assert all(isinstance(entry, EpochEntry) for entry in found.entries)
