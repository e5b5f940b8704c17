"""What a task of a write does: routes its rows, numbers them, publishes them and waits until they are stored.

Who a row is, for `exactly-once`, is where it stands: the query, the number of the Spark partition, the batch, and its place among the
rows of its task that go to the same partition of a stream. All of it is the same when a batch or a task runs again:

    bascule-producer   spark:<query id>:<Spark partition>        of a batch write <producerId>:<Spark partition>
    bascule-epoch      <batch id>                                of a batch write <producerEpoch>
    bascule-sequence   0, 1, 2, …                                of the task's rows for this partition of the stream

Brokers keep per partition and producer what they have of its newest epoch. A row that comes again has a sequence they know. A task of
an older batch that Spark has given up, but that lives on somewhere, has an older epoch and is refused: its rows were stored before the
newer batch began.
"""

from __future__ import annotations

import hashlib
import os
import threading
from array import array
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from bascule.client import blocking
from bascule.client.arrow.columns import ColumnPublisher, Producer, column_publisher
from bascule.client.messages import Message
from bascule.errors import RowsChanged, StateError, StreamExists, StreamNotFound, Unavailable
from bascule.spark.options.declaration import STREAMING
from bascule.spark.options.reading import ConnectionOptions
from bascule.spark.options.writing import OnMissingStream, SinkOptions
from bascule.spark.write.columns import sorted_rows
from bascule.spark.write.routing import Group, Router

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ID_PROPERTY: Final = "streaming.sql.batchId"
QUERY_ID_PROPERTY: Final = "sql.streaming.queryId"
"""Local properties that the tasks of a micro-batch have: Spark gives a writer neither the query nor the batch."""

ASK_SECONDS_MAX: Final = 60.0
"""How long a question to a broker is retried while it restarts or does not answer; the same as in the source."""


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """Which task of which batch of which query this is."""

    name: str
    epoch: int
    spark_partition: int

    def producer_id(self, subject: str | None = None) -> bytes:
        """Streams with wildcards may have several subjects in one partition: each subject counts for itself."""
        mark = "" if subject is None else ":" + hashlib.sha256(subject.encode()).hexdigest()[:12]
        return f"{self.name}:{self.spark_partition}{mark}".encode()


def identity(options: SinkOptions) -> TaskIdentity:
    """Of the task that runs in this process now."""
    context: Any = TaskContext.get()
    if context is None:
        raise StateError("rows are written outside of a task of Spark")
    batch_id, query_id = context.getLocalProperty(BATCH_ID_PROPERTY), context.getLocalProperty(QUERY_ID_PROPERTY)
    partition = context.partitionId()
    if options.mode == STREAMING:
        if batch_id is None or query_id is None:
            raise StateError(
                "Spark does not say which batch of which query this task belongs to",
                hint="set `delivery=at-least-once`, or use a version of Spark that was tested",
            )
        return TaskIdentity(f"spark:{query_id}", int(batch_id), partition)
    epoch = options.sureness.producer_epoch
    return TaskIdentity(options.sureness.producer_id or "", int(batch_id or 0) if epoch is None else epoch, partition)


@dataclass(slots=True)
class Written(WriterCommitMessage):
    """What a task has stored: rows by stream and partition, or by subject."""

    rows: dict[str, int] = field(default_factory=dict)

    def add(self, target: str, rows: int) -> None:
        self.rows[target] = self.rows.get(target, 0) + rows


def write_task(options: SinkOptions, batches: Iterable[pa.RecordBatch]) -> Written:
    """Publish the rows of a task. Returns when all are stored; raises when one cannot be."""
    who = identity(options) if options.is_exactly_once else None
    if options.sureness.order_by is not None:
        batches = sorted_rows(batches, options.sureness.order_by)
    with _Task(options, connect(options.connection), who) as task:
        for batch in batches:
            task.write(batch)
    return task.written


class _Task:
    def __init__(self, options: SinkOptions, connection: SinkConnection, who: TaskIdentity | None) -> None:
        self._options = options
        self._connection = connection
        self._who = who
        self._publisher = connection.publisher(options)
        # Round robin begins elsewhere in each task and batch, but where it began when the task runs again.
        turn = 0 if who is None else who.spark_partition + who.epoch
        self._router = Router(options, self._count_partitions, turn)
        self._sequences: dict[tuple[str | None, int, str | None], int] = {}
        self._repeats: Repeats | None = None if who is None else Repeats(connection, who)
        self._under_way: list[tuple[Group, Future[array[int]]]] = []
        self.written = Written()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._wait()
        finally:
            for _, future in self._under_way:
                future.cancel()
            self._publisher.close()

    def write(self, batch: pa.RecordBatch) -> None:
        """One batch is under way while the next is got ready; not two, so that what is sent again cannot be overtaken."""
        groups = list(self._router.split(batch))
        self._wait()
        self._under_way = [(group, self._publish(group)) for group in groups]

    def _wait(self) -> None:
        for group, future in self._under_way:
            offsets = future.result()
            if self._repeats is not None and group.stream is not None:
                self._repeats.check(group, offsets)
        self._under_way = []

    def _publish(self, group: Group) -> Future[array[int]]:
        count = group.rows.num_rows
        columns = group.columns if self._who is None else group.numbered(self._producer(self._who, group))
        ack = str(self._options.sureness.ack_policy)
        if group.subject is not None:
            self.written.add(group.subject, count)
            return self._publisher.publish_to_subject(group.subject, columns, ack=ack)
        if self._repeats is not None:
            self._repeats.begin(group.stream, group.partition)
        self.written.add(f"{group.stream}/{group.partition}", count)
        return self._publisher.publish(group.stream, group.partition, columns, ack=ack)

    def _producer(self, who: TaskIdentity, group: Group) -> Producer:
        target = group.stream, group.partition, group.subject
        first = self._sequences.get(target, 0)
        self._sequences[target] = first + group.rows.num_rows
        return Producer(who.producer_id(group.subject), who.epoch, first)

    def _count_partitions(self, stream: str) -> int:
        """Of a stream that is there, or is created now."""
        try:
            return self._connection.count_partitions(stream)
        except StreamNotFound:
            if self._options.target.on_missing_stream is OnMissingStream.FAIL:
                raise StreamNotFound(
                    f"there is no stream `{stream}` to write to",
                    hint=f"create it with `bascule stream create {stream}`, or set `onMissingStream=create`",
                ) from None
        self._connection.create_stream(stream, self._options)
        return self._connection.count_partitions(stream)


class Repeats:
    """Rows that brokers had already, when a batch or a task comes again: they have to be the rows that are stored.

    Brokers go by numbers and drop what has a number they know, whatever is in it. Rows that come in another order than before
    would be lost, and others be there twice. So what was dropped is read, and compared.
    """

    def __init__(self, connection: SinkConnection, who: TaskIdentity) -> None:
        self._connection = connection
        self._who = who
        self._newest: dict[tuple[str, int], int] = {}

    def begin(self, stream: str, partition: int) -> None:
        """Before the first row of this task goes there: what has an offset up to here is not of this attempt."""
        if (stream, partition) not in self._newest:
            self._newest[stream, partition] = self._connection.newest_offset(stream, partition)

    def check(self, group: Group, offsets: array[int]) -> None:
        """Raises RowsChanged. Offsets that brokers do not know any more, and records that are gone, cannot be compared."""
        newest = self._newest[group.stream, group.partition]
        if newest < 0 or min(offsets) > newest:
            return
        places = {offset: row for row, offset in enumerate(offsets) if 0 <= offset <= newest}
        if not places:
            return
        key = group.rows.column("key") if "key" in group.rows.schema.names else None
        value = group.rows.column("value")
        for message in self._connection.messages(group.stream, group.partition, min(places), max(places)):
            row = places.get(message.offset)
            if row is None:
                continue
            if _bytes(value[row]) != message.value or (key is not None and _bytes(key[row]) != (message.key or b"")):
                raise RowsChanged(
                    f"batch {self._who.epoch} came again with other rows, or in another order: row {row} of task "
                    f"{self._who.spark_partition} is not the one that is stored at `{group.stream}`/{group.partition}, "
                    f"offset {message.offset}",
                    hint="set `orderBy` for rows that come out of a shuffle, and leave out what changes from run to run",
                )


def _bytes(scalar: Any) -> bytes:
    found = scalar.as_py()
    return b"" if found is None else found.encode() if isinstance(found, str) else bytes(found)


# ── connections ──────────────────────────────────────────────────────────────────────────────────


class SinkConnection:
    """The client of a worker process. Workers run many tasks, one after the other."""

    def __init__(self, options: ConnectionOptions) -> None:
        self._client = blocking.connect(options.servers, **options.credentials, timeout=ASK_SECONDS_MAX)

    def publisher(self, options: SinkOptions) -> ColumnPublisher:
        return column_publisher(self._client, window=options.sureness.in_flight_max, timeout=options.timeout_seconds)

    def count_partitions(self, stream: str) -> int:
        metadata = self._client.fetch_metadata([stream])
        found = metadata.streams.get(stream)
        if found is None:
            raise StreamNotFound(f"there is no stream `{stream}`")
        return len(found.partitions)

    def newest_offset(self, stream: str, partition: int) -> int:
        return self._client.fetch_partition_metadata(stream, partition).newest_offset

    def messages(self, stream: str, partition: int, first: int, last: int) -> Iterator[Message]:
        """Those from one offset to another, as far as they are still there."""
        with self._client.subscribe(stream, partition=partition, start=first, stop=last) as subscription:
            while True:
                try:
                    message = subscription.next(ASK_SECONDS_MAX)
                except StopIteration:
                    return
                if message is None:
                    raise Unavailable(f"`{stream}`/{partition} gave nothing for {ASK_SECONDS_MAX:g} s")
                yield message

    def create_stream(self, stream: str, options: SinkOptions) -> None:
        """Another task may be faster."""
        try:
            self._client.create_stream(stream, **options.target.create_settings)
        except StreamExists:
            return


_connections: dict[tuple[int, ConnectionOptions], SinkConnection] = {}
_connecting = threading.Lock()


def connect(options: ConnectionOptions) -> SinkConnection:
    """The connection of this process: what a parent has open is not for the workers that are forked from it."""
    key = os.getpid(), options
    with _connecting:
        if key not in _connections:
            _connections[key] = SinkConnection(options)
        return _connections[key]


__all__ = ["TaskIdentity", "Written", "connect", "identity", "write_task"]
