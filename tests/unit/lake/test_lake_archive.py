"""An archive is what its commits say, each there whole or not at all; and its proof names everything that was done to them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from bascule.errors import ArchiveConflict, ArchiveDamaged, ArchiveUnreachable, BasculeError, CallerError
from bascule.lake.archive import HEAD, Archive, archive_state_at, files_covering
from bascule.lake.delta.log import commit_name
from bascule.lake.facts import Commit, Covered, DataFile
from bascule.lake.housekeeping import Housekeeping
from bascule.lake.repair import repair_files
from tests.support.archives import archive_rows
from tests.support.compacting import compact_all, messages, small_files
from tests.unit.lake.test_lake_verification import Log, prove


def data_file(name: str, first: int, last: int) -> DataFile:
    path = f"date=2026-11-15/{name}.parquet"
    return DataFile(path, "orders", 7, 0, first, last, last - first + 1, 100, 0xABCD, "2026-11-15")


def append(number: int, *files: DataFile, end: int) -> Commit:
    return Commit(number, "append", 1_000 + number, "query", number, files, (), (Covered("orders", 7, 0, 0, end),))


def archive(path: Path) -> Archive:
    made = Archive(path)
    made.create(["orders"])
    return made


# ── commits ──────────────────────────────────────────────────────────────────────────────────────


def test_the_state_is_the_sum_of_the_commits(tmp_path: Path) -> None:
    made = archive(tmp_path / "a")
    made.commit(append(1, data_file("x", 0, 9), end=10))
    made.commit(append(2, data_file("y", 10, 19), end=25))
    merged = data_file("z", 0, 19)
    gone = (data_file("x", 0, 9).path, data_file("y", 10, 19).path)
    made.commit(Commit(3, "compact", 1_003, added=(merged,), removed=gone))
    state = Archive(tmp_path / "a").state()
    assert state.number == 3
    assert state.in_order() == [merged]
    assert state.next_offsets == {("orders", 7, 0): 25}
    assert (state.rows, state.bytes, state.last_commit_ns) == (20, 100, 1_003)
    assert archive_state_at(made, 2).rows == 20 and len(archive_state_at(made, 2).files) == 2
    assert files_covering(made) == (3, {("orders", 7, 0): [merged]})


def test_of_two_writers_one_commits(tmp_path: Path) -> None:
    made, other = archive(tmp_path / "a"), Archive(tmp_path / "a")
    state, late = made.state(), other.state()
    state.apply(made.commit(append(1, data_file("x", 0, 9), end=10), state))
    with pytest.raises(ArchiveConflict, match="another writer has made commit 1"):
        other.commit(append(1, data_file("y", 0, 9), end=99), late)
    assert made.state().next_offsets == {("orders", 7, 0): 10}
    assert made.state().whole() == state.whole()


def test_a_commit_whose_answer_is_lost_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = archive(tmp_path / "a")
    state = made.state()
    create = DeltaTable.create_write_transaction

    def lose_the_answer(self: DeltaTable, *arguments: Any, **options: Any) -> None:
        create(self, *arguments, **options)
        raise OSError("connection reset")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", lose_the_answer)
    state.apply(made.commit(append(1, data_file("x", 0, 9), end=10), state))
    monkeypatch.undo()
    state.apply(made.commit(append(2, data_file("y", 10, 19), end=20), state))
    assert Archive(tmp_path / "a").state().whole() == state.whole()


def test_one_process_writes(tmp_path: Path) -> None:
    made = archive(tmp_path / "a")
    with made.writing(), pytest.raises(ArchiveConflict, match="another pipeline"), Archive(tmp_path / "a").writing():
        pass
    with Archive(tmp_path / "a").writing():
        pass


def test_what_no_commit_names_is_not_there_and_goes(tmp_path: Path) -> None:
    made = archive(tmp_path / "a")
    kept, left = data_file("kept", 0, 0), data_file("left", 1, 1)
    for one in (kept, left):
        path = tmp_path / "a" / one.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    made.commit(append(1, kept, end=1))
    assert Housekeeping(made).begin().whole() == made.state().whole()
    assert (tmp_path / "a" / kept.path).exists()
    assert not (tmp_path / "a" / left.path).exists()


@pytest.mark.parametrize("content", ["", "[]", "{", '{"add": {}}', '{"add": {"path": "x"}}', "nonsense"])
def test_a_commit_that_is_no_commit_is_named(tmp_path: Path, content: str) -> None:
    made = archive(tmp_path / "a")
    (tmp_path / "a" / commit_name(1)).write_text(content)
    with pytest.raises(ArchiveDamaged, match=r"00000000000000000001\.json"):
        made.state()


def test_a_commit_that_is_missing_is_named(tmp_path: Path) -> None:
    made = small_files(tmp_path / "a", files=3)
    (made.path / commit_name(2)).unlink()
    with pytest.raises(ArchiveDamaged, match="commit 2 is missing, 3 is there"):
        made.state()


def test_a_later_format_is_refused(tmp_path: Path) -> None:
    made = archive(tmp_path / "a")
    first = made.path / commit_name(0)
    first.write_text(first.read_text().replace('\\"format\\": 2', '\\"format\\": 3'))
    with pytest.raises(ArchiveDamaged, match="has format 3, this version knows 2"):
        Archive(made.path).state()


def test_what_is_no_archive_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/mine.txt").write_text("x")
    with pytest.raises(CallerError, match="not empty"):
        Archive(tmp_path / "mine").create(["orders"])
    with pytest.raises(ArchiveUnreachable, match="is no archive"):
        Archive(tmp_path / "mine").state()
    write_deltalake(tmp_path / "theirs", pa.table({"a": [1]}))
    with pytest.raises(CallerError, match="a Delta table of another writer"):
        Archive(tmp_path / "theirs").create(["orders"])
    with pytest.raises(CallerError, match="a Delta table of another writer"):
        Archive(tmp_path / "theirs").state()
    archive(tmp_path / "orders")
    with pytest.raises(CallerError, match="is an archive of `orders`, not of `returns`"):
        Archive(tmp_path / "orders").create(["returns"])


def test_a_state_from_a_checkpoint_is_that_of_the_commits(tmp_path: Path) -> None:
    made = small_files(tmp_path / "a", files=5)
    before = made.state()
    DeltaTable(made.path).create_checkpoint()
    for number in range(before.number):
        (made.path / commit_name(number)).unlink()
    after = Archive(made.path).state()
    assert (after.files, after.next_offsets, after.chain) == (before.files, before.next_offsets, before.chain)
    assert after.whole() == after.claimed == before.whole()
    archive_rows(made.path, 7, [messages(50, 10)])
    compact_all(made.path)
    assert (prove(made.path, None).faults, made.state().rows) == ([], 60)


def test_other_engines_read_it_while_it_is_compacted(tmp_path: Path) -> None:
    made = small_files(tmp_path / "a", files=6)
    opened = DeltaTable(made.path)
    compact_all(made.path, keep_seconds=3600)
    assert opened.to_pyarrow_table().num_rows == DeltaTable(made.path).to_pyarrow_table().num_rows == 60
    filtered = DeltaTable(made.path).to_pyarrow_table(filters=[("offset", ">=", 40), ("partition", "=", 0)])
    assert sorted(filtered["offset"].to_pylist()) == list(range(40, 60))


# ── damage ───────────────────────────────────────────────────────────────────────────────────────


def _lines(path: Path, number: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / commit_name(number)).read_text().splitlines()]


def _edit(path: Path, number: int, change: Callable[[dict[str, Any]], None]) -> None:
    lines = _lines(path, number)
    for line in lines:
        change(line)
    (path / commit_name(number)).write_text("\n".join(map(json.dumps, lines)))


def _in_entry(**values: Any) -> Callable[[Path], None]:
    def change(line: dict[str, Any]) -> None:
        if "add" in line:
            line["add"] |= values

    return lambda path: _edit(path, 2, change)


def _in_statistics(path: Path) -> None:
    def change(line: dict[str, Any]) -> None:
        if "add" in line:
            found = json.loads(line["add"]["stats"])
            found["maxValues"]["offset"] = 3
            line["add"]["stats"] = json.dumps(found)

    _edit(path, 2, change)


def _in_facts(path: Path) -> None:
    def change(line: dict[str, Any]) -> None:
        if "add" in line:
            line["add"]["stats"] = line["add"]["stats"].replace('"last_us":', '"last_us":1')

    _edit(path, 2, change)


def _in_transaction(path: Path) -> None:
    def change(line: dict[str, Any]) -> None:
        if "txn" in line:
            line["txn"]["version"] += 5

    _edit(path, 6, change)


def _in_metadata(path: Path) -> None:
    def change(line: dict[str, Any]) -> None:
        if "metaData" in line:
            line["metaData"]["description"] = line["metaData"]["description"].replace("orders", "others")

    _edit(path, 0, change)


def _swap_entries(path: Path) -> None:
    first, second = _lines(path, 2), _lines(path, 3)
    a, b = (next(line["add"] for line in lines if "add" in line) for lines in (first, second))
    a["path"], b["path"] = b["path"], a["path"]
    for number, lines in ((2, first), (3, second)):
        (path / commit_name(number)).write_text("\n".join(map(json.dumps, lines)))


def _copy(source: int, target: int) -> Callable[[Path], Any]:
    return lambda path: (path / commit_name(target)).write_bytes((path / commit_name(source)).read_bytes())


def _remove(*numbers: int) -> Callable[[Path], Any]:
    def act(path: Path) -> None:
        for number in numbers:
            (path / commit_name(number)).unlink()

    return act


def _file(path: Path, number: int = 1) -> Path:
    return path / Archive(path).state().in_order()[number].path


def _change_footer(path: Path) -> None:
    """The greatest offset in the statistics of the footer."""
    one = _file(path)
    data = one.read_bytes()
    at = data.rindex((19).to_bytes(8, "little"))  # offsets 10 to 19 are in it
    one.write_bytes(data[:at] + (11).to_bytes(8, "little") + data[at + 8 :])


def _rewrite(change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], None]:
    def act(path: Path) -> None:
        one = _file(path)
        pq.write_table(change(pq.read_table(one, partitioning=None)), one)

    return act


def _later(table: pa.Table) -> pa.Table:
    rows = table.to_pylist()
    rows[3]["timestamp"] = rows[4]["timestamp"]
    return pa.Table.from_pylist(rows, schema=table.schema)


def _flip(path: Path) -> None:
    data = bytearray(_file(path).read_bytes())
    data[len(data) // 4] ^= 0x40
    _file(path).write_bytes(data)


def _swap_files(path: Path) -> None:
    one, other = _file(path, 1), _file(path, 2)
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def _move_folder(path: Path) -> None:
    (path / "date=1970-01-01").rename(path / "date=1970-01-02")


def _append_foreign(path: Path) -> None:
    rows = pa.Table.from_batches([messages(60, 5)])
    dates = pa.array([0] * 5, pa.date32())
    write_deltalake(path, rows.append_column("date", dates), mode="append")


def _optimize_foreign(path: Path) -> None:
    DeltaTable(path).optimize.compact()


def _delete_foreign(path: Path) -> None:
    DeltaTable(path).delete('"offset" = 12')


def _checkpoint(path: Path) -> None:
    DeltaTable(path).create_checkpoint()


def _lose_checkpoint(path: Path) -> None:
    _checkpoint(path)
    next((path / "_delta_log").glob("*.checkpoint.parquet")).unlink()


def _change_checkpoint(path: Path) -> None:
    _checkpoint(path)
    one = next((path / "_delta_log").glob("*.checkpoint.parquet"))
    table = pq.read_table(one)
    rows = [
        row for row in table.to_pylist() if not (row["add"] and "orders-0-00000000000000000020" in row["add"]["path"])
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), one)


DAMAGES: dict[str, tuple[Callable[[Path], Any], set[str]]] = {
    "row dropped": (_rewrite(lambda table: pa.concat_tables([table[:4], table[5:]])), {"rows-missing"}),
    "row doubled": (_rewrite(lambda table: pa.concat_tables([table[:5], table[4:]])), {"rows-doubled"}),
    "rows in another order": (_rewrite(lambda table: pa.concat_tables([table[5:], table[:5]])), {"file-changed"}),
    "timestamp changed": (_rewrite(_later), {"file-changed", "rows-changed"}),
    "file written anew with the same rows": (_rewrite(lambda table: table), {"file-changed"}),
    "footer statistic changed": (_change_footer, {"file-changed"}),
    "byte flipped": (_flip, {"file-unreadable", "file-changed", "rows-changed"}),
    "file removed": (lambda path: _file(path).unlink(), {"file-missing"}),
    "file truncated": (lambda path: os.truncate(_file(path), 500), {"file-unreadable"}),
    "file longer": (
        lambda path: _file(path).write_bytes(b"PAR1" + _file(path).read_bytes()),
        {"file-unreadable", "file-changed"},
    ),
    "files swapped": (_swap_files, {"file-changed", "rows-missing", "rows-invented"}),
    "folder moved": (_move_folder, {"file-missing"}),
    "size of an entry": (_in_entry(size=77), {"commit-changed"}),
    "date of an entry": (_in_entry(partitionValues={"date": "2020-01-01"}), {"entry-changed"}),
    "path of an entry": (_in_entry(path="date=1970-01-01/other.parquet"), {"commit-changed"}),
    "statistics of an entry": (_in_statistics, {"entry-changed"}),
    "facts of an entry": (_in_facts, {"commit-changed", "entry-changed"}),
    "facts removed": (_in_entry(stats='{"numRecords":10}'), {"commit-changed", "entry-changed"}),
    "next offset": (_in_transaction, {"commit-changed"}),
    "entries swapped": (_swap_entries, {"commit-changed"}),
    "description": (_in_metadata, {"description-changed"}),
    "old commit over a newer one": (_copy(2, 4), {"commit-changed"}),
    "commit of another time replayed": (_copy(2, 7), {"commit-changed"}),
    "commit removed": (_remove(3), {"commit-missing"}),
    "first commit removed": (_remove(0), {"commit-missing"}),
    "newest commit removed": (_remove(6), {"commits-missing"}),
    "newest commits removed": (_remove(4, 5, 6), {"commits-missing"}),
    "commit cut": (lambda path: (path / commit_name(3)).write_text('{"add":'), {"commit-unreadable"}),
    "rows of another writer": (_append_foreign, {"foreign-commit"}),
    "compaction of another writer": (_optimize_foreign, {"foreign-commit"}),
    "deletion of another writer": (_delete_foreign, {"foreign-commit"}),
    "checkpoint lost": (_lose_checkpoint, {"checkpoint-missing"}),
    "checkpoint changed": (_change_checkpoint, {"checkpoint-changed"}),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("is_online", [False, True])
def test_the_proof_names_every_damage(tmp_path: Path, damage: str, is_online: bool) -> None:
    made = small_files(tmp_path / "a", files=6)
    log = Log(messages(0, 60)) if is_online else None
    assert prove(made.path, log).faults == []
    act, kinds = DAMAGES[damage]
    act(made.path)
    found = {fault.kind for fault in prove(made.path, log).faults}
    assert found & kinds, found


def test_a_checkpoint_is_no_damage(tmp_path: Path) -> None:
    made = small_files(tmp_path / "a", files=6)
    compact_all(made.path, keep_seconds=3600)
    _checkpoint(made.path)
    assert prove(made.path, None).faults == []
    vacuumed = DeltaTable(made.path).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    report = prove(made.path, None)
    assert len(vacuumed) >= 6 and report.faults == []
    assert "is of another writer" in report.unchecked[0]
    archive_rows(made.path, 7, [messages(60, 5)])
    assert prove(made.path, None).faults == []


def test_with_all_commits_gone_nothing_says_equal(tmp_path: Path) -> None:
    made = small_files(tmp_path / "a", files=3)
    shutil.rmtree(made.path / "_delta_log")
    for act in (lambda: prove(made.path, None), lambda: Archive(made.path).create(["orders"]), made.state):
        with pytest.raises(ArchiveDamaged, match=r"has lost all its commits: .* commit 3 had been made"):
            act()


def test_a_restored_backup_is_noticed_by_the_cursor_of_the_brokers(tmp_path: Path) -> None:
    made = small_files(tmp_path / "a", files=6)
    backup = shutil.copytree(made.path, tmp_path / "backup")
    for number in (5, 6):
        (backup / commit_name(number)).unlink()
    before = Archive(backup).commit_at(4)
    assert before is not None
    (backup / HEAD).write_text(json.dumps({"version": 4, "chain": before.chain}))
    log = Log(messages(0, 60))
    assert prove(backup, log).faults == [], "the folder itself cannot know"
    asked: list[tuple[str, str, int]] = []

    def cursor(name: str, stream: str, partition: int) -> int | None:
        asked.append((name, stream, partition))
        return 59

    (fault,) = prove(backup, log, cursors=cursor).faults
    assert fault.kind == "commits-missing" and "is at 59, the archive ends before 40" in fault.text
    assert prove(made.path, log, cursors=cursor).faults == []
    assert asked[0] == ("archive:backup", "orders", 0)


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        ("newest commit removed", "commit 6 is not there any more"),
        ("old commit over a newer one", None),
        ("rows of another writer", "another writer"),
    ],
)
def test_a_writer_does_not_go_on_with_a_table_that_was_replaced(tmp_path: Path, damage: str, what: str | None) -> None:
    made = small_files(tmp_path / "a", files=6)
    state = made.state()
    DAMAGES[damage][0](made.path)
    with pytest.raises(BasculeError, match=what or "."):
        made.must_be_as(made.state())
        made.commit(append(7, end=60), state)
    assert not (made.path / commit_name(8)).exists()


# ── repair ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "damage",
    ["row dropped", "row doubled", "timestamp changed", "footer statistic changed", "file removed", "file truncated"],
)
def test_a_repair_restores_the_file_from_the_log(tmp_path: Path, damage: str) -> None:
    made = small_files(tmp_path / "a", files=6)
    DAMAGES[damage][0](made.path)
    log = Log(messages(0, 60))
    report = repair_files(made, log)  # type: ignore[arg-type]
    assert (report.checked, len(report.repaired), report.failed) == (6, 1, [])
    assert prove(made.path, log).faults == []
    assert DeltaTable(made.path).to_pyarrow_table().num_rows == 60


def test_what_the_log_no_longer_has_is_named_and_left_as_it_is(tmp_path: Path) -> None:
    made = small_files(tmp_path / "a", files=3)
    lost, other = _file(made.path, 0), _file(made.path, 2)
    lost.unlink()
    other.unlink()
    report = repair_files(made, Log(messages(0, 30), start=5))  # type: ignore[arg-type]
    assert len(report.repaired) == 1
    (said,) = report.failed
    assert "offsets 0 to 9 of orders/0: it is gone" in said
    assert {fault.kind for fault in prove(made.path, None).faults} == {"file-missing"}
