"""A stream in an archive: all of it, once, and the proof."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from bascule.cli.main import app
from bascule.client.arrow.reader import FlightConnection
from bascule.client.blocking import BlockingClient
from bascule.errors import ArchiveDamaged, CallerError, StreamRecreated
from bascule.lake.archive import Archive
from bascule.lake.facts import Commit
from bascule.lake.verification import Report, Verification
from bascule.pipeline.jobs.archive import ArchiveJob, ArchiveOptions, run_archive
from tests.cli.command_line import run as run_command
from tests.spark.conftest import MakeStream, publish
from tests.support.broker_fixtures import unique_name
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import eventually

Verify = Callable[[Path], Report]


@pytest.fixture
def verify(tables: BrokerProcess) -> Verify:
    def check(path: Path) -> Report:
        with FlightConnection(tables.address) as connection:
            return Verification(Archive(path), connection, lambda _: None).run()

    return check


def options_of(tables: BrokerProcess, stream: str, path: Path, **more: Any) -> ArchiveOptions:
    return ArchiveOptions(streams=(stream,), path=str(path), servers=tables.address, **more)


def texts(report: Report) -> list[str]:
    return [f"{fault.kind}: {fault.text}" for fault in report.faults]


def test_everything_is_archived_once_and_the_rest_later(
    spark: SparkSession,
    tables: BrokerProcess,
    client: BlockingClient,
    make_stream: MakeStream,
    verify: Verify,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bascule.pipeline.jobs.archive.CURSOR_SECONDS_MAX", 60.0)  # a busy machine takes longer
    stream = make_stream(500, partitions=3)
    options = options_of(tables, stream, tmp_path / "lake")
    state = run_archive(spark, options, once=True)
    assert state.rows == 1500
    publish(client, stream, 100, partition=1, first=500)
    state = run_archive(spark, options, once=True)
    assert state.rows == 1600
    assert {key[2]: end for key, end in state.next_offsets.items()} == {0: 500, 1: 600, 2: 500}
    cursors = [client.fetch_cursor("archive:lake", stream, number) for number in range(3)]
    assert cursors == [499, 599, 499], "brokers know how far it is, to the last message"
    report = verify(tmp_path / "lake")
    assert (report.is_equal, report.rows, report.rows_compared, report.unchecked) == (True, 1600, 1600, [])
    files = [str(tmp_path / "lake" / one.path) for one in state.in_order()]
    assert spark.read.parquet(*files).where("partition = 1").count() == 600


def test_a_batch_that_comes_again_writes_nothing(
    spark: SparkSession, tables: BrokerProcess, make_stream: MakeStream, verify: Verify, tmp_path: Path
) -> None:
    stream = make_stream(300)
    options = options_of(tables, stream, tmp_path / "lake")
    before = run_archive(spark, options, once=True)
    noted = tmp_path / "lake/_bascule/checkpoint/commits"
    last = max(int(path.name) for path in noted.glob("[0-9]*"))
    for name in (f"{last}", f".{last}.crc"):  # as if the driver had died before Spark noted the batch
        (noted / name).unlink()
    after = run_archive(spark, options, once=True)
    assert (after.rows, after.number) == (before.rows, before.number)
    shutil.rmtree(tmp_path / "lake/_bascule/checkpoint")  # as if the checkpoint had been lost: everything comes again
    after = run_archive(spark, options, once=True)
    assert (after.rows, after.number) == (before.rows, before.number)
    assert verify(tmp_path / "lake").is_equal


def test_what_died_before_its_commit_leaves_nothing(
    spark: SparkSession, tables: BrokerProcess, make_stream: MakeStream, verify: Verify, tmp_path: Path
) -> None:
    stream = make_stream(200)
    options = options_of(tables, stream, tmp_path / "lake")

    class Dies(ArchiveJob):
        def _commit(self, *_: Any) -> None:
            raise RuntimeError("killed")

    job = Dies(spark, options)
    job.open()
    query = job.start(once=True)
    with pytest.raises(Exception, match="killed"):
        query.awaitTermination()
    job.close()
    assert list((tmp_path / "lake").rglob("date=*/*.parquet"))
    state = run_archive(spark, options, once=True)
    on_disk = {str(path.relative_to(tmp_path / "lake")) for path in (tmp_path / "lake").rglob("date=*/*.parquet")}
    assert on_disk == set(state.files)
    assert verify(tmp_path / "lake").is_equal


def test_a_pattern_takes_in_streams_that_come_later(
    spark: SparkSession, tables: BrokerProcess, make_stream: MakeStream, verify: Verify, tmp_path: Path
) -> None:
    prefix = unique_name("pattern")
    make_stream(20, name=f"{prefix}-a")
    options = ArchiveOptions(pattern=f"{prefix}-.*", path=str(tmp_path / "lake"), servers=tables.address)
    assert run_archive(spark, options, once=True).rows == 20
    make_stream(30, partitions=2, name=f"{prefix}-b")
    state = run_archive(spark, options, once=True)
    assert {(stream, number): end for (stream, _, number), end in state.next_offsets.items()} == {
        (f"{prefix}-a", 0): 20,
        (f"{prefix}-b", 0): 30,
        (f"{prefix}-b", 1): 30,
    }
    with FlightConnection(tables.address) as connection:
        ids = {name: stream["id"] for name, stream in connection.offsets([f"{prefix}-a", f"{prefix}-b"]).items()}
    assert {(one.stream, one.stream_id) for one in state.files.values()} == set(ids.items())
    assert verify(tmp_path / "lake").is_equal


def test_a_stream_that_is_created_again_while_it_runs_is_not_mixed_with_the_former(
    spark: SparkSession,
    tables: BrokerProcess,
    client: BlockingClient,
    make_stream: MakeStream,
    tmp_path: Path,
) -> None:
    stream = make_stream(50)
    options = options_of(tables, stream, tmp_path / "lake", trigger_seconds=0.1, source={"onDataLoss": "skip"})
    job = ArchiveJob(spark, options)
    job.open()
    try:
        query = job.start()
        eventually(lambda: job.archive.state().rows == 50, "the stream is archived")
        client.delete_stream(stream)
        client.create_stream(stream, f"subject.{stream}")
        publish(client, stream, 70)
        with pytest.raises(Exception, match=r"STREAM_RECREATED|created again"):
            query.awaitTermination(120)
    finally:
        job.close()
    assert job.archive.state().rows == 50
    with pytest.raises(StreamRecreated):
        ArchiveJob(spark, options).open()
    with Archive(tmp_path / "lake").writing():  # who is refused holds nothing
        pass


def test_what_was_archived_by_another_query_is_not_written_again(
    spark: SparkSession, tables: BrokerProcess, make_stream: MakeStream, verify: Verify, tmp_path: Path
) -> None:
    """`write` is for any query: a batch in which some messages are old, or the columns are others."""
    stream = make_stream(100)
    options = options_of(tables, stream, tmp_path / "lake")
    read = spark.read.format("bascule").options(servers=tables.address, stream=stream)
    some = read.option("endingOffsets", json.dumps({stream: {"0": 60}})).load()
    frame = read.option("endingOffsets", "latest").load()
    job = ArchiveJob(spark, options)
    job.open()
    try:
        job.write(some, 0)
        job.write(frame.selectExpr("*", "offset + 1 AS more"), 1)
        job.write(frame, 2)
        for wrong, what in (
            (frame.drop("key"), "`key`"),
            (frame.selectExpr("* EXCEPT (value)", "offset AS value"), "bigint"),
        ):
            with pytest.raises(CallerError, match=what):
                job.write(wrong, 3)
    finally:
        job.close()
    state = job.archive.state()
    assert (state.number, [(one.first_offset, one.last_offset) for one in state.in_order()]) == (2, [(0, 59), (60, 99)])
    assert verify(tmp_path / "lake").is_equal


def test_small_files_are_merged_while_it_runs(
    spark: SparkSession, tables: BrokerProcess, make_stream: MakeStream, verify: Verify, tmp_path: Path
) -> None:
    stream = make_stream(400)
    seen: list[Commit] = []
    source = {"maxOffsetsPerTrigger": "100"}
    options = options_of(tables, stream, tmp_path / "lake", source=source, compact_every=2, keep_replaced_seconds=0.0)
    state = run_archive(spark, options, once=True, on_commit=seen.append)
    assert [commit.kind for commit in seen] == ["append", "append", "compact"] * 2
    assert (state.rows, len(state.files) <= 3) == (400, True), "one more than two if it was midnight meanwhile"
    assert len(list((tmp_path / "lake").rglob("*.parquet"))) == len(state.files)
    report = verify(tmp_path / "lake")
    assert (report.is_equal, report.rows_compared) == (True, 400)
    shutil.rmtree(tmp_path / "lake/_bascule/checkpoint")
    after = run_archive(spark, options, once=True)
    assert (after.rows, after.number) == (400, state.number)


def test_a_session_of_spark_connect_is_refused_before_anything_is_made(
    connect_spark: Any, tables: BrokerProcess, make_stream: MakeStream, tmp_path: Path
) -> None:
    with pytest.raises(CallerError, match="Spark Connect"):
        run_archive(connect_spark, options_of(tables, make_stream(1), tmp_path / "lake"), once=True)
    assert not (tmp_path / "lake").exists()


# ── damage: an archive that is not whole is told from one that is, and what is wrong with it is named ──


@pytest.fixture(scope="module")
def whole(
    spark: SparkSession,
    tables: BrokerProcess,
    client: BlockingClient,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    path = tmp_path_factory.mktemp("archive") / "lake"
    client.create_stream("damaged-archive", "damaged-archive")
    publish(client, "damaged-archive", 100)
    run_archive(spark, options_of(tables, "damaged-archive", path), once=True)
    return path


@pytest.fixture
def lake(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "lake")
    return tmp_path / "lake"


def rewrite(lake: Path, change: Callable[[Any], Any]) -> str:
    import pyarrow.parquet as pq

    path = next(lake.rglob("date=*/*.parquet"))
    pq.write_table(change(pq.read_table(path, partitioning=None)), path)
    return str(path.relative_to(lake))


def test_damage_the_copy_is_equal(lake: Path, verify: Verify) -> None:
    assert texts(verify(lake)) == []


def test_damage_a_row_dropped(lake: Path, verify: Verify) -> None:
    import pyarrow as pa

    name = rewrite(lake, lambda table: pa.concat_tables([table.slice(0, 41), table.slice(42)]))
    assert texts(verify(lake)) == [
        f"rows-missing: {name}: offsets 41 of damaged-archive/0 are in the log and not in it"
    ]


def test_damage_a_row_doubled(lake: Path, verify: Verify) -> None:
    import pyarrow as pa

    name = rewrite(lake, lambda table: pa.concat_tables([table.slice(0, 8), table.slice(7)]))
    assert texts(verify(lake)) == [f"rows-doubled: {name}: offsets 7 of damaged-archive/0 are in it more than once"]


def test_damage_a_row_changed(lake: Path, verify: Verify) -> None:
    import pyarrow as pa

    def change(table: Any) -> Any:
        values = table["value"].to_pylist()
        values[50] = b"something else"
        return table.set_column(1, table.schema.field(1), pa.array(values, pa.binary()))

    name = rewrite(lake, change)
    assert texts(verify(lake)) == [f"rows-changed: {name}: offsets 50 of damaged-archive/0 are not what the log has"]


def test_damage_a_file_removed(lake: Path, verify: Verify) -> None:
    path = next(lake.rglob("date=*/*.parquet"))
    path.unlink()
    assert texts(verify(lake)) == [
        f"file-missing: {path.relative_to(lake)} is gone, and with it 100 messages, offsets 0 to 99"
    ]


def test_damage_a_file_cut_short(lake: Path, verify: Verify) -> None:
    path = next(lake.rglob("date=*/*.parquet"))
    path.write_bytes(path.read_bytes()[:-20])
    assert [fault.kind for fault in verify(lake).faults] == ["file-unreadable"]


def test_damage_without_the_log_its_own_checksums_speak(lake: Path) -> None:
    assert Verification(Archive(lake), None, lambda _: None).run().is_equal
    rewrite(lake, lambda table: table.slice(0, 99))
    report = Verification(Archive(lake), None, lambda _: None).run()
    assert [fault.kind for fault in report.faults] == ["rows-missing"]


def test_the_command_line_archives_shows_and_proves(
    spark: SparkSession,
    tables: BrokerProcess,
    client: BlockingClient,
    make_stream: MakeStream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In this process, and with this Spark: tests/spark/pipeline/test_demo_spark.py has the command as a process of its own."""
    stream = make_stream(50, partitions=2)
    lake = tmp_path / "lake"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr("bascule.cli.pipeline.archive.quiet_session", lambda *_: contextlib.nullcontext(spark))

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["pipeline", *arguments, "--server", tables.address])

    done = run("archive", str(lake), stream, "--once")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, f"100 messages in 2 files of {lake}."), done.output
    shown = json.loads(run("status", str(lake), "--json").stdout)
    assert (shown["messages"], [one["behind"] for one in shown["partitions"]]) == (100, [0, 0])
    publish(client, stream, 7, partition=1, first=50)
    shown = json.loads(run("status", str(lake), "--json").stdout)
    assert [one["behind"] for one in shown["partitions"]] == [0, 7]
    assert (shown["lag"]["offsets"], shown["lag"]["bytes"] > 0, 0 < shown["lag"]["seconds"] < 200) == (7, True, True)
    lines = run("status", str(lake)).stdout.splitlines()
    assert lines[4] == "Behind, offsets\t7"
    assert lines[-2].split("\t")[:6] == [stream, "0", "50", "0", "49", "0"]
    assert json.loads(run("status", str(lake), "--offline", "--json").stdout)["lag"] is None
    proved = run("verify", str(lake))
    assert (proved.exit_code, proved.stdout) == (0, "equal: 100 messages in 2 files, 100 compared with the log.\n")
    next(lake.rglob("date=*/*.parquet")).unlink()
    proved = run("verify", str(lake))
    assert proved.stdout.startswith("file-missing: date=")
    assert isinstance(proved.exception, ArchiveDamaged)
    assert "1 difference" in proved.exception.message


def test_a_stream_that_is_not_there_leaves_no_folder(tables: BrokerProcess, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    arguments = ("pipeline", "archive", str(lake), "never-was", "--once", "--server", tables.address)
    run_command(*arguments, home=tmp_path, timeout=240).failed(3, "never-was")
    assert not lake.exists()
