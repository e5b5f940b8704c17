"""A driver of several archives at once, so that one death hits each of them at another step and one Java serves them all.

python -m tests.support.archive_driver <servers> <master> <folder>…        each is the archive of the stream of its name
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import bascule.spark
from bascule.pipeline.jobs.archive import ArchiveOptions, run_archive

BATCH_OFFSETS = 6_000
"""So that there is more than one batch."""


def main(servers: str, master: str, *folders: str) -> None:
    settings = {
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": 1_000,  # a task gets its rows in some pieces
    }
    spark = bascule.spark.session("archives", master, **settings)

    def run(folder: str) -> int:
        source = {"maxOffsetsPerTrigger": str(BATCH_OFFSETS)}
        options = ArchiveOptions(streams=(Path(folder).name,), path=folder, servers=servers, source=source)
        return run_archive(spark, options, once=True).rows

    with ThreadPoolExecutor(len(folders)) as threads:
        for folder, rows in zip(folders, threads.map(run, folders), strict=True):
            print(folder, rows)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
