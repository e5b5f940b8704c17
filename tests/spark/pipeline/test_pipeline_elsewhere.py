"""Pipelines that somebody else starts: spark-submit, and Spark's own declarative pipelines with our source and sink."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bascule.client.blocking import BlockingClient
from bascule.lake.archive import Archive
from bascule.spark import java
from tests.spark.conftest import MakeStream
from tests.support.broker_fixtures import unique_name
from tests.support.broker_process import BrokerProcess

pytestmark = pytest.mark.soak  # each starts a Java of its own

BIN = Path(sys.executable).parent
SECONDS_MAX = 300


def run(*command: str, folder: Path) -> str:
    """With the Java that sessions of ours would take, and this Python."""
    environment = {
        **os.environ,
        "JAVA_HOME": str(java.choose().home),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def read(client: BlockingClient, stream: str) -> list[bytes]:
    last = client.fetch_partition_metadata(stream, 0).newest_offset
    if last < 0:
        return []
    with client.subscribe(stream, start="earliest", stop=last) as messages:
        return [message.value or b"" for message in messages]


def test_spark_submit_runs_a_pipeline(
    tables: BrokerProcess, client: BlockingClient, make_stream: MakeStream, tmp_path: Path
) -> None:
    stream, copy = make_stream(20), unique_name("copy")
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        f"""
name: submitted
servers: {tables.address}
source: {{stream: {stream}}}
steps: [where: offset >= 5]
sinks:
  - archive: lake
  - stream: {{stream: {copy}, create: true}}
checkpoint: state
"""
    )
    program = run(sys.executable, "-m", "bascule.pipeline", "--where", folder=tmp_path).strip()
    command = (str(BIN / "spark-submit"), "--master", "local[2]", program, str(file), "--once")
    said = run(*command, folder=tmp_path)
    assert "submitted: 20 messages in 1 batch" in said, said
    assert Archive(tmp_path / "lake").state().rows == 20
    assert read(client, copy) == [b"0/%d" % number for number in range(5, 20)]
    run(*command, folder=tmp_path)
    assert len(read(client, copy)) == 15


def test_the_command_line_runs_a_pipeline_at_a_server_of_spark_connect(
    tables: BrokerProcess, client: BlockingClient, make_stream: MakeStream, tmp_path: Path, connect_url: str
) -> None:
    stream, copy = make_stream(20), make_stream(0, name=unique_name("copy"))
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        f"""
name: connected
servers: {tables.address}
source: {{stream: {stream}}}
steps: [sql: SELECT value FROM input WHERE offset >= 5]
sinks: [{{archive: lake}}, {{stream: {copy}}}]
checkpoint: state
"""
    )
    command = (
        sys.executable,
        "-m",
        "bascule.cli.main",
        "pipeline",
        "run",
        str(file),
        "--once",
        "--master",
        connect_url,
    )
    said = run(*command, folder=tmp_path)
    assert "connected: 20 messages in 1 batch" in said, said
    assert Archive(tmp_path / "lake").state().rows == 20
    assert sorted(read(client, copy)) == sorted(b"0/%d" % number for number in range(5, 20))
    assert "connected: 0 messages" in run(*command, folder=tmp_path)
    assert len(read(client, copy)) == 15


DEFINITIONS = """\
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
BROKERS = {{"servers": "{servers}"}}


@dp.table
def clicks():
    return (
        spark.readStream.format("bascule")
        .options(**BROKERS, stream="{stream}", startingOffsets="earliest")
        .options(valueFormat="json", valueSchema="page STRING")
        .load()
        .selectExpr("offset", "value.page AS page")
    )


@dp.materialized_view
def pages():
    return spark.table("clicks").groupBy("page").count()


dp.create_sink("popular", "bascule", {{**BROKERS, "stream": "{target}", "delivery": "exactly-once"}})


@dp.append_flow(target="popular")
def publish_a():
    return spark.readStream.table("clicks").where("page = 'a'").selectExpr("to_json(struct(*)) AS value")
"""


def test_declarative_pipelines_go_on_with_each_run(
    tables: BrokerProcess, client: BlockingClient, make_stream: MakeStream, tmp_path: Path
) -> None:
    """With a catalog that remembers its tables from run to run: Spark's own forgets them, and their folders stay."""
    stream, target = make_stream(0), make_stream(0, name=unique_name("popular"))
    (tmp_path / "transformations").mkdir()
    definitions = DEFINITIONS.format(servers=tables.address, stream=stream, target=target)
    (tmp_path / "transformations/clicks.py").write_text(definitions)
    (tmp_path / "spark-pipeline.yml").write_text(
        f"name: clicks\nstorage: file://{tmp_path}/storage\nlibraries:\n  - glob: {{include: transformations/**}}\n"
    )
    for pages, wanted, counts in (
        (("a", "b", "a"), [0, 2], {"a": 2, "b": 1}),
        (("c", "a"), [0, 2, 4], {"a": 3, "b": 1, "c": 1}),
    ):
        for page in pages:
            client.publish(stream, json.dumps({"page": page}).encode(), ack="all")
        run(str(BIN / "spark-pipelines"), "run", "--conf", "spark.sql.catalogImplementation=hive", folder=tmp_path)
        assert [json.loads(value) for value in read(client, target)] == [{"offset": at, "page": "a"} for at in wanted]
        counted = pq.read_table(tmp_path / "spark-warehouse/pages").to_pylist()
        assert {row["page"]: row["count"] for row in counted} == counts
