"""The archive job on a server that speaks S3, which fails in every way while the job is killed: each message once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from bascule.client.blocking import BlockingClient
from bascule.errors import InvalidOption
from bascule.pipeline.jobs.archive import ArchiveOptions, run_archive
from bascule.pipeline.sql import SqlOptions, SqlSession, write_table
from tests.cli.command_line import run as run_command
from tests.spark.conftest import MakeStream
from tests.spark.pipeline.test_archive_chaos import RUN_SECONDS_MAX, Driver
from tests.support.broker_process import BrokerProcess
from tests.support.fault_points import FaultPoints
from tests.support.object_store import KEYS, ObjectStore, object_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("store")) as found:
        found.create_bucket("lake")
        yield found


def publish(client: BlockingClient, stream: str, first: int, count: int) -> None:
    client.publish_many(stream, [b"%d" % number for number in range(first, first + count)], partition=0, ack="all")


def test_an_archive_in_an_object_store_has_each_message_once_whatever_fails(
    spark: SparkSession,
    tables: BrokerProcess,
    client: BlockingClient,
    make_stream: MakeStream,
    store: ObjectStore,
    tmp_path: Path,
) -> None:
    stream, path = make_stream(200, partitions=2), "s3a://lake/chaos"
    points = FaultPoints(tmp_path / "faults")
    arguments = ["bascule.cli.main", "pipeline", "archive", path, stream, "--once", "--server", tables.address]
    log = tmp_path / "driver.log"
    for step in ("before-commit", "in-commit"):
        points.arm(f"chaos:{step}")
        driver = Driver([*arguments, *store.arguments], log, points.environ)
        try:
            points.wait(f"chaos:{step}", driver.process, RUN_SECONDS_MAX)
        finally:
            driver.kill()
        points.release(f"chaos:{step}")
        publish(client, stream, 1_000, 50)
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in log.read_text("utf-8", "replace")
    for kind, part in (("500", "_delta_log"), ("503", "date="), ("lost", "_delta_log"), ("lost", "date=")):
        store.fail(kind, "PUT", f"chaos/{part}")
    options = ArchiveOptions(streams=(stream,), path=path, servers=tables.address, storage=store.options)
    state = run_archive(spark, options, once=True)
    assert len(store.happened) == 4
    assert state.rows == 500, "200 in each partition, and 50 after each death"
    proved = run_command(
        "pipeline", "verify", path, "--json", "--server", tables.address, *store.arguments, home=tmp_path
    ).json
    assert (proved["equal"], proved["faults"], proved["messages_compared_with_the_log"]) == (True, [], 500)
    assert DeltaTable("s3://lake/chaos", storage_options=store.options).to_pyarrow_table().num_rows == 500
    assert not Path("s3a:").exists()
    shown = run_command(
        "pipeline", "status", path, "--json", "--server", tables.address, *store.arguments, home=tmp_path
    )
    assert (shown.json["messages"], shown.json["lag"]["offsets"]) == (500, 0)

    # ── readers ──
    publish(client, stream, 2_000, 25)
    session = SqlSession(
        spark,
        SqlOptions(
            query=f"SELECT count(*), count(DISTINCT `partition`, `offset`) FROM `{stream}`",
            connection={"servers": tables.address},
            archives={stream: path},
            storage=store.options,
        ),
    )
    frame = session.frame()
    assert [tuple(row) for row in frame.collect()] == [(525, 525)]
    with pytest.raises(InvalidOption, match="is no folder"):
        write_table(frame, "s3a://lake/answer")
    replayed = run_command(
        "pipeline", "replay", path, "--to", f"{stream}-again", "--create", "--json", "--server", tables.address,
        *store.arguments, home=tmp_path,
    )  # fmt: skip
    assert replayed.json["messages"] == 500


def test_a_job_whose_newest_commits_were_taken_away_reads_them_again_from_the_log(
    spark: SparkSession, tables: BrokerProcess, client: BlockingClient, make_stream: MakeStream, tmp_path: Path
) -> None:
    """As a backup that was restored: nothing is skipped."""
    stream, lake = make_stream(100), tmp_path / "lake"
    options = ArchiveOptions(streams=(stream,), path=str(lake), servers=tables.address)
    for first in (1_000, 2_000):
        run_archive(spark, options, once=True)
        publish(client, stream, first, 50)
    assert run_archive(spark, options, once=True).number == 3
    for number in (2, 3):
        (lake / f"_delta_log/{number:020d}.json").unlink()
    arguments = ("pipeline", "verify", str(lake), "--json", "--server", tables.address)
    found = run_command(*arguments, home=tmp_path).json
    assert not found["equal"] and {fault["kind"] for fault in found["faults"]} == {"commits-missing"}
    assert len(found["faults"]) == 2, "the note beside the log, and the cursor in the brokers"
    assert run_archive(spark, options, once=True).rows == 200
    assert run_command(*arguments, home=tmp_path).json["equal"]


def test_an_answer_is_not_written_into_a_folder_called_like_a_bucket(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bascule.cli.main", "pipeline", "sql", "SELECT 1", "--into-path", "s3a://lake/x"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=120)
    assert done.returncode == 2 and "is no folder" in done.stderr, done.stderr
    assert list(tmp_path.iterdir()) == []
