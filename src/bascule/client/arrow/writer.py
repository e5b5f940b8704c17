"""Publishes Arrow tables: the rows of each partition as columns over PublishAsync, to the partition's leader."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterable
from concurrent.futures import Future, wait
from typing import Any, Final

import numpy as np
import pyarrow as pa

from bascule.client import blocking
from bascule.client.arrow.columns import ColumnPublisher, column_publisher
from bascule.client.arrow.message_columns import Numbers, message_columns
from bascule.client.arrow.partitions import RoundRobinRows, automatic_partitions, by_partition
from bascule.client.arrow.servers import Servers, Tls
from bascule.client.blocking import BlockingClient
from bascule.client.connection.options import wrong
from bascule.client.publish.resend_rule import ResendRule
from bascule.errors import BasculeError, CallerError, ClientClosed, OutcomeUnknown, StreamNotFound, Unavailable

COLUMNS: Final = ("value", "key", "headers", "partition")
WINDOW: Final = 8_192
"""Messages to one broker whose acks are outstanding."""
ACK_SECONDS: Final = 30.0
"""Time for the acks of one batch; then its outcome is unknown."""
POLICIES: Final = ("leader", "all")


class TableWriter:
    """The connection is made with the first table. Threads may share a writer."""

    def __init__(self, servers: Servers, tls: Tls, token: str | None, timeout: float) -> None:
        self._servers = servers
        self._credentials: dict[str, Any] = {"tls": tls, "token": token, "timeout": timeout}
        self._lock = threading.Lock()
        self._client: BlockingClient | None = None
        self._publisher: ColumnPublisher | None = None
        self._closed = False

    def put(self, stream: str, batches: Iterable[pa.RecordBatch], ack_policy: str) -> list[dict[str, Any]]:
        """Publish the batches one after the other. Returns `batch`, `rows`, `partitions` and `offsets` of each."""
        if ack_policy not in POLICIES:
            raise wrong("ack_policy", ack_policy, "`leader` or `all`")
        client, publisher = self._connect()
        found = client.fetch_metadata([stream]).streams.get(stream)
        if found is None:
            raise StreamNotFound(f"there is no stream {stream!r}")
        turns = RoundRobinRows()
        answers: list[dict[str, Any]] = []
        for batch in batches:
            _check(batch)
            chosen = _partitions(stream, batch, len(found.partitions), turns)
            try:
                offsets = _publish(publisher, stream, batch, chosen, ack_policy)
            except (OutcomeUnknown, Unavailable) as error:  # rows of the batch beside the one that failed may be stored
                raise OutcomeUnknown(
                    f"{error.message}; {len(answers)} batches are stored, the next may be, or a part of it",
                    hint="look which rows are there before you send them again",
                ) from None
            answers.append(
                {
                    "batch": len(answers),
                    "rows": batch.num_rows,
                    "partitions": chosen.tolist(),
                    "offsets": offsets.tolist(),
                }
            )
        return answers

    def _connect(self) -> tuple[BlockingClient, ColumnPublisher]:
        with self._lock:
            if self._closed:
                raise ClientClosed("the connection was closed")
            if self._client is None or self._publisher is None:
                self._client = blocking.connect(self._servers, **self._credentials)
                self._publisher = column_publisher(
                    self._client, window=WINDOW, timeout=ACK_SECONDS, rule=ResendRule(unknown=False)
                )
            return self._client, self._publisher

    def close(self) -> None:
        with self._lock:
            self._closed = True
            publisher, client = self._publisher, self._client
            self._publisher = self._client = None
        if publisher is not None:
            publisher.close()
        if client is not None:
            client.close()


def _check(batch: pa.RecordBatch) -> None:
    for name in batch.schema.names:
        if name not in COLUMNS:
            raise CallerError(
                f"a message cannot be given the column {name!r}", hint=f"columns are {', '.join(COLUMNS)}"
            )
    if "value" not in batch.schema.names:
        raise CallerError("there is no column `value`", hint="it is what is published; it may be null")
    for name in ("value", "key"):
        if name in batch.schema.names and not _is_bytes(batch.schema.field(name).type):
            raise CallerError(
                f"the column `{name}` holds {batch.schema.field(name).type}", hint="give binary or string"
            )
    if "headers" in batch.schema.names and not pa.types.is_map(batch.schema.field("headers").type):
        raise CallerError(
            f"the column `headers` holds {batch.schema.field('headers').type}", hint="give a map of string to binary"
        )
    if "partition" in batch.schema.names and not pa.types.is_integer(batch.schema.field("partition").type):
        raise CallerError(f"the column `partition` holds {batch.schema.field('partition').type}", hint="give integers")
    try:
        batch.validate(full=True)  # wrong offsets in a buffer would make Arrow read outside of it
    except ValueError as error:
        raise CallerError(f"a record batch is not what its schema says: {error}") from None


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    return any(
        check(kind) for check in (types.is_binary, types.is_string, types.is_large_binary, types.is_large_string)
    )


def _partitions(stream: str, batch: pa.RecordBatch, count: int, turns: RoundRobinRows) -> Numbers:
    if not batch.num_rows:
        return np.empty(0, np.int64)
    chosen = automatic_partitions(stream, batch, count, turns)
    for number in (int(chosen.min()), int(chosen.max())):
        if not 0 <= number < count:
            raise StreamNotFound(f"the stream {stream!r} has no partition {number}, it has {count}")
    return chosen


def _publish(publisher: ColumnPublisher, stream: str, batch: pa.RecordBatch, chosen: Numbers, ack: str) -> Numbers:
    """Return the offset of each row, once all of them are acked or have failed. Raises the first failure."""
    offsets = np.full(batch.num_rows, -1, np.int64)
    if not batch.num_rows:
        return offsets
    under_way: list[tuple[Numbers, Future[array[int]]]] = [
        (places, publisher.publish(stream, partition, message_columns(rows), ack=ack))
        for partition, rows, places in by_partition(batch, chosen)
    ]
    wait([future for _, future in under_way])
    failures: list[BaseException] = []
    for places, future in under_way:
        error = future.exception()
        if error is None:
            offsets[places] = future.result()
        else:
            failures.append(error)
    if failures:
        raise _worst(failures)
    return offsets


def _worst(failures: list[BaseException]) -> BaseException:
    """Return the failure that leaves most open."""
    unknown = [error for error in failures if isinstance(error, OutcomeUnknown | Unavailable)]
    refused = [error for error in failures if isinstance(error, BasculeError)]
    return (unknown or refused or failures)[0]
