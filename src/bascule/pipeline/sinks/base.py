"""What all sinks are: opened where batches are written, given one batch after the other, closed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bascule.errors import InvalidSchema
from bascule.pipeline.steps.rows import Rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class SinkBatch:
    """What a sink is given."""

    id: int
    rows: Rows
    """What the steps leave."""
    count: int
    messages: DataFrame | None = None
    """As they were read; for those that want them."""


class BatchSink(ABC):
    """One target. A batch that comes again, in this process or in another, has to leave it as it is."""

    wants_messages = False

    def __init__(self, name: str) -> None:
        self.name = name
        """`table /lake/orders`"""

    def check(self, schema: StructType) -> None:  # noqa: B027 - most take any columns
        """Raises InvalidSchema for columns that cannot be written."""

    def open(self, spark: SparkSession) -> None:  # noqa: B027 - some have nothing to open
        """Before the first batch. Raises what would make every batch fail."""

    @abstractmethod
    def write(self, batch: SinkBatch) -> int:
        """Returns how many rows the batch has brought; 0 if it was there before."""

    def close(self) -> None:  # noqa: B027 - some have nothing to close
        """After the last batch, unless the process ends otherwise."""


def must_differ(schema: StructType) -> None:
    """Columns of the same name: Spark has them, files and JSON have not."""
    names = [name.lower() for name in schema.fieldNames()]
    for name in names:
        if names.count(name) > 1:
            raise InvalidSchema(f"two columns are called `{name}`", hint="name each once, with `AS`")
