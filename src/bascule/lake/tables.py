"""Formats of tables that Spark writes when their jars are given: their names, and the settings of Spark for them.

These tables are not archives: they keep their own log of commits. As in an archive, a message is identified by its stream, the
stream's id, its partition and its offset, which are columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

STREAM_ID: Final = "streamId"
DATE: Final = "date"
COLUMNS_DDL: Final = (
    "`key` BINARY, `value` BINARY, `stream` STRING, `partition` INT, `offset` BIGINT, `timestamp` TIMESTAMP, `subject` STRING, "
    "`replySubject` STRING, `headers` MAP<STRING, BINARY>, `leaderEpoch` BIGINT, "
    f"`{STREAM_ID}` BIGINT, `{DATE}` DATE"
)
"""A message as a row: the columns of the source, which stream of that name it is of, and its day (UTC). None is NOT NULL: what Spark
computes may be null for all it knows, and Iceberg refuses such a column before it has seen a row."""


@dataclass(frozen=True, slots=True)
class TableFormat:
    name: str
    """As `USING` has it."""
    probe: str = ""
    """A class of the format's jar; "" for one that Spark brings."""
    coordinates: str = ""
    """What `--packages` is to be given, with the versions of Spark and of the format left open."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """What Spark must be told before it starts."""
    knows_batches: bool = False
    """Whether a write can carry the number of its batch, and is ignored when it comes again."""

    def packages(self, spark_version: str) -> str:
        """`4.3.0` has a jar of its own in some formats."""
        return self.coordinates.replace("SPARK", ".".join(spark_version.split(".")[:2]))


DELTA: Final = TableFormat(
    "delta",
    "io.delta.sql.DeltaSparkSessionExtension",
    "io.delta:delta-spark_2.13:VERSION",
    {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    },
    knows_batches=True,
)
ICEBERG: Final = TableFormat(
    "iceberg",
    "org.apache.iceberg.spark.SparkCatalog",
    "org.apache.iceberg:iceberg-spark-runtime-SPARK_2.13:VERSION",
    {"spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"},
)
TABLE_FORMATS: Final = {one.name: one for one in (DELTA, ICEBERG)}
