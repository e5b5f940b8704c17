"""The latest message of each key: right whatever comes, and readable by everybody while it changes."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from bascule.cli.main import app
from bascule.client.arrow.reader import FlightConnection
from bascule.client.blocking import BlockingClient
from bascule.errors import BasculeError, CallerError, InvalidOption, InvalidSchema
from bascule.lake.latest.table import LatestStore, TableSnapshot, latest_files, read_latest
from bascule.lake.latest.verification import verify_latest
from bascule.lake.verification import Report
from bascule.pipeline.jobs.latest import LatestOptions, LatestTable, latest_frame, run_latest
from tests.spark.conftest import MakeStream
from tests.support.broker_process import BrokerProcess

Verify = Callable[..., Report]


@pytest.fixture
def verify(tables: BrokerProcess) -> Verify:
    def check(path: Path, **more: Any) -> Report:
        with FlightConnection(tables.address) as connection:
            return verify_latest(path, connection, **more)

    return check


def options_of(tables: BrokerProcess, stream: str, path: Path, **more: Any) -> LatestOptions:
    return LatestOptions(**{"streams": (stream,), "path": str(path), "servers": tables.address, "buckets": 4, **more})


def texts(report: Report) -> list[str]:
    return [f"{fault.kind}: {fault.text}" for fault in report.faults]


def publish(client: BlockingClient, stream: str, *messages: tuple[str | None, str | None], partition: int = 0) -> None:
    for key, value in messages:
        client.publish(
            stream,
            None if value is None else value.encode(),
            key=None if key is None else key.encode(),
            partition=partition,
        )


def rows_of(path: Path) -> dict[bytes | None, bytes]:
    rows = read_latest(path).to_pylist()
    return {row["key"]: row["value"] for row in rows}


def test_the_newest_of_each_key_is_there_and_what_was_deleted_is_not(
    spark: SparkSession,
    tables: BrokerProcess,
    client: BlockingClient,
    make_stream: MakeStream,
    verify: Verify,
    tmp_path: Path,
) -> None:
    stream, path = make_stream(partitions=2), tmp_path / "table"
    options = options_of(tables, stream, path)
    publish(client, stream, ("a", "1"), ("b", "1"), ("a", "2"), (None, "no key"), ("c", ""))
    publish(client, stream, ("d", "1"), ("b", None), partition=1)
    run_latest(spark, options, once=True)
    assert rows_of(path) == {b"a": b"2", b"c": b"", b"d": b"1", None: b"no key"}
    publish(client, stream, ("c", None), ("a", "3"), ("b", "back"), ("never", None))
    snapshot = run_latest(spark, options, once=True)
    assert rows_of(path) == {b"a": b"3", b"b": b"back", b"d": b"1", None: b"no key"}
    assert (snapshot.number, snapshot.rows) == (2, 4)
    report = verify(path)
    assert (texts(report), report.rows, report.rows_compared, report.unchecked) == ([], 4, 11, [])
    frame = latest_frame(spark, path)
    assert {row["key"] for row in frame.where("partition = 0").select("key").collect()} == {b"a", b"b", None}
    duckdb = pytest.importorskip("duckdb")
    found = duckdb.sql(f"SELECT count(*), max(value) FROM read_parquet({latest_files(path)})").fetchall()
    assert found == [(4, b"no key")]
    said = CliRunner().invoke(app, ["pipeline", "verify", str(path), "--server", tables.address])
    files = len(latest_files(path))  # a message without a key is spread by the name of its stream
    assert (said.exit_code, said.stdout) == (0, f"equal: 4 messages in {files} files, 11 compared with the log.\n")


def test_a_random_history_in_many_batches_is_what_a_dict_says(
    spark: SparkSession,
    tables: BrokerProcess,
    client: BlockingClient,
    make_stream: MakeStream,
    verify: Verify,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keys in all partitions, a few messages a batch. The driver dies before a snapshot, then behind one; at last the checkpoint is
    lost, and everything comes again, cut otherwise."""
    stream, path, chance = make_stream(partitions=3), tmp_path / "table", random.Random(7)
    for number in range(240):
        value = None if chance.random() < 0.3 else f"{number}"
        publish(client, stream, (f"k{chance.randrange(25)}", value), partition=chance.randrange(3))
    options = options_of(tables, stream, path, source={"maxOffsetsPerTrigger": "60"}, keep_seconds=0)
    for is_done in (False, True):
        with monkeypatch.context() as patch:
            patch.setattr(LatestStore, "commit", _dying(2, is_done))
            with pytest.raises(Exception, match="killed"):
                run_latest(spark, options, once=True)
        assert (LatestStore(path).snapshot().number, texts(verify(path))) == (3 if is_done else 1, [])
    last = run_latest(spark, options, once=True)
    report = verify(path)
    assert (texts(report), report.rows_compared, report.unchecked) == ([], 240, [])
    assert last.number >= 4
    on_disk = {str(file.relative_to(path)) for file in path.glob("*/*.parquet")}
    assert on_disk == last.files, "no snapshot but the last is kept"
    shutil.rmtree(path / "_bascule/checkpoint")
    run_latest(spark, options_of(tables, stream, path, source={"maxOffsetsPerTrigger": "90"}), once=True)
    assert (texts(verify(path)), LatestStore(path).snapshot().number) == ([], last.number)


def _dying(calls: int, is_done: bool) -> Callable[[LatestStore, TableSnapshot], None]:
    """The commit of this number is the last, or is not made."""
    commit, left = LatestStore.commit, iter(range(calls, 0, -1))

    def die(store: LatestStore, snapshot: TableSnapshot) -> None:
        is_last = next(left) == 1
        if not is_last or is_done:
            commit(store, snapshot)
        if is_last:
            raise RuntimeError("killed")

    return die


def test_keys_may_be_computed_from_typed_values(
    spark: SparkSession,
    tables: BrokerProcess,
    client: BlockingClient,
    make_stream: MakeStream,
    verify: Verify,
    tmp_path: Path,
) -> None:
    stream, path = make_stream(partitions=2), tmp_path / "table"
    for partition, value in enumerate(['{"id": 1, "total": 10}', '{"id": 2, "total": 20}', "no json", '{"id": 1}'] * 2):
        publish(client, stream, ("x", value), partition=partition % 2)
    publish(client, stream, ("x", '{"id": 3, "total": -1}'))
    options = options_of(
        tables,
        stream,
        path,
        key="value.id",
        deleted="value.total < 0",
        null_keys="skip",
        source={"valueFormat": "json", "valueSchema": "id bigint, total bigint"},
    )
    run_latest(spark, options, once=True)
    found = {row["latestKey"]: row["value"] for row in read_latest(path).to_pylist()}
    assert found == {1: {"id": 1, "total": None}, 2: {"id": 2, "total": 20}}
    assert verify(path).unchecked == ["the key is `value.id`: whether rows are the newest is not known here"]
    with pytest.raises(CallerError, match=r"made with `key` = `value\.id`, not `key`"):
        run_latest(spark, options_of(tables, stream, path), once=True)
    empty = run_latest(spark, options_of(tables, stream, tmp_path / "none", deleted="true", key="offset"), once=True)
    assert (empty.rows, latest_frame(spark, tmp_path / "none").count()) == (0, 0)


def test_a_table_that_is_not_right_is_told_and_what_is_wrong_with_it(
    spark: SparkSession,
    tables: BrokerProcess,
    client: BlockingClient,
    make_stream: MakeStream,
    verify: Verify,
    tmp_path: Path,
) -> None:
    import pyarrow.parquet as pq

    stream, whole = make_stream(), tmp_path / "whole"
    publish(client, stream, *[(f"k{number}", f"{number}") for number in range(6)], ("k0", "new"), ("k1", None))
    run_latest(spark, options_of(tables, stream, whole, buckets=1), once=True)
    assert texts(verify(whole)) == []
    log = pa.Table.from_batches(list(_log(tables, stream)))

    def damaged(name: str, rows: pa.Table | None) -> list[str]:
        path = tmp_path / name
        shutil.copytree(whole, path)
        file = next((path / "data").glob("*.parquet"))
        if rows is None:
            file.unlink()
        else:
            pq.write_table(rows, file)
        return [text for text in texts(verify(path)) if not text.startswith("file-changed")]

    rows = read_latest(whole)
    old = log.slice(0, 1).cast(rows.schema)
    gone = log.slice(1, 1).cast(rows.schema)
    k0 = rows["key"].to_pylist().index(b"k0")
    without = pa.concat_tables([rows.slice(0, k0), rows.slice(k0 + 1)])
    assert damaged("dropped", without) == [
        f"rows-missing: key b'k0' is not there, its message is at offset 6 of {stream}/0"
    ]
    assert damaged("old", pa.concat_tables([without, old])) == [
        f"rows-stale: key b'k0' at offset 0 of {stream}/0 has a newer message, offset 6 of {stream}/0"
    ]
    assert damaged("back", pa.concat_tables([rows, gone])) == [
        f"rows-stale: key b'k1' at offset 1 of {stream}/0 was deleted by offset 7 of {stream}/0"
    ]
    assert "rows-doubled: key b'k0'" in damaged("twice", pa.concat_tables([rows, rows.slice(k0, 1)]))[0]
    other = rows.set_column(1, rows.schema.field(1), pa.array([b"x"] * len(rows), pa.binary()))
    assert len(damaged("changed", other)) == len(rows)
    assert damaged("removed", None)[0].startswith("file-missing: data/0000-")
    invented = rows.slice(k0, 1).set_column(0, rows.schema.field(0), pa.array([b"who"], pa.binary()))
    assert damaged("invented", pa.concat_tables([rows, invented])) == [
        f"rows-invented: key b'who': the log has no message at offset 6 of {stream}/0"
    ]


def _log(tables: BrokerProcess, stream: str) -> list[pa.RecordBatch]:
    with FlightConnection(tables.address) as connection:
        return list(connection.read(stream, 0))


# ── what is wrong is said before anything is made ────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"key": "no_such_column"}, "`key` is `no_such_column`"),
        ({"key": "upper("}, r"`key` is `upper\(`"),
        ({"deleted": "nothing > 1"}, "`deleted` is"),
        ({"key": "headers"}, "the key `headers` is map<string,binary>"),
        ({"source": {"valueFormat": "yaml"}}, "yaml"),
        ({"streams": ("never-was",)}, "never-was"),
    ],
    ids=["column", "syntax", "deleted", "type", "format", "stream"],
)
def test_what_the_rows_do_not_have_leaves_no_folder(
    spark: SparkSession, tables: BrokerProcess, make_stream: MakeStream, tmp_path: Path, more: dict[str, Any], said: str
) -> None:
    stream = make_stream(1)
    with pytest.raises(Exception, match=said):
        run_latest(spark, options_of(tables, stream, tmp_path / "table", **more), once=True)
    assert not (tmp_path / "table").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"buckets": 0}, "`buckets` is 0"),
        ({"buckets": 5000}, "`buckets` is 5000"),
        ({"null_keys": "no"}, "`null_keys` is `no`"),
        ({"keep_seconds": -1.0}, "`keep_seconds` is -1"),
        ({"trigger_seconds": 0.0}, "`trigger_seconds` is 0"),
        ({"compression": "zip"}, "`compression` is `zip`"),
        ({"key": " "}, "`key` is empty"),
        ({"streams": ()}, "nothing says which streams"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
def test_an_option_with_a_wrong_value_is_named(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        LatestOptions(**{"streams": ("orders",), "path": str(tmp_path), **more})


def test_rows_of_another_pipeline_are_written_too_but_have_to_say_which_messages_they_are(
    spark: SparkSession, tables: BrokerProcess, client: BlockingClient, make_stream: MakeStream, tmp_path: Path
) -> None:
    stream = make_stream()
    publish(client, stream, ("a", "1"), ("b", "2"))
    read = spark.read.format("bascule").options(servers=tables.address, stream=stream).load()
    table = LatestTable(spark, options_of(tables, stream, tmp_path / "table", key="name"))
    table.open()
    try:
        chosen = ["CAST(key AS STRING) AS name", "stream", "partition", "offset", "timestamp", "leaderEpoch"]
        table.write(read.selectExpr(*chosen), 0)
        assert sorted(read_latest(tmp_path / "table", ["name"])["name"].to_pylist()) == ["a", "b"]
        with pytest.raises(InvalidSchema, match="no column `leaderEpoch`"):
            table.write(read.selectExpr(*chosen[:-1]), 1)
        with pytest.raises(InvalidSchema, match="`more` is int32 now, it was not there"):
            table.write(read.selectExpr(*chosen, "1 AS more"), 1)
        other = LatestTable(spark, options_of(tables, stream, tmp_path / "table", key="name"))
        with pytest.raises(BasculeError, match="being written by another"):
            other.open()
    finally:
        table.close()


def test_the_command_line_keeps_a_table(
    spark: SparkSession,
    tables: BrokerProcess,
    client: BlockingClient,
    make_stream: MakeStream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In this process and with this Spark: another one takes longer to start than all these tests together."""
    stream, path = make_stream(), tmp_path / "table"
    publish(client, stream, *[(f"{number % 3}", json.dumps({"n": number})) for number in range(10)])
    monkeypatch.setattr("bascule.spark.session", lambda *_: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    arguments = ["pipeline", "latest", str(path), stream, "--once", "--server", tables.address]
    done = CliRunner().invoke(app, [*arguments, "--value", "json:n int", "--key", "value.n % 2"])
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, f"2 rows in 2 files of {path}."), done.output
    assert sorted(row["value"]["n"] for row in read_latest(path).to_pylist()) == [8, 9]


@pytest.mark.parametrize(
    "wrong",
    [("--value", "yaml:x"), ("--null-keys", "no"), ("--keep", "soon"), ("--buckets", "0"), ("--every", "0s")],
    ids=lambda wrong: wrong[0],
)
def test_the_command_line_names_what_is_wrong(tmp_path: Path, wrong: tuple[str, str]) -> None:
    done = CliRunner().invoke(app, ["pipeline", "latest", str(tmp_path / "table"), "orders", *wrong])
    assert isinstance(done.exception, InvalidOption)
    assert wrong[1] in str(done.exception)
    assert not (tmp_path / "table").exists()
