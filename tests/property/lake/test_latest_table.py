"""Whatever comes, however it is cut, as often as it comes: the table holds what the newest messages of all keys are."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")

from bascule.errors import ArchiveDamaged, CallerError, InvalidRecord, StreamRecreated  # noqa: E402
from bascule.flight.schema import table_schema  # noqa: E402
from bascule.lake.latest.bucket import BucketTask  # noqa: E402
from bascule.lake.latest.merge import KeptRows, empty, merge  # noqa: E402
from bascule.lake.latest.table import LatestStore, latest_files  # noqa: E402
from tests.support.latest_tables import Message, Table, latest, places, stored, table_of  # noqa: E402

PARTITIONS = 3


@st.composite
def histories(draw: st.DrawFn) -> list[list[Message]]:
    """Of each partition. Times and epochs never go back within one; keys appear in all of them."""
    found = []
    for partition in range(PARTITIONS):
        seconds, epoch, messages = 0, 1, []
        for offset in range(draw(st.integers(0, 12))):
            seconds += draw(st.integers(0, 2))
            epoch += draw(st.integers(0, 1))
            key = draw(st.sampled_from([None, b"a", b"b", b"c", b"d"]))
            value = draw(st.none() | st.binary(max_size=3)) if key is not None else b"v"
            messages.append(Message(partition, offset * 2, key, value, seconds, epoch))
        found.append(messages)
    return found


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[list[list[Message]], list[list[Message]]]:
    """A history and its batches: new messages in the order of their partitions, old ones again wherever they come from."""
    history = draw(histories())
    ends = [0] * PARTITIONS
    batches = []
    for _ in range(draw(st.integers(1, 6))):
        batch: list[Message] = []
        for partition, messages in enumerate(history):
            end = draw(st.integers(ends[partition], len(messages)))
            start = draw(st.integers(0, ends[partition]))  # below what has come: a repetition
            batch += messages[start:end]
            ends[partition] = end
        draw(st.randoms(use_true_random=False)).shuffle(batch)
        batches.append(batch)
        if draw(st.booleans()):
            batches.append(draw(st.sampled_from(batches)))
    return history, batches


@given(deliveries())
@settings(max_examples=50, deadline=None)
def test_a_table_holds_the_newest_message_of_each_key(found: tuple[list[list[Message]], list[list[Message]]]) -> None:
    _, batches = found
    with tempfile.TemporaryDirectory() as name:
        table = Table.opened(Path(name) / "table")
        seen: set[Message] = set()
        for number, batch in enumerate(batches):
            is_new = not seen.issuperset(batch)
            seen.update(batch)
            was_changed = table.write(batch, number)
            assert is_new or not was_changed, "what comes again changes nothing"
            if table.writer.snapshot.number:
                assert stored(table.path) == places(latest(seen).values())
            else:
                assert not latest(seen)
        table.close()


@given(histories(), st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_the_order_in_which_partitions_are_read_does_not_matter(
    history: list[list[Message]], chance: random.Random
) -> None:
    """The merge alone: each partition in its order, the partitions against each other in any."""
    left = [list(messages) for messages in history]
    kept = empty(table_schema(), "key")
    while any(left):
        messages = chance.choice([one for one in left if one])
        count = chance.randint(1, len(messages))
        batch, messages[:count] = messages[:count], []
        kept = merge(kept, table_of(batch), "key", {}) or kept
    whole = [message for messages in history for message in messages]
    assert _places(kept) == places(latest(whole).values())
    keys = kept.rows["key"].drop_null().to_pylist()
    graves = kept.graves["key"].to_pylist()
    assert len({*keys, *graves}) == len(keys) + len(graves)
    assert {*keys, *graves} == {message.key for message in whole if message.key is not None}


def _places(kept: KeptRows) -> list[tuple[object, ...]]:
    rows = kept.rows.to_pylist()
    return sorted((row["partition"], row["offset"], row["key"] or b"", row["value"]) for row in rows)


# ── whoever dies, wherever ───────────────────────────────────────────────────────────────────────


class Killed(Exception):
    pass


@contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, target: type, name: str, *, behind: bool, after: int) -> Iterator[None]:
    """The call of this number is not made, or is the last thing that is done."""
    whole: Callable[..., object] = getattr(target, name)
    calls = iter(range(1, 1000))

    def call(*arguments: object, **options: object) -> object:
        if next(calls) < after:
            return whole(*arguments, **options)
        if behind:
            whole(*arguments, **options)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(target, name, call)
        yield


STEPS = [
    (BucketTask, "_write"),
    (LatestStore, "commit"),
    (LatestStore, "expire"),
    (LatestStore, "_remove"),
    (LatestStore, "remove_leftovers"),
]


@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize(("target", "name"), STEPS, ids=[name for _, name in STEPS])
def test_a_death_at_any_step_leaves_a_right_table(
    target: type, name: str, behind: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    history = [Message(n % 2, n, b"%d" % (n % 5), None if n % 7 == 3 else b"%d" % n, n) for n in range(40)]
    batches = [history[at : at + 10] for at in range(0, 40, 10)]
    for after in (1, 2, 5):
        path = tmp_path / f"{after}"
        done: list[Message] = []
        table = Table.opened(path, keep_seconds=0)
        deaths = 0
        for number, batch in enumerate(batches):
            with dying(monkeypatch, target, name, behind=behind, after=after):
                try:
                    table.write(batch, number)
                except Killed:
                    deaths += 1
            _is_one_of(path, [done, [*done, *batch]])
            table.close()
            with dying(monkeypatch, target, name, behind=behind, after=after):
                try:
                    table = Table.opened(path, keep_seconds=0)
                except Killed:
                    deaths += 1
                    table = None  # type: ignore[assignment]
            if table is None:
                table = Table.opened(path, keep_seconds=0)
            table.write(batch, number)  # it comes again, as it does when nobody noted that it was done
            done += batch
            _is_one_of(path, [done])
        table.close()
        if after == 1:
            assert deaths, "this step was never reached"
        table = Table.opened(path, keep_seconds=0)
        changed = [table.write(batch, number) for number, batch in enumerate(batches)]
        assert not any(changed), "all of it, from the start"
        table.close()
        on_disk = {str(file.relative_to(path)) for file in path.rglob("*.parquet")}
        assert on_disk == set().union(*(one.files for one in LatestStore(path).snapshots()))


def _is_one_of(path: Path, histories: list[list[Message]]) -> None:
    store = LatestStore(path)
    found = stored(path) if store.snapshot().number else []
    assert found in [places(latest(history).values()) for history in histories]


def test_messages_without_a_key_are_kept_skipped_or_refused(tmp_path: Path) -> None:
    messages = [Message(0, 0, b"a", b"1", 0), Message(0, 1, None, b"2", 0), Message(0, 2, None, b"3", 0)]
    for choice, left in (("keep", messages), ("skip", messages[:1])):
        table = Table.opened(tmp_path / choice, null_keys=choice)
        table.write(messages)
        table.close()
        assert stored(tmp_path / choice) == places(left)
    table = Table.opened(tmp_path / "fail", null_keys="fail")
    with pytest.raises(InvalidRecord, match="orders/0: the message at offset 1 has no key"):
        table.write(messages)
    table.close()


def test_a_snapshot_that_was_replaced_stays_for_its_time(tmp_path: Path) -> None:
    table = Table.opened(tmp_path / "t", keep_seconds=60)
    table.write([Message(0, 0, b"a", b"1", 0)])
    files = latest_files(tmp_path / "t")
    table.write([Message(0, 1, b"a", b"2", 0)])
    assert all(Path(file).exists() for file in files)
    table.writer.store.expire(60, table.writer.snapshot.at_ns + 59 * 10**9)
    assert all(Path(file).exists() for file in files)
    assert table.writer.store.expire(60, table.writer.snapshot.at_ns + 60 * 10**9) == 1
    assert not any(Path(file).exists() for file in files)
    assert stored(tmp_path / "t") == [(0, 1, b"a", b"2")]
    table.close()


def test_a_grave_is_kept_as_long_as_partitions_may_be_apart(tmp_path: Path) -> None:
    day = 24 * 3600
    table = Table.opened(tmp_path / "t", buckets=1)
    table.write([Message(0, 0, b"a", None, 10)])
    table.write([Message(1, 0, b"a", b"older", 9), Message(1, 1, b"b", b"1", 10 + day)])
    assert stored(tmp_path / "t") == [(1, 1, b"b", b"1")]
    assert table.writer.snapshot.buckets[0].graves == 1
    table.write([Message(1, 2, b"b", b"2", 11 + day)])
    assert table.writer.snapshot.buckets[0].graves == 0
    table.close()


def test_a_folder_of_something_else_and_a_stream_of_another_life_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("x")
    with pytest.raises(CallerError, match="not empty and no table"):
        Table.opened(tmp_path / "mine")
    table = Table.opened(tmp_path / "t")
    table.write([Message(0, 0, b"a", b"1", 0)])
    with pytest.raises(StreamRecreated):
        table.writer.must_be_the_same({"orders": 8})
    table.close()
    with pytest.raises(CallerError, match="made with `null_keys` = `keep`, not `skip`"):
        Table.opened(tmp_path / "t", null_keys="skip")
    with pytest.raises(ArchiveDamaged, match="holds no table of latest messages"):
        latest_files(tmp_path / "mine")
