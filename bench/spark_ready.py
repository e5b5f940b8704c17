"""The baseline of reading a stream with Spark: a Python source whose record batches are ready in memory.

Its cost is that of Spark's transfer from Python to the JVM; no Python source can be faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bascule.spark.options.schema import TABLE


@dataclass
class ReadyFile(InputPartition):
    path: str


class ReadyMade(DataSource):
    """`spark.read.format("ready-made").load(folder)`: a task for each file of the folder, in Arrow's own format."""

    @classmethod
    def name(cls) -> str:
        return "ready-made"

    def schema(self) -> StructType:
        return TABLE

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        return ReadyReader(self.options["path"])


class ReadyReader(DataSourceReader):
    def __init__(self, path: str) -> None:
        self._path = path

    def partitions(self) -> list[InputPartition]:
        return [ReadyFile(str(path)) for path in sorted(Path(self._path).glob("*.arrow"))]

    def read(self, partition: Any) -> Iterator[Any]:
        with pa.memory_map(partition.path) as file:
            reader = pa.ipc.open_file(file)
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)
