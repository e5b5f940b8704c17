"""What steps reject: into a stream as it came, with headers that say why, or into Parquet with columns that do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bascule.pipeline.sinks.stream import TASKS, StreamBatches, producer_id
from bascule.pipeline.sinks.table import TableBatches
from bascule.pipeline.spec.pipeline import PipelineSpec
from bascule.pipeline.spec.sinks import DeadLetters
from bascule.pipeline.steps.rows import literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HEADER: Final = "dead-letter-"
"""In front of the names of headers: `dead-letter-pipeline`, `-rule`, `-reason`, `-stream`, `-partition`, `-offset`."""

SAID: Final = ("rule", "reason", "stream", "partition", "offset")


class DeadLetterBatches:
    def __init__(self, spec: PipelineSpec, letters: DeadLetters, checkpoint_id: str) -> None:
        self._pipeline = spec.name
        self.name = f"dlq {letters.stream or letters.path}"
        self._table: TableBatches | None = None
        self._stream: StreamBatches | None = None
        if letters.path is not None:
            self._table = TableBatches(self.name, letters.path, checkpoint_id)
        elif letters.stream is not None:
            missing = "create" if letters.create else "fail"
            options = {**spec.connection_options(), "stream": letters.stream, "onMissingStream": missing}
            producer = producer_id(spec.name, f"dlq:{letters.stream}", checkpoint_id)
            self._stream = StreamBatches(self.name, options, producer)

    def open(self, spark: SparkSession) -> None:
        if self._table is not None:
            self._table.open(spark)

    def write(self, letters: DataFrame, batch_id: int) -> None:
        if self._table is not None:
            self._table.write_frame(letters.selectExpr("*", f"{literal(self._pipeline)} AS pipeline"), batch_id)
        elif self._stream is not None:
            # By rule and place, and by content where there is no place.
            order = ("rule", "stream", "partition", "offset", "value")
            frame = letters.repartition(TASKS, *order).sortWithinPartitions(*order)
            self._stream.publish(frame.selectExpr("key", "value", f"{self._headers()} AS headers"), batch_id)

    def _headers(self) -> str:
        said = {name: f"CAST(CAST({name} AS STRING) AS BINARY)" for name in SAID}
        pairs = [f"'{HEADER}pipeline', CAST({literal(self._pipeline)} AS BINARY)"]
        pairs += [f"'{HEADER}{name}', {text}" for name, text in said.items()]
        ours = f"map_filter(map({', '.join(pairs)}), (name, text) -> text IS NOT NULL)"
        theirs = f"map_filter(headers, (name, text) -> NOT startswith(name, '{HEADER}'))"
        return f"map_concat({theirs}, {ours})"
