"""The static tables of a pipeline, as they were when it started: copies in Parquet beside its checkpoint.

    <checkpoint>/tables.json              {"customers": "customers-1f3a…"}
    <checkpoint>/tables/customers-1f3a…   the rows

A repeated batch has to give the same rows. Therefore a pipeline that starts with a batch to repeat, which Spark has planned and not
finished, continues with the copies that the batch was begun with; otherwise the tables are read again.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bascule.errors import BasculeError, StorageError
from bascule.pipeline.checkpoint import PipelineCheckpoint
from bascule.pipeline.sinks.table import write_document
from bascule.pipeline.spec.pipeline import PipelineSpec
from bascule.pipeline.spec.steps import Join
from bascule.pipeline.steps.tables import table_frame
from bascule.spark.errors.failures import from_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def take_snapshots(spark: SparkSession, spec: PipelineSpec, checkpoint: PipelineCheckpoint) -> dict[str, str]:
    """The folders of the tables that steps of the pipeline join, for one run of it."""
    used = {step.table for step in spec.steps if isinstance(step, Join)}
    tables = [table for table in spec.tables if table.name in used]
    if not tables:
        return {}
    folder, index = checkpoint.path / "tables", checkpoint.path / "tables.json"
    known: dict[str, str] = json.loads(index.read_text("utf-8")) if index.exists() else {}
    taken = {name: known[name] for name in known if checkpoint.has_open_batch and (folder / known[name]).is_dir()}
    for table in tables:
        if table.name not in taken:
            taken[table.name] = f"{table.name}-{secrets.token_hex(8)}"
            try:
                table_frame(spark, table).write.parquet(str(folder / taken[table.name]))
            except Exception as error:
                raise _named(from_spark(error), table.name) from None
    try:
        write_document(index, taken)
    except OSError as error:
        raise StorageError(f"cannot write {index}: {error.strerror}") from error
    for old in folder.iterdir():
        if old.name not in taken.values():
            shutil.rmtree(old, ignore_errors=True)
    return {table.name: str(folder / taken[table.name]) for table in tables}


def snapshot_frames(spark: SparkSession, folders: Mapping[str, str]) -> dict[str, DataFrame]:
    """The tables in a session. A batch has a session of its own."""
    return {name: spark.read.parquet(folder) for name, folder in folders.items()}


def _named(error: BasculeError, name: str) -> BasculeError:
    error.message = f"table `{name}`: {error.message}"
    return error
