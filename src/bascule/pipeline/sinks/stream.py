"""Rows into a stream, exactly once: every row keeps its number when its batch is repeated, and brokers drop rows that they have.

For that, the same rows must be in the same tasks in the same order. Rows that are still messages are in the order of their offsets, in
the tasks that read them or that `dedup` sent them to, and both are the same in a repeated batch. Rows of joins and windows have a place
instead, rows that a query has made only their content: by that they are spread over a fixed number of tasks, and sorted there.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from bascule.errors import InvalidSchema
from bascule.pipeline.sinks.base import BatchSink, SinkBatch, must_differ
from bascule.pipeline.spec.pipeline import PipelineSpec
from bascule.pipeline.spec.sinks import StreamSink
from bascule.pipeline.steps.rows import MESSAGE, PLACE, Rows, literal, quoted
from bascule.spark.options.declaration import BATCH
from bascule.spark.options.writing import PRODUCER_ID_BYTES_MAX, sink_options
from bascule.spark.write.columns import check_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

TASKS: Final = 4
"""Number of tasks that rows of a query are spread over. Must not change: a repeated batch must be the same."""

_ENTRIES: Final = "_entries"
"""Headers, for their order: rows that differ in nothing else are not the same."""

BYTES: Final = ("binary", "string")
NESTED: Final = ("struct", "array", "map", "variant")


def producer_id(pipeline: str, target: str, checkpoint_id: str) -> str:
    """The producer id of a pipeline. A new checkpoint gets a new producer id."""
    said = f"{pipeline}:{target}"
    room = PRODUCER_ID_BYTES_MAX - 9
    if len(said.encode()) > room or not said.isprintable():
        said = hashlib.sha256(said.encode()).hexdigest()[:room]
    return f"{said}:{checkpoint_id[:8]}"


def sink_of(spec: PipelineSpec, sink: StreamSink, checkpoint_id: str) -> StreamBatches:
    created = {
        "onMissingStream": "create" if sink.create else "fail",
        "createPartitions": str(sink.partitions),
    }
    if sink.replication_factor is not None:
        created["createReplicationFactor"] = str(sink.replication_factor)
    producer = producer_id(spec.name, sink.stream, checkpoint_id)
    if sink.compact:
        created["createCompact"] = "true"
    return StreamBatches(sink.target, {**spec.connection_options(), "stream": sink.stream, **created}, producer)


class StreamBatches(BatchSink):
    def __init__(self, name: str, options: dict[str, str], producer: str) -> None:
        super().__init__(name)
        self._options = {**options, "delivery": "exactly-once", "producerId": producer}

    def check(self, schema: StructType) -> None:
        must_differ(schema)
        there = set(schema.fieldNames())
        if not there - {"key", "headers"}:
            raise InvalidSchema("no column is left that a value could be made of", hint="keep `value`, or others")
        names = ("headers", "timestamp") if "value" in there else ("headers",)
        kept = type(schema)([schema[name] for name in names if name in there]).add("value", "binary")
        check_columns(kept, sink_options(self._options, BATCH))

    def write(self, batch: SinkBatch) -> int:
        if not batch.count:
            return 0
        self.publish(message_frame(batch.rows), batch.id)
        return batch.count

    def publish(self, frame: DataFrame, batch_id: int) -> None:
        """Rows that are in their order."""
        writer = frame.write.format("bascule").options(**self._options, producerEpoch=str(batch_id))
        writer.mode("append").save()


def message_frame(rows: Rows) -> DataFrame:
    """Rows as they are published: `value`, and `key`, `headers` and `timestamp` if they are there, in the order that they have
    whenever their batch comes."""
    written = written_columns(rows)
    if PLACE in rows.hidden:
        return rows.frame.repartition(TASKS, PLACE).sortWithinPartitions(PLACE).selectExpr(*written)
    if rows.has_message:
        place = (f"{MESSAGE}.stream", f"{MESSAGE}.partition", f"{MESSAGE}.offset")
        return rows.frame.sortWithinPartitions(*place).selectExpr(*written)
    frame = rows.frame.selectExpr(*written)
    content = [name for name in frame.columns if name != "headers"]  # maps have no order
    if "headers" not in frame.columns:
        return frame.repartition(TASKS, *content).sortWithinPartitions(*content)
    with_entries = frame.selectExpr("*", f"array_sort(map_entries(headers)) AS {_ENTRIES}")
    return with_entries.repartition(TASKS, *content).sortWithinPartitions(*content, _ENTRIES).drop(_ENTRIES)


def written_columns(rows: Rows) -> list[str]:
    """`value`, `key`, `headers` and `timestamp` as SQL expressions over what rows have."""
    schema = rows.visible.schema
    types = {field.name: field.dataType for field in schema.fields}
    key = [f"{_bytes('key', types['key'])} AS key"] if "key" in types else []
    if "value" in types:
        kept = [name for name in ("headers", "timestamp") if name in types]
        return [f"{_bytes('value', types['value'])} AS value", *key, *kept]
    kept = [name for name in ("headers",) if name in types]
    rest = [name for name in types if name not in ("key", *kept)]
    pairs = ", ".join(f"{literal(name)}, {quoted(name)}" for name in rest)
    return [f"CAST(to_json(named_struct({pairs})) AS BINARY) AS value", *key, *kept]


def _bytes(name: str, kind: DataType) -> str:
    if kind.typeName() in BYTES:
        return name
    text = f"to_json({name})" if kind.typeName() in NESTED else f"CAST({name} AS STRING)"
    return f"CAST({text} AS BINARY)"
