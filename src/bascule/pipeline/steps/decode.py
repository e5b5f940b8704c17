"""Values as structs, decoded in the pipeline and not by the source: archives and dead letters want the bytes as they came."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bascule.errors import MalformedValue
from bascule.pipeline.spec.pipeline import PipelineSpec
from bascule.pipeline.spec.sources import SourceSpec, ValueMode
from bascule.pipeline.steps.rows import MESSAGE, Rows
from bascule.spark.options.failures import with_code
from bascule.spark.options.reading import value_options
from bascule.spark.options.schema import MALFORMED
from bascule.spark.values.decoding import ValueColumn, ValueReader, malformed_values

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

REASON: Final = "_reason"
DECODE_RULE: Final = "decode"
"""What dead letters name as the rule that a value broke which is not of the format."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """How the values of a pipeline are decoded. Made in the driver, pickled to tasks."""

    reader: ValueReader
    declared: StructType
    fails: bool

    @classmethod
    def of(cls, spec: PipelineSpec, spark: SparkSession, source: SourceSpec | None = None) -> Decoding | None:
        """None if values stay bytes. Spark reads what SQL has for a schema."""
        from pyspark.sql.types import StructType

        source = source or spec.source
        options = value_options(source.value_options())
        if options.format is None:
            return None
        reader = ValueReader.of(options)
        found = reader.value_type()
        declared = spark.createDataFrame([], found).schema if isinstance(found, str) else found
        assert isinstance(declared, StructType)
        return cls(reader, declared, spec.mode_of(source) is ValueMode.FAILFAST)

    def apply(self, rows: Rows) -> Rows:
        """The same rows with a struct for a value; what could not be decoded is null, with its bytes and the reason beside it."""
        from pyspark.sql.types import BinaryType, StringType, StructField, StructType

        frame = rows.frame
        columns = [
            StructField("value", self.declared) if field.name == "value" else field for field in frame.schema.fields
        ]
        tail = [StructField(MALFORMED, BinaryType()), StructField(REASON, StringType())]
        return Rows(frame.mapInArrow(self, StructType([*columns, *tail])), rows.has_message)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For mapInArrow."""
        import pyarrow as pa

        column = ValueColumn(self.reader, self.declared)
        for batch in batches:
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            values = columns["value"]
            columns["value"], reasons = column.decode(values)
            if reasons and self.fails:
                row = min(reasons)
                raise _failed(columns[MESSAGE][row].as_py(), reasons[row])
            columns[MALFORMED] = malformed_values(values, reasons)
            columns[REASON] = pa.array([reasons.get(row) for row in range(len(values))], pa.string())
            yield pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _failed(message: dict[str, Any], reason: str) -> Exception:
    place = f"`{message['stream']}`/{message['partition']} at offset {message['offset']}"
    return with_code(
        MalformedValue(
            f"the value of {place} cannot be decoded: {reason}",
            hint="set `source.value.mode` to `dead-letter` or `permissive`, or correct `source.value.schema`",
        )
    )
