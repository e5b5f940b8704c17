"""Rows as Parquet, exactly once: a batch is a folder that is renamed into its place.

    <table>/
      _bascule/table.json            which pipeline's checkpoint it belongs to
      _bascule/staging/…             a batch that is being written, or that a crash left
      batch=12/….parquet             a batch, whole

A batch whose folder is there has been written: it is left as it is when the batch is repeated. Batch numbers belong to one checkpoint,
so the table knows its checkpoint and refuses another one.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bascule.errors import CallerError, CheckpointMismatch, InvalidSchema, StorageError
from bascule.pipeline.sinks.base import BatchSink, SinkBatch, must_differ

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FOLDER: Final = "_bascule"
FORMAT: Final = 1
BATCH_COLUMN: Final = "batch"


class TableBatches(BatchSink):
    def __init__(self, name: str, path: str, checkpoint_id: str, partition_by: tuple[str, ...] = ()) -> None:
        super().__init__(name)
        self.path = Path(path)
        self._checkpoint_id = checkpoint_id
        self._partition_by = partition_by

    def check(self, schema: StructType) -> None:
        must_differ(schema)
        names = schema.fieldNames()
        if BATCH_COLUMN in names:
            raise InvalidSchema(
                "a column is called `batch`, as the folders of a table are", hint="give it another name"
            )
        for column in self._partition_by:
            if column not in names:
                listed = ", ".join(f"`{name}`" for name in names)
                raise InvalidSchema(
                    f"`partition_by` names a column `{column}`, which is not there", hint=f"there are {listed}"
                )
        if len(self._partition_by) >= len(names):
            raise InvalidSchema("`partition_by` names all columns", hint="leave one at least for the files")

    def open(self, spark: SparkSession) -> None:  # noqa: ARG002
        try:
            self._open()
        except OSError as error:
            raise StorageError(f"cannot write {self.path}: {error.strerror}") from error

    def _open(self) -> None:
        marker = self.path / FOLDER / "table.json"
        if not marker.exists():
            if self.path.exists() and any(path.name != FOLDER for path in self.path.iterdir()):
                raise CallerError(f"{self.path} is not empty and no table of a pipeline", hint="give a new folder")
            marker.parent.mkdir(parents=True, exist_ok=True)
            write_document(marker, {"format": FORMAT, "checkpoint": self._checkpoint_id})
        belongs = json.loads(marker.read_text("utf-8")).get("checkpoint")
        if belongs != self._checkpoint_id:
            raise CheckpointMismatch(
                f"{self.path} was written by a pipeline with another checkpoint",
                hint="give that checkpoint, or another folder: by its numbers a batch of this one would be taken for one of that one",
            )
        shutil.rmtree(self.path / FOLDER / "staging", ignore_errors=True)

    def write(self, batch: SinkBatch) -> int:
        if not batch.count:
            return 0
        return batch.count if self.write_frame(batch.rows.visible, batch.id) else 0

    def write_frame(self, frame: DataFrame, batch_id: int) -> bool:
        """False if the batch is there."""
        final = self.path / f"{BATCH_COLUMN}={batch_id}"
        if final.exists():
            return False
        staging = self.path / FOLDER / "staging" / str(batch_id)
        writer = frame.write.mode("overwrite").option("compression", "zstd")
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        writer.parquet(str(staging))
        _sync(staging)
        staging.rename(final)
        _sync_one(self.path)
        return True


def write_document(path: Path, document: object) -> None:
    """Whole or not at all, in place of what was there."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(document, file, separators=(",", ":"))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    _sync_one(path.parent)


def _sync(folder: Path) -> None:
    """A folder that is renamed before its files are on the disk is there after a power cut, and they are not."""
    for path in folder.rglob("*"):
        _sync_one(path)
    _sync_one(folder)


def _sync_one(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
