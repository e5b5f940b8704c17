"""The driver of tests/spark/read/test_spark_standalone.py: what docs/guides/running-on-a-cluster.md shows, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def where(batches: Iterator[Any]) -> Iterator[Any]:
    """Where a task runs, which modules it has, and how many rows it reads."""
    import os

    import pyarrow as pa
    from pyspark import TaskContext

    import bascule.kernels.records.records as kernel

    context = TaskContext.get()
    assert context is not None
    rows = sum(batch.num_rows for batch in batches)
    place = {
        "folder": str(Path.cwd()),
        "python": sys.executable,
        "kernel": kernel.__file__,
        "path": os.environ["PYTHONPATH"],
    }
    yield pa.RecordBatch.from_pydict(
        {"task": [context.partitionId()], "rows": [rows], **{name: [text] for name, text in place.items()}}
    )


def main(given: dict[str, Any]) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(given["block"], "guide", "exec"), names)
    spark, servers = names["spark"], given["servers"]
    from bascule.spark.executors.look import look

    found: dict[str, Any] = {"count": names["orders"].count(), "executors": [one.executable for one in look(spark)]}
    columns = "task bigint, rows bigint, folder string, python string, kernel string, path string"
    for stream in given["streams"]:
        reader = spark.read.format("bascule").options(servers=servers, stream=stream, gatherRecordsPerTask="1")
        rows = reader.load().mapInArrow(where, columns).collect()
        found[stream] = [row.asDict() for row in rows]
    source, target = given["streams"][-1], given["target"]
    options = {"servers": servers, "stream": target, "delivery": "exactly-once"}
    query = (
        spark.readStream.format("bascule")
        .options(servers=servers, startingOffsets="earliest", gatherRecordsPerTask="1")
        .load(source)
        .select("key", "value")
        .writeStream.format("bascule")
        .options(**options, checkpointLocation=given["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    run_pipeline(spark, given["pipeline"])
    service = spark.sparkContext._jvm.org.apache.spark.sql.connect.service
    port = getattr(getattr(service, "SparkConnectService$"), "MODULE$").localPort()
    command = [
        "-m",
        "bascule.cli.main",
        "pipeline",
        "run",
        given["connected"],
        "--once",
        "--master",
        f"sc://127.0.0.1:{port}",
    ]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    found["connected"] = done.stdout + done.stderr
    spark.stop()
    return found


def run_pipeline(spark: Any, file: str) -> None:
    from bascule.pipeline.runner import run_pipeline
    from bascule.pipeline.spec.pipeline import load

    run_pipeline(spark, load(Path(file)), once=True)


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(main(json.loads(Path(sys.argv[1]).read_text("utf-8")))), "utf-8")
