"""One DoPut: publishes the rows of a table to a stream and answers with their offsets.

After each record batch the client gets `{"batch": n, "rows": n, "partitions": [...], "offsets": [...]}` once all rows are acked. The
columns are `value`, and optionally `key`, `headers` and `partition`; any other column is refused. Without `partition`, the key selects
the partition as in clients, and rows without a key go to the partitions in turn.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from bascule import limits
from bascule.broker.flight.directory import Directory, TableSources
from bascule.broker.flight.service import FlightGate
from bascule.errors import (
    BasculeError,
    CallerError,
    OutcomeUnknown,
    PartitionReadonly,
    RecordTooLarge,
    StateError,
    StreamNotFound,
    Unavailable,
)
from bascule.flight.tickets import PutCommand
from bascule.kernels.calls import publish_rows as kernel
from bascule.kernels.calls.publish_rows import RowPublisher
from bascule.net.grpc.status import GrpcError
from bascule.proto.api_pb2 import Ack, AckPolicy, PublishRequest

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final = ("value", "key", "headers", "partition")
ROWS_AT_ONCE: Final = 512
"""Rows that are published in one turn of the event loop; they block it for some hundred microseconds."""
OUTPUT_POLL_SECONDS: Final = 0.002
ACK_SECONDS: Final = 30.0
LOOK_FIRST: Final = "look which rows are there before you send them again"
POLICIES: Final = {"leader": AckPolicy.LEADER, "all": AckPolicy.ALL}


def put(sources: TableSources, gate: FlightGate, command: PutCommand, reader: Any, writer: Any) -> None:
    """Publish a table. Runs on a thread of Flight. Batches that were answered are stored, also when it raises."""
    directory = Directory(sources, gate.loop)
    stream = directory.stream(command.stream)
    _check(reader.schema)
    encoder = Encoder(stream.name, len(stream.partitions), POLICIES[command.ack_policy])
    for number in itertools.count():
        try:
            batch = reader.read_chunk().data
        except StopIteration:
            return
        rows = encoder.encode(batch)
        offsets = directory.in_loop(_publish(sources, stream.name, rows), timeout=None)
        answer = {"batch": number, "rows": len(offsets), "partitions": rows.partitions, "offsets": offsets}
        writer.write(json.dumps(answer).encode())


async def _publish(sources: TableSources, stream: str, rows: _Rows) -> list[int]:
    return await _Publishing(sources, stream, rows).run()


def _check(schema: pa.Schema) -> None:
    for name in schema.names:
        if name not in COLUMNS:
            raise CallerError(
                f"a message cannot be given the column {name!r}", hint=f"columns are {', '.join(COLUMNS)}"
            )
    if "value" not in schema.names:
        raise CallerError("there is no column `value`", hint="it is what is published; it may be null")


@dataclass(slots=True)
class _Rows:
    """A batch as publish requests, and the partition of each."""

    partitions: list[int] = field(default_factory=list)
    requests: list[bytes] = field(default_factory=list)


class Encoder:
    """Makes publish requests of rows."""

    def __init__(self, stream: str, partitions: int, ack_policy: Any) -> None:
        self._stream = stream
        self._partitions = partitions
        self._ack_policy = ack_policy
        self._turn = 0

    def encode(self, batch: pa.RecordBatch) -> _Rows:
        try:
            batch.validate(full=True)  # wrong offsets in a client's buffers would make Arrow read outside of them
        except ValueError as error:
            raise CallerError(f"a record batch is not what its schema says: {error}") from None
        nothing = [None] * batch.num_rows
        columns = [batch.column(name).to_pylist() if name in batch.schema.names else nothing for name in COLUMNS]
        made = _Rows()
        for value, key, headers, partition in zip(*columns, strict=True):
            chosen = self._choose(partition, key)
            request = PublishRequest(
                stream=self._stream,
                partition=chosen,
                key=_bytes("key", key),
                value=_bytes("value", value),
                ackPolicy=self._ack_policy,
                expectedOffset=-1,
            )
            if headers:
                for name, one in headers:
                    request.headers[name] = _bytes("headers", one)
            made.partitions.append(chosen)
            made.requests.append(request.SerializeToString())
        return made

    def _choose(self, partition: object, key: bytes | str | None) -> int:
        if partition is not None:
            if not isinstance(partition, int) or not 0 <= partition < self._partitions:
                raise StreamNotFound(
                    f"the stream {self._stream!r} has no partition {partition!r}, it has {self._partitions}"
                )
            return partition
        if key is not None:
            return zlib.crc32(_bytes("key", key)) % self._partitions
        self._turn += 1
        return (self._turn - 1) % self._partitions


def _bytes(name: str, value: object) -> bytes:
    if value is None:
        return b""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    raise CallerError(f"the column `{name}` holds {type(value).__name__}", hint="give binary or string")


class _Publishing:
    """Publishes one batch. Runs on the event loop."""

    def __init__(self, sources: TableSources, stream: str, rows: _Rows) -> None:
        self._starts = sources.starts
        self._stream = stream
        self._partitions = rows.partitions
        self._news = asyncio.Event()
        self._rows = RowPublisher(sources.publishing, rows.requests, self._news.set)

    async def run(self) -> list[int]:
        """Return the offsets in the order of the rows."""
        try:
            while self._rows.sent < len(self._partitions):
                await self._send()
            await self._until_unacked(0)
        finally:
            self._rows.close()
        return self._rows.offsets()

    async def _send(self) -> None:
        before = self._rows.sent
        verdict = self._rows.send(ROWS_AT_ONCE, limits.FLIGHT_PUT_WINDOW, limits.FLIGHT_PUT_WINDOW_BYTES)
        if verdict == kernel.PAUSED:
            await self._resume(self._partitions[self._rows.sent])
        elif verdict != kernel.SENT:
            raise self._refused(verdict)
        elif self._rows.sent > before:
            await asyncio.sleep(0)  # other tasks run
        elif self._rows.unacked:
            await self._until_unacked(self._rows.unacked // 2)
        else:
            await asyncio.sleep(OUTPUT_POLL_SECONDS)  # the output to NATS is full

    async def _until_unacked(self, unacked: int) -> None:
        """Wait until at most this many rows are unacked. Raises when a row was not stored, or no ack arrives in time."""
        while True:
            self._must_be_well()
            self._news.clear()
            if not self._rows.wait(unacked):
                break
            acked = self._rows.acked
            try:
                async with asyncio.timeout(ACK_SECONDS):
                    await self._news.wait()
            except TimeoutError:
                if self._rows.acked == acked:
                    raise OutcomeUnknown(f"no ack within {ACK_SECONDS:g} s{self._stored()}", hint=LOOK_FIRST) from None
        self._must_be_well()

    def _must_be_well(self) -> None:
        if self._rows.is_lost:
            raise OutcomeUnknown(f"the connection to NATS was lost{self._stored()}", hint=LOOK_FIRST)
        if self._rows.error == Ack.Error.OK:
            return
        known = self._rows.error in Ack.Error.values()
        reason = Ack.Error.Name(cast(Any, self._rows.error)) if known else str(self._rows.error)
        raise StateError(f"a message was not stored: {reason}{self._stored()}", hint=LOOK_FIRST)

    async def _resume(self, partition: int) -> None:
        try:
            await self._starts.resume(self._stream, partition, timeout=limits.FLIGHT_CALL_SECONDS)
        except GrpcError as error:
            raise Unavailable(f"{self._stream}/{partition} is paused: {error.text}{self._stored()}") from None

    def _refused(self, verdict: int) -> BasculeError:
        row = self._rows.sent
        where = f"{self._stream}/{self._partitions[row]}"
        match verdict:
            case kernel.NO_PARTITION:
                return StreamNotFound(f"there is no partition {where}{self._stored()}")
            case kernel.READONLY:
                return PartitionReadonly(f"{where} is readonly{self._stored()}")
            case kernel.DISCONNECTED:
                return Unavailable(f"the server is not connected to NATS{self._stored()}")
            case kernel.TOO_LARGE:
                return RecordTooLarge(
                    f"row {row} is larger than a message may be{self._stored()}",
                    hint="see `clustering.replication.max.bytes`",
                )
        return CallerError(f"row {row} cannot be published{self._stored()}")

    def _stored(self) -> str:
        return f" ({self._rows.acked} of {len(self._partitions)} rows of the batch are stored)"
