"""Other engines read an archive as the Delta table that it is, while a process writes it, merges its files and cleans up."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path

import duckdb
import polars
from deltalake import DeltaTable

from bascule.lake.archive import Archive, archive_state_at
from tests.support.archive_writer import ROWS, write
from tests.support.compacting import compact_all
from tests.support.waiting import eventually

COMMITS = 30
Offsets = list[tuple[int, int]]


def with_duckdb(table: DeltaTable) -> Offsets:
    archive = table.to_pyarrow_dataset()
    assert archive is not None  # DuckDB finds it by its name
    found = duckdb.sql('SELECT "partition", "offset" FROM archive ORDER BY ALL')
    assert found is not None
    return found.fetchall()


def with_polars(table: DeltaTable) -> Offsets:
    return polars.scan_delta(table).select("partition", "offset").sort("partition", "offset").collect().rows()


def with_pandas(table: DeltaTable) -> Offsets:
    frame = table.to_pandas(columns=["partition", "offset"]).sort_values(["partition", "offset"])
    return list(frame.itertuples(index=False, name=None))


def with_pyarrow(table: DeltaTable) -> Offsets:
    found = table.to_pyarrow_table(columns=["partition", "offset"]).sort_by(
        [("partition", "ascending"), ("offset", "ascending")]
    )
    return list(zip(found["partition"].to_pylist(), found["offset"].to_pylist(), strict=True))


ENGINES: dict[str, Callable[[DeltaTable], Offsets]] = {
    "DuckDB": with_duckdb,
    "Polars": with_polars,
    "pandas": with_pandas,
    "pyarrow": with_pyarrow,
}


def test_every_engine_reads_a_whole_version_while_the_archive_is_written_and_merged(tmp_path: Path) -> None:
    path = tmp_path / "lake"
    writer = subprocess.Popen([sys.executable, "-m", "tests.support.archive_writer", str(path), str(COMMITS)])
    versions: dict[str, set[int]] = {name: set() for name in ENGINES}
    try:
        eventually((path / "_delta_log" / f"{2:020d}.json").exists, "the archive has commits")
        while True:
            was_running = writer.poll() is None
            for name, read in ENGINES.items():
                table = DeltaTable(str(path))
                found = read(table)
                by_partition = [[offset for number, offset in found if number == partition] for partition in (0, 1)]
                assert all(offsets == list(range(len(offsets))) for offsets in by_partition), (
                    f"{name}: twice or not there"
                )
                assert len(found) == archive_state_at(Archive(path), table.version()).rows, name
                versions[name].add(table.version())
            if not was_running:
                break
    finally:
        writer.kill()
        writer.wait()
    assert writer.returncode == 0
    assert all(len(seen) > 2 for seen in versions.values()), "each engine has read while it was written"
    kinds = [commit.kind for commit in Archive(path).commits()]
    assert kinds.count("compact") > 2
    for name, read in ENGINES.items():
        assert len(read(DeltaTable(str(path)))) == COMMITS * ROWS, name


def test_an_engine_that_began_before_a_merge_ends_with_the_version_it_began_with(tmp_path: Path) -> None:
    path = tmp_path / "lake"
    write(path, 4, pause=0, days=1)
    tables = {name: DeltaTable(str(path)) for name in ENGINES}
    state = compact_all(path, keep_seconds=3600).state()
    assert len(state.replaced) == 4 and len(state.files) == 2
    for name, read in ENGINES.items():
        assert len(tables[name].file_uris()) == 4 and len(read(tables[name])) == state.rows, name
        assert len(read(DeltaTable(str(path)))) == state.rows, name


def test_days_that_a_query_does_not_ask_for_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "lake"
    write(path, 6, pause=0)
    files = Archive(path).state().files.values()
    day = sorted({one.date for one in files})[1]
    wanted = {one.path for one in files if one.date == day}
    assert {
        uri[len(str(path)) + 1 :]
        for uri in DeltaTable(str(path)).file_uris(file_pruning_predicate=[("date", "=", day)])
    } == wanted
    plan = polars.scan_delta(str(path)).filter(polars.col("date") == date.fromisoformat(day)).select("offset")
    for one in files:
        if one.path not in wanted:
            (path / one.path).unlink()
    assert plan.collect().height == sum(one.rows for one in files if one.path in wanted)
