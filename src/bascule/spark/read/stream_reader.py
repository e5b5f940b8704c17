"""A streaming read. Spark's driver keeps one of these per query in a Python process of its own, and asks it batch after batch.

What Spark does not do for a source, and this one does for itself:
- It asks for the initial offset more than once and keeps none of the answers: the first answer is kept here, and a batch 0 that is
  repeated in another process finds it in its own end (see offsets.py).
- It knows one limit at a time: whatever limit it hands over, all that the options name hold. Only "all available", which is what
  a trigger that runs once means, lifts them.
- It commits a batch while it plans the next one, and never the last one of AvailableNow: the cursor is advice, not truth.
- It asks a query without news every 10 ms how far it could read: the longer nothing comes, the longer the answer takes (`Idleness`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from bascule.errors import BasculeError
from bascule.limits import SPARK_IDLE_POLL_MS
from bascule.spark.options.failures import coded
from bascule.spark.options.reading import SourceOptions
from bascule.spark.read import cluster, one_stream
from bascule.spark.read.advance import backlogs
from bascule.spark.read.batch_reader import ReadTask, read_task, tasks
from bascule.spark.read.lag import measure
from bascule.spark.read.offsets import Offsets, effective_start, end_of_batch
from bascule.spark.read.plan import TriggerLimits, admit, is_due
from bascule.spark.read.resolve import bounded, planned_ranges, positions, require, select, starting_offsets
from bascule.spark.read.state import Streams
from bascule.spark.values.decoding import ValueReader

if TYPE_CHECKING:
    import pyarrow as pa

MILLISECOND_NS = 1_000_000

# Methods have the names that Spark calls.
# ruff: noqa: N802


class Idleness:
    """How long a query without news waits before it asks again: a twentieth of the time that nothing came, up to a bound.

    What comes every now and then is seen as soon as Spark asks; a query that has waited for seconds sees it a little later, and costs
    neither itself nor the brokers what a hundred questions a second cost.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self._asked: float | None = None

    def wait(self) -> None:
        """Before a question."""
        now = time.monotonic()
        if self._since is None or self._asked is None:
            self._since = now
        else:
            pause = min(SPARK_IDLE_POLL_MS / 1_000, (now - self._since) / 20) - (now - self._asked)
            if pause > 0:
                time.sleep(pause)
        self._asked = time.monotonic()

    def end(self) -> None:
        """There is something to read."""
        self._since = None


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans in the driver, reads in executors. Nothing open is kept in it, because it is pickled."""

    def __init__(self, options: SourceOptions, schema: StructType, values: ValueReader | None = None) -> None:
        self._options = options
        self._schema = schema
        self._values = values
        self._initial: dict[str, Any] | None = None
        self._frozen: Streams | None = None
        self._seen: Streams = {}
        self._position = Offsets()
        self._read_at: float | None = None
        self._idleness = Idleness()

    # ── where ────────────────────────────────────────────────────────────────────────────────────

    @coded
    def initialOffset(self) -> dict[str, Any]:
        """Where the query begins: the same answer for as long as it runs."""
        if self._initial is None:
            connection = cluster.connect_with_history(self._options)
            streams = require(self._options.streams, self._streams())
            self._initial = starting_offsets(self._options, streams, connection).as_initial().document()
        return self._initial

    @coded
    def prepareForTriggerAvailableNow(self) -> None:
        """Read up to what is committed now, however long that takes, and nothing that comes later."""
        self._frozen = self._streams()

    @coded
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """How far the next batch reads."""
        begin = Offsets.parse(start)
        if self._frozen is None:
            self._idleness.wait()
        streams = self._seen = self._streams()
        waiting = backlogs(begin, streams, skips_lost=self._options.skips_lost)
        limits = self._limits(limit)
        began = {key: each.start for key, each in waiting.items()}
        backlog = sum(each.count for each in waiting.values())
        ends = began
        if is_due(backlog, limits, self._waited_ms(limits)):
            ends = admit(waiting, limits)
            self._read_at = time.monotonic()
            self._idleness.end()
        self._position = end_of_batch(begin, positions(streams, began), positions(streams, ends))
        return self._position.document()

    def getDefaultReadLimit(self) -> ReadLimit:
        """One of the limits, for Spark to hand back; `latestOffset` applies the others too."""
        amount = self._options.amount
        if amount.offsets_max is not None:
            return ReadMaxRows(amount.offsets_max)
        return ReadMaxBytes(amount.bytes_max) if amount.bytes_max else ReadMaxRows((1 << 63) - 1)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """For the progress of the query: how far each stream goes, and the lag behind it."""
        if not self._seen:
            return None
        try:
            return measure(self._position, self._seen, cluster.connect_with_history(self._options), time.time_ns())
        except BasculeError:
            return None  # it is a report: the next batch will tell what is wrong

    def _streams(self) -> Streams:
        if self._frozen is not None:
            return one_stream.refreshed(self._options, self._frozen)
        connection = cluster.connect_with_history(self._options)
        return bounded(self._options, select(self._options.streams, connection), connection)

    def _limits(self, limit: ReadLimit) -> TriggerLimits:
        amount = self._options.amount
        if isinstance(limit, ReadAllAvailable):
            return TriggerLimits()
        return TriggerLimits(
            offsets_max=amount.offsets_max,
            bytes_max=amount.bytes_max or None,
            offsets_min=None if self._frozen is not None else amount.offsets_min,
            delay_max_ms=amount.delay_max_ns // MILLISECOND_NS,
        )

    def _waited_ms(self, limits: TriggerLimits) -> int:
        """Since the last batch; before the first one, long enough."""
        return limits.delay_max_ms if self._read_at is None else int((time.monotonic() - self._read_at) * 1_000)

    # ── what ─────────────────────────────────────────────────────────────────────────────────────

    @coded
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[ReadTask]:
        """The tasks of a batch."""
        last = Offsets.parse(end)
        begin = effective_start(Offsets.parse(start), last)
        options = self._options
        if (options.parallelism.bytes_max is not None or options.history.path is not None) and not self._seen:
            self._seen = self._streams()
        return tasks(options, planned_ranges(begin, last, self._seen), last, self._seen)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(self._options, self._schema, self._values, partition)

    # ── afterwards ───────────────────────────────────────────────────────────────────────────────

    def commit(self, end: dict[str, Any]) -> None:
        """Everything up to `end` was dealt with. Whatever happens to the cursor, the query goes on."""
        cursor = self._options.progress.cursor
        if cursor is None:
            return
        try:
            self._set_cursors(cursor, Offsets.parse(end))
        except BasculeError as error:
            print(f"bascule: cursor `{cursor}` was not set: {error}", file=sys.stderr)

    def _set_cursors(self, cursor: str, end: Offsets) -> None:
        connection = cluster.connect(self._options.connection)
        for name, stream in end.streams.items():
            for number, following in stream.next.items():
                if following > 0:
                    connection.set_cursor(cursor, name, number, following - 1)

    def stop(self) -> None:
        """Spark may call it when the query ends, or just end the process."""
        cluster.disconnect(self._options.connection)
