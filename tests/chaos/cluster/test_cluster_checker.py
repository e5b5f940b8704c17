"""The checker of the cluster tests sees what it is for: each kind of broken promise, planted in a history that was in order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bascule.log import LogOptions, PartitionLog
from tests.chaos.cluster.cluster_checks import lost_leader_acks, violations
from tests.chaos.cluster.cluster_history import (
    ALL,
    KEEPS_ALL,
    KEYS,
    LEADER,
    Cleaning,
    FinalLog,
    PartitionHistory,
    key_of,
    read_value,
    value_of,
)
from tests.chaos.cluster.cluster_verdict import read_files, unequal_batches
from tests.support.logs import Draft, ManualSyncer, batch_of

MESSAGES = 20


def good_history(messages: int = MESSAGES, cleaning: Cleaning = KEEPS_ALL) -> tuple[PartitionHistory, list[FinalLog]]:
    """Two writers that take turns, a reader, two replicas."""
    history = PartitionHistory("s", 0, cleaning)
    writers = [history.new_writer("unary", ALL), history.new_writer("envelope", LEADER)]
    reader = history.new_reader("test")
    logs = [FinalLog("a"), FinalLog("b")]
    for offset in range(messages):
        writer = writers[offset % 2]
        number, value = writer.begin()
        for log in logs:
            log.add(offset, value, offset)
        reader.take(offset, value, offset)
        writer.settle(number, offset)
    return history, logs


def test_a_history_in_order_has_no_violations() -> None:
    history, logs = good_history()
    assert violations(history, logs) == []
    assert lost_leader_acks(history, logs[0]) == (0, 0)
    assert (history.acked(ALL), history.acked(LEADER), history.published) == (10, 10, MESSAGES)


def lose_the_end(_history: PartitionHistory, logs: list[FinalLog]) -> None:
    for log in logs:
        for column in (log.offsets, log.writers, log.numbers, log.digests):
            del column[-2:]


def lose_on_one_replica(_history: PartitionHistory, logs: list[FinalLog]) -> None:
    for column in (logs[1].offsets, logs[1].writers, logs[1].numbers, logs[1].digests):
        column.pop()


def replace_a_message(_history: PartitionHistory, logs: list[FinalLog]) -> None:
    for log in logs:
        log.numbers[4] = 999


def swap_two_acks(history: PartitionHistory, _logs: list[FinalLog]) -> None:
    offsets = history.writers[0].offsets
    offsets[1], offsets[2] = offsets[2], offsets[1]


def leave_a_gap(_history: PartitionHistory, logs: list[FinalLog]) -> None:
    for log in logs:
        log.offsets[-1] += 1


def store_twice(_history: PartitionHistory, logs: list[FinalLog]) -> None:
    for log in logs:
        log.add(MESSAGES, value_of(0, 3), 0)


def store_a_refused_message(history: PartitionHistory, _logs: list[FinalLog]) -> None:
    history.writers[1].refused.add(2)


def store_nonsense(_history: PartitionHistory, logs: list[FinalLog]) -> None:
    for log in logs:
        log.add(MESSAGES, b"x" * 40, 0)


def show_something_else(history: PartitionHistory, _logs: list[FinalLog]) -> None:
    history.readers[0].digests[7] ^= 1


def show_too_much(history: PartitionHistory, _logs: list[FinalLog]) -> None:
    history.readers[0].take(MESSAGES, value_of(0, 100), 0)


def skip_for_a_reader(history: PartitionHistory, logs: list[FinalLog]) -> None:
    history.readers[0].take(MESSAGES + 1, value_of(0, 100), 0)
    for log in logs:
        log.add(MESSAGES, value_of(0, 100), 0)


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (lose_the_end, "was acked at offset 18"),
        (lose_on_one_replica, "not the same"),
        (replace_a_message, "was acked at offset 4"),
        (swap_two_acks, "behind one at"),
        (leave_a_gap, "not dense"),
        (store_twice, "twice"),
        (store_a_refused_message, "surely not stored"),
        (store_nonsense, "no writer sent"),
        (show_something_else, "offset 7 that is another one"),
        (show_too_much, "without it"),
        (skip_for_a_reader, "where 20 is next"),
    ],
)
def test_a_broken_promise_is_seen(plant: Callable[[PartitionHistory, list[FinalLog]], None], said: str) -> None:
    history, logs = good_history()
    plant(history, logs)
    found = violations(history, logs)
    assert any(said in one for one in found), found


def test_a_message_sent_after_an_ack_of_somebody_else_has_to_be_behind_it() -> None:
    history, logs = good_history()
    other = history.new_writer("unary", ALL)
    other.begin()
    other.settle(0, 5)  # long after offset 19 was acked
    assert any("had been acked" in one for one in violations(history, logs))


def test_leader_acks_may_be_lost_and_are_counted() -> None:
    history, logs = good_history()
    history.writers[1].offsets[0] = 3  # the message is at offset 1
    for log in logs:
        log.writers[5] = 7
    assert lost_leader_acks(history, logs[0]) == (1, 1)
    assert not [one for one in violations(history, logs) if "was acked" in one]


def keep(log: FinalLog, wanted: Callable[[int], bool]) -> FinalLog:
    """A log without the records at other places."""
    kept = FinalLog(log.replica)
    for place, offset in enumerate(log.offsets):
        if wanted(place):
            kept.add(offset, value_of(log.writers[place], log.numbers[place]), offset)
    return kept


def newest_only(log: FinalLog) -> FinalLog:
    newest = set(log.newest_of_key.values())
    return keep(log, lambda place: log.offsets[place] in newest)


RETAINED = Cleaning(retained_min=10)
COMPACTED = Cleaning(is_compacted=True)


def test_retention_may_remove_old_messages_at_its_own_time_on_each_replica() -> None:
    history, (one, other) = good_history(cleaning=RETAINED)
    logs = [keep(one, lambda place: place >= 5), keep(other, lambda place: place >= 10)]
    assert violations(history, logs) == []
    too_few = [one, keep(other, lambda place: place >= 11)]
    assert any("may not leave less" in fault for fault in violations(history, too_few))
    history.cleaning = KEEPS_ALL
    assert any("may not leave less" in fault for fault in violations(history, logs))


def test_retention_leaves_no_gaps_and_loses_no_end() -> None:
    history, (one, other) = good_history(cleaning=RETAINED)
    assert any("not dense" in fault for fault in violations(history, [one, keep(other, lambda place: place != 12)]))
    lost = violations(history, [one, keep(other, lambda place: 3 <= place < 18)])
    assert any("was acked at offset 18" in fault for fault in lost)
    assert any("or not the same" in fault for fault in lost)


@pytest.mark.parametrize(("start", "is_right"), [(8, True), (6, False)])
def test_a_reader_may_miss_what_retention_has_removed(start: int, is_right: bool) -> None:
    history, (one, other) = good_history(cleaning=RETAINED)
    reader = history.new_reader("late")
    for offset in range(8, MESSAGES):
        reader.take(offset, value_of(offset % 2, offset // 2), offset)
    found = violations(history, [one, keep(other, lambda place: place >= start)])
    assert found == [] if is_right else any("6 was not cleaned away" in fault for fault in found)


def test_compaction_may_remove_messages_with_newer_ones() -> None:
    history, (one, other) = good_history(4 * KEYS, COMPACTED)
    assert violations(history, [one, newest_only(other)]) == []
    history.cleaning = KEEPS_ALL
    assert violations(history, [one, newest_only(other)])


def test_compaction_keeps_the_newest_message_of_each_key() -> None:
    history, (one, other) = good_history(4 * KEYS, COMPACTED)
    newest = other.newest_of_key[key_of(0, 0)]
    found = violations(history, [one, keep(newest_only(other), lambda place: place % KEYS != 3)])
    assert any("was acked at offset" in fault for fault in found)
    assert any("or not the same" in fault for fault in found)
    reader = history.new_reader("skipping")
    for offset in range(4 * KEYS):
        if offset != newest:
            reader.take(offset, value_of(offset % 2, offset // 2), offset)
    assert any(f"{newest} was not cleaned away" in fault for fault in violations(history, [one, newest_only(other)]))


def test_values_are_only_good_whole() -> None:
    for number in range(50):
        value = value_of(3, number)
        assert read_value(value) == (3, number)
        for place in {0, 5, 12, len(value) - 1}:
            changed = value[:place] + bytes([value[place] ^ 1]) + value[place + 1 :]
            assert read_value(changed) is None, (number, place)
        assert read_value(value[:-1]) is None


def write_log(directory: Path, sizes: tuple[int, ...]) -> None:
    """The same messages in batches of these sizes."""
    log = PartitionLog(str(directory), LogOptions(segment_bytes_max=300), syncer=ManualSyncer(), clock=lambda: 1)
    numbers = iter(range(sum(sizes)))
    for size in sizes:
        log.append(batch_of([Draft(None, value_of(1, next(numbers))) for _ in range(size)]))
    log.close()


def test_files_are_read_and_compared_by_their_bytes(tmp_path: Path) -> None:
    for name, sizes in {"a": (1, 2, 3), "b": (1, 2, 3), "c": (3, 2, 1)}.items():
        write_log(tmp_path / name, sizes)
    logs = {name: read_files(name, tmp_path / name) for name in "abc"}
    assert logs["a"].digests == logs["b"].digests == logs["c"].digests
    assert list(logs["a"].offsets) == list(range(6))
    assert unequal_batches({name: tmp_path / name for name in "ab"}) == []
    (fault,) = unequal_batches({name: tmp_path / name for name in "ac"})
    assert "batch 0" in fault
