"""The answer of a query, published while the workers of its tasks are killed: Spark runs them again, and every row is there once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from bascule.client.blocking import BlockingClient
from tests.spark.conftest import MakeStream
from tests.spark.write.test_spark_sink import values
from tests.support.broker_fixtures import unique_name
from tests.support.broker_process import BrokerProcess, clean_environ
from tests.support.fault_points import FaultPoints

pytestmark = pytest.mark.soak

DRIVER = """
import sys
import bascule.spark
from bascule.pipeline.sql import SqlOptions, SqlSession, write_stream

servers, *asked = sys.argv[1:]
settings = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
    "spark.sql.shuffle.partitions": "3",
}
spark = bascule.spark.session("chaos", "local[2,4]", **settings)
for query, target in zip(asked[::2], asked[1::2], strict=True):
    options = SqlOptions(query=query, connection={"servers": servers})
    write_stream(SqlSession(spark, options).frame(), options.connection, target, create=False)
"""
ROWS = 1000
"""Of each of two partitions: twenty Arrow batches and more in a task."""


def test_an_answer_is_there_once_whichever_worker_dies(
    tables: BrokerProcess, client: BlockingClient, make_stream: MakeStream, tmp_path: Path
) -> None:
    """Rows as they were read, rows in an order that says little of most of them, and rows that were joined."""
    stream = make_stream(ROWS, partitions=2, name=unique_name("asked"))
    queries = (
        f"SELECT value FROM `{stream}`",
        f"SELECT value FROM `{stream}` ORDER BY length(value)",
        f"SELECT a.value FROM `{stream}` a JOIN `{stream}` b ON a.partition = b.partition AND a.offset = b.offset",
    )
    targets = [make_stream(name=unique_name(f"answer-{number}")) for number in range(len(queries))]
    points = FaultPoints(tmp_path / "faults")
    steps = [f"{target}:{step}" for target in targets for step in ("writing", "written")]
    points.arm(*steps)
    arguments = [text for pair in zip(queries, targets, strict=True) for text in pair]
    with (tmp_path / "driver.log").open("wb") as log:
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, tables.address, *arguments],
            env=clean_environ(points.environ),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        for step in steps:
            os.kill(points.wait(step, driver), signal.SIGKILL)
        assert driver.wait(300) == 0, (tmp_path / "driver.log").read_text()
    finally:
        os.killpg(driver.pid, signal.SIGKILL) if driver.poll() is None else None
    wanted = Counter(values(client, stream))
    assert len(wanted) == 2 * ROWS
    for target in targets:
        assert Counter(values(client, target)) == wanted
