"""Runs the test cases of a pipeline: with its own plan and its own batches, on a source of files instead of streams, into memory."""

from __future__ import annotations

import difflib
import functools
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bascule.pipeline.progress import PipelineProgress
from bascule.pipeline.runner import Pipeline
from bascule.pipeline.sinks.base import BatchSink, SinkBatch
from bascule.pipeline.sinks.dead_letters import DeadLetterBatches
from bascule.pipeline.spec.pipeline import PipelineSpec
from bascule.pipeline.spec.sinks import ArchiveSink, ConsoleSink, DeadLetters, Sink
from bascule.pipeline.spec.sources import SourceSpec
from bascule.pipeline.spec.tables import CsvTable, ParquetTable
from bascule.pipeline.sql import plain
from bascule.pipeline.trials.cases import Case, Row, target_of
from bascule.spark.options.schema import TABLE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS: Final = "rows"
DEAD_LETTERS: Final = "dead_letters"

_SHOWN_LETTER: Final = ("rule", "reason", "stream", "partition", "offset", "key", "value")


@dataclass(slots=True)
class Outcome:
    """What came out of a case, by section of `expect`, and how it differs."""

    name: str
    found: dict[str, list[Row]] = field(default_factory=dict)
    late: int = 0
    differences: list[str] = field(default_factory=list)
    """Lines of diffs."""

    @property
    def is_right(self) -> bool:
        return not self.differences


def run_case(spark: SparkSession, spec: PipelineSpec, case: Case) -> Outcome:
    """Run a case in a folder of its own, which is removed."""
    with tempfile.TemporaryDirectory(prefix="bascule-test-") as name:
        folder = Path(name)
        outcome = _Trial(spark, _in(spec, case, folder), folder, case).run()
    _compare(case, outcome)
    return outcome


def _in(spec: PipelineSpec, case: Case, folder: Path) -> PipelineSpec:
    """The pipeline with its checkpoint and its tables in a folder, and without archives, which have no steps."""
    sinks = tuple(sink for sink in spec.sinks if not isinstance(sink, ArchiveSink))
    given = {name: _written(rows, spec, name, folder / f"{name}.parquet") for name, rows in case.tables.items()}
    tables = tuple(given.get(table.name, table) for table in spec.tables)
    return replace(spec, sinks=sinks, tables=tables, checkpoint=str(folder / "state"))


def _written(rows: list[Row], spec: PipelineSpec, name: str, path: Path) -> CsvTable | ParquetTable:
    """A table with the given rows, of the declared types if the table declares some."""
    import csv

    import pyarrow as pa
    import pyarrow.parquet as pq

    table = next(table for table in spec.tables if table.name == name)
    if not isinstance(table, CsvTable):
        pq.write_table(pa.Table.from_pylist(rows), path)
        return ParquetTable(name, str(path))
    from pyspark.sql.types import StructType

    columns = [field.name for field in StructType.fromDDL(table.schema)]  # type: ignore[attr-defined]
    with path.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return CsvTable(name, str(path.with_suffix(".csv")), table.schema)


class _Kept(BatchSink):
    """Rows in memory."""

    def __init__(self, name: str, into: list[Row]) -> None:
        super().__init__(name)
        self._into = into

    def write(self, batch: SinkBatch) -> int:
        self._into += rows_of(batch.rows.visible)
        return batch.count


class _KeptLetters(DeadLetterBatches):
    def __init__(self, into: list[Row], spec: PipelineSpec, letters: DeadLetters, checkpoint_id: str) -> None:
        super().__init__(spec, letters, checkpoint_id)
        self._into = into

    def open(self, spark: SparkSession) -> None:
        """Nothing is written."""

    def write(self, letters: DataFrame, batch_id: int) -> None:
        del batch_id
        self._into += [{name: row[name] for name in _SHOWN_LETTER} for row in rows_of(letters)]


class _Trial(Pipeline):
    """A pipeline that reads files of messages, a batch from each, and keeps what it would write."""

    def __init__(self, spark: SparkSession, spec: PipelineSpec, folder: Path, case: Case) -> None:
        everything = ConsoleSink()  # a sink without a condition: all that the steps leave
        super().__init__(spark, replace(spec, sinks=(everything, *spec.sinks)))
        self._spark_session = spark
        self._folder = folder
        self._case = case
        self.outcome = Outcome(case.name, {ROWS: [], DEAD_LETTERS: []})
        self.batches.make = lambda _spec, sink, _checkpoint, _id: self._kept(sink, everything)
        self.batches.bury = functools.partial(_KeptLetters, self.outcome.found[DEAD_LETTERS])

    def _kept(self, sink: Sink, everything: ConsoleSink) -> BatchSink:
        name = ROWS if sink is everything else target_of(sink)
        return _Kept(name, self.outcome.found.setdefault(name, []))

    def run(self, **_: Any) -> Outcome:  # type: ignore[override]
        for number in range(len(self.spec.inputs)):
            for batch, inputs in enumerate(self._case.batches):
                self._write(inputs[number], self._folder / f"input-{number}", batch)
        super().run(once=True)
        self.outcome.late = PipelineProgress.load(self.checkpoint.progress_path).late
        return self.outcome

    def _write(self, messages: tuple[Row, ...], folder: Path, batch: int) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        from bascule.flight.schema import table_schema

        folder.mkdir(exist_ok=True)
        schema = table_schema()
        path = folder / f"{batch:06}.parquet"
        complete = [{name: message.get(name, _ABSENT.get(name)) for name in schema.names} for message in messages]
        pq.write_table(pa.Table.from_pylist(complete, schema=schema), path)
        os.utime(path, (batch + 1, batch + 1))  # Spark reads files in the order of their times

    def _read(self, source: SourceSpec) -> DataFrame:
        number = self.spec.inputs.index(source)
        reader = self._spark_session.readStream.schema(TABLE).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self._folder / f"input-{number}"))


_ABSENT: Final[Mapping[str, Any]] = {"leaderEpoch": 0}


def rows_of(frame: DataFrame) -> list[Row]:
    """The rows of a frame as JSON has them."""
    table = frame.toArrow()
    names = table.column_names
    columns = [[plain(cell, column.type) for cell in column.to_pylist()] for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


# ── comparing ────────────────────────────────────────────────────────────────────────────────────


def _compare(case: Case, outcome: Outcome) -> None:
    sections: list[tuple[str, list[Row] | None]] = [
        (ROWS, case.rows),
        *((name, rows) for name, rows in case.sinks.items()),
        (DEAD_LETTERS, case.dead_letters),
    ]
    for name, expected in sections:
        if expected is not None:
            outcome.differences += difference(name, expected, outcome.found[name])
    if case.late is not None and case.late != outcome.late:
        outcome.differences += [f"late: {case.late} rows were expected, {outcome.late} were late"]


def difference(name: str, expected: list[Row], found: list[Row]) -> list[str]:
    """Lines of a diff; none if the rows are the same as far as the expected ones say."""
    named = {column for row in expected for column in row}
    wanted = _lines(expected)
    there = _lines([{column: row[column] for column in row if not expected or column in named} for row in found])
    if wanted == there:
        return []
    return [line.rstrip() for line in difflib.unified_diff(wanted, there, f"{name} expected", f"{name} found", n=2)]


def _lines(rows: list[Row]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True, ensure_ascii=False, default=str) for row in rows)
