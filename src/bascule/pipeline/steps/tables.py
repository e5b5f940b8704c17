"""Static tables as Spark reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bascule.errors import BasculeError, InvalidSchema, MissingExtra
from bascule.pipeline.spec.tables import CsvTable, DeltaTable, JdbcTable, ParquetTable, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def table_frame(spark: SparkSession, table: Table) -> DataFrame:
    """The rows of a table as they are now. Raises for a table that is not there; rows are read later."""
    match table:
        case CsvTable():
            options = {"header": "true", "mode": "FAILFAST", **(table.more or {})}
            return spark.read.schema(table.schema).options(**options).csv(table.path)
        case ParquetTable():
            return spark.read.parquet(table.path)
        case DeltaTable():
            return _delta(spark, table)
        case JdbcTable():
            said = {"url": table.url, "dbtable": table.table, "user": table.user, "password": table.password}
            given = {name: value for name, value in said.items() if value is not None}
            return spark.read.format("jdbc").options(**given, **(table.more or {})).load()


def _delta(spark: SparkSession, table: DeltaTable) -> DataFrame:
    """With Delta's jar executors read the files. Without it the driver reads the table into memory."""
    try:
        return spark.read.format("delta").load(table.path)
    except Exception as error:
        if "DATA_SOURCE_NOT_FOUND" not in str(error) and "Failed to find the data source" not in str(error):
            raise
    try:
        import deltalake
    except ImportError:
        raise MissingExtra(
            f"table `{table.name}` is a Delta table, and neither Spark has Delta's jar nor Python the package `deltalake`",
            hint='`pip install "bascule[spark]"`',
        ) from None
    try:
        return spark.createDataFrame(deltalake.DeltaTable(table.path).to_pyarrow_table())
    except BasculeError:
        raise
    except Exception as error:
        raise InvalidSchema(
            f"table `{table.name}` cannot be read: {' '.join(str(error).split())}",
            hint="`path` has to be the folder of a Delta table",
        ) from None
