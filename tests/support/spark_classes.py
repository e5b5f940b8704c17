"""An archive of Spark's classes, parsed and verified (class data sharing): each Java that maps it starts with 5 seconds of CPU less.

Tests start some twenty. The archive is made once, by a Java that runs a few queries and ends, and stays in `.cache/` of the repository.
A Java that it does not fit starts as it would without it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Final

import pyspark
from pyspark.sql import DataFrame, SparkSession

import bascule.spark
from tests.support.external_clients import once, run

FLAGS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For every Java of a test: none lives long enough for a compiler that thinks long."""
SERVING_CONNECT: Final[dict[str, Any]] = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": 0,
}
"""A server of Spark Connect within the same Java, on a free port."""
_QUERY: Final = "SELECT value % 3 AS k, count(*), max(string(value)) FROM numbers WHERE value > 3 GROUP BY k ORDER BY k"


def share_classes() -> None:
    """Let every Java that this process or a child starts for a driver of Spark map the archive."""
    wanted = f"{pyspark.__version__}\n{pyspark.__file__}\n{os.environ.get('JAVA_HOME')}"
    archive = once("spark-classes", wanted, _make) / "classes.jsa"
    # Java says much about classes that it does not find there.
    os.environ["SPARK_SUBMIT_OPTS"] = f"{FLAGS} -XX:SharedArchiveFile={archive} -Xlog:disable"


def _make(folder: Path) -> None:
    run([sys.executable, "-m", "tests.support.spark_classes", str(folder / "classes.jsa")], seconds=400)


def main(archive: str) -> None:
    os.environ["SPARK_SUBMIT_OPTS"] = f"{FLAGS} -XX:ArchiveClassesAtExit={archive} -Xlog:disable"
    spark = bascule.spark.session("classes", "local[2]", **SERVING_CONNECT)
    spark.range(100).selectExpr("id AS value").createOrReplaceTempView("numbers")
    spark.sql(_QUERY).toArrow()
    _stream(spark, Path(archive).parent)
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


def _stream(spark: SparkSession, folder: Path) -> None:
    frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    counted = frame.groupBy("value").count().writeStream.outputMode("update").foreachBatch(_collect)
    counted.option("checkpointLocation", str(folder / "checkpoint")).trigger(once=True).start().awaitTermination()


def _collect(rows: DataFrame, _: int) -> None:
    rows.collect()


if __name__ == "__main__":
    main(sys.argv[1])
