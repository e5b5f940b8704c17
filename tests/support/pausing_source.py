"""The Spark source with tasks that wait for a test, before they read or when they have read something.

pauses = Pauses(tmp_path)
spark.dataSource.register(pauses.source("before"))       # or "between": behind the first batch of rows, whose end Spark may not have
                                                         # yet; or "later": behind the second
… spark.read.format(pauses.name) … in a thread
pauses.wait()                                            # a task stands there; whatever happens now happens to it
pauses.release()                                         # this task and all that come
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from bascule.spark.options.declaration import BATCH, STREAMING
from bascule.spark.options.reading import source_options
from bascule.spark.read.batch_reader import BatchReader
from bascule.spark.read.stream_reader import StreamReader
from bascule.spark.source import BasculeSource
from tests.support.waiting import eventually

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # Spark's workers do not find tests

# Methods have the names that Spark calls.
# ruff: noqa: N802


class Pauses:
    """One test's. The directory tells who is where."""

    name = "pausing_bascule"

    def __init__(self, directory: Path) -> None:
        self._reached = directory / "reached"
        self._released = directory / "released"

    def wait(self) -> None:
        eventually(self._reached.exists, "a task stands where it is to wait")

    def release(self) -> None:
        self._released.touch()

    def source(self, step: str) -> type[BasculeSource]:
        # What is pickled must not lead to this module's imports of tests: workers do not find those.
        name, reached, released = Pauses.name, str(self._reached), str(self._released)

        def pause() -> None:
            if not Path(released).exists():
                Path(reached).touch()
            while not Path(released).exists():
                time.sleep(0.01)

        def paused(rows: Iterator[Any]) -> Iterator[Any]:
            if step == "before":
                pause()
            for number, batch in enumerate(rows):
                yield batch
                if number or step != "later":
                    pause()

        class PausingBatchReader(BatchReader):
            def read(self, partition: InputPartition) -> Iterator[Any]:
                return paused(super().read(partition))

        class PausingStreamReader(StreamReader):
            def read(self, partition: InputPartition) -> Iterator[Any]:
                return paused(super().read(partition))

        class PausingSource(BasculeSource):
            @classmethod
            def name(cls) -> str:
                return name

            def reader(self, schema: StructType) -> BatchReader:
                return PausingBatchReader(source_options(self.options, BATCH), schema)

            def streamReader(self, schema: StructType) -> StreamReader:
                return PausingStreamReader(source_options(self.options, STREAMING), schema)

        return PausingSource
