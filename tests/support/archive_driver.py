"""A driver of several queries at once, so that one death hits each of them at another step and one Java serves them all.

    python -m tests.support.archive_driver <servers> <master> <job>…

A job is a folder, the archive of the stream of its name; or `<stream>=<stream>=<checkpoint>`, a copy of one in another, exactly once.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import bascule.spark
from bascule.pipeline.jobs.archive import ArchiveOptions, run_archive

SOURCE = {"maxOffsetsPerTrigger": "6000"}
"""So that there is more than one batch."""

SETTINGS: dict[str, Any] = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": 1_000,  # a task gets its rows in some pieces
}


def archive(spark: Any, servers: str, folder: Path) -> None:
    run_archive(
        spark, ArchiveOptions(streams=(folder.name,), path=str(folder), servers=servers, source=SOURCE), once=True
    )


def copy(spark: Any, servers: str, source: str, target: str, checkpoint: str) -> None:
    spark.createDataFrame(
        [], "value binary"
    )  # makes the session this thread's: without it, Spark finds no sinks in Python
    rows = spark.readStream.format("bascule").options(servers=servers, startingOffsets="earliest", **SOURCE)
    writer = rows.load(source).select("value").writeStream.format("bascule")
    writer = writer.options(servers=servers, stream=target, delivery="exactly-once", partitioner="round-robin")
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()


def run(spark: Any, servers: str, job: str) -> None:
    while True:
        try:
            return copy(spark, servers, *job.split("=")) if "=" in job else archive(spark, servers, Path(job))
        except Exception as error:
            if "connect back" not in str(error):
                raise


def has_begun(spark: Any, count: int) -> bool:
    """Whether so many queries have found their sources."""
    return sum("Initializing" not in str(query.status["message"]) for query in spark.streams.active) >= count


def main(servers: str, master: str, *jobs: str) -> None:
    """One after the other: Spark gives each source's Python ten seconds to start, and on a busy machine four at once need more."""
    spark = bascule.spark.session("archives", master, **SETTINGS)
    with ThreadPoolExecutor(len(jobs)) as threads:
        running = []
        for job in jobs:
            running.append(threads.submit(run, spark, servers, job))
            while not has_begun(spark, len(running)) and not any(one.done() for one in running):
                time.sleep(0.05)
        for one in as_completed(running):
            if one.exception() is not None:
                traceback.print_exception(one.exception())
                os._exit(1)  # the others may wait for ever
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
