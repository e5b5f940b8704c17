"""One DoPut: the rows of a table become messages of a stream, through NATS like everybody's, and are answered with their offsets.

After each record batch the client gets `{"rows": n, "partitions": [...], "offsets": [...]}` once all of them are acked. Columns are
`value`, and `key`, `headers` and `partition` where they are wanted; any other is refused rather than dropped. Without `partition` a key
chooses the partition as clients do, and rows without one take turns.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from bascule import limits
from bascule.broker.api.streams import resume
from bascule.broker.flight.directory import Directory
from bascule.broker.flight.service import Gate
from bascule.errors import BasculeError, CallerError, OutcomeUnknown, StateError, StreamNotFound, Unavailable
from bascule.flight.tickets import PutCommand
from bascule.kernels.publish import InternalReceiver, PublishGate
from bascule.net.status import GrpcError, Status
from bascule.proto.api_pb2 import Ack, AckPolicy, PublishRequest

if TYPE_CHECKING:
    import pyarrow as pa

    from bascule.broker.services import Services

COLUMNS: Final = ("value", "key", "headers", "partition")
ROWS_AT_ONCE: Final = 64
"""Published in one go on the event loop, which has others to serve."""
ACK_SECONDS: Final = 30.0
LOOK_FIRST: Final = "look which rows are there before you send them again"
POLICIES: Final = {"leader": AckPolicy.LEADER, "all": AckPolicy.ALL}


def put(services: Services, gate: Gate, command: PutCommand, reader: Any, writer: Any) -> None:
    """On a thread of Flight's. Raises what the client is to hear; batches that were answered are stored."""
    directory = Directory(services, gate.loop)
    stream = directory.stream(command.stream)
    _check(reader.schema)
    rows = Rows(stream.name, len(stream.partitions), POLICIES[command.ack_policy])
    for number in itertools.count():
        try:
            batch = reader.read_chunk().data
        except StopIteration:
            return
        requests = list(rows.requests(batch))
        publishing = _Publishing(services, gate.publishing, stream.name, requests)
        acked = directory.in_loop(publishing.run(), timeout=None)
        answer = {
            "batch": number,
            "rows": len(requests),
            "partitions": [request.partition for request in requests],
            "offsets": acked,
        }
        writer.write(json.dumps(answer).encode())


def _check(schema: pa.Schema) -> None:
    for name in schema.names:
        if name not in COLUMNS:
            raise CallerError(
                f"a message cannot be given the column {name!r}", hint=f"columns are {', '.join(COLUMNS)}"
            )
    if "value" not in schema.names:
        raise CallerError("there is no column `value`", hint="it is what is published; it may be null")


@dataclass(frozen=True, slots=True)
class Request:
    partition: int
    data: bytes


class Rows:
    """Rows as publish requests."""

    def __init__(self, stream: str, partitions: int, ack_policy: Any) -> None:
        self._stream = stream
        self._partitions = partitions
        self._ack_policy = ack_policy
        self._turn = 0

    def requests(self, batch: pa.RecordBatch) -> Iterator[Request]:
        nothing = [None] * batch.num_rows
        columns = [batch.column(name).to_pylist() if name in batch.schema.names else nothing for name in COLUMNS]
        for value, key, headers, partition in zip(*columns, strict=True):
            chosen = self._choose(partition, key)
            yield Request(
                chosen,
                PublishRequest(
                    stream=self._stream,
                    partition=chosen,
                    key=_bytes("key", key),
                    value=_bytes("value", value),
                    headers={name: _bytes("headers", one) for name, one in headers or ()},
                    ackPolicy=self._ack_policy,
                    expectedOffset=-1,
                ).SerializeToString(),
            )

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
    """The messages of one batch on their way. In the event loop."""

    def __init__(self, services: Services, gate: PublishGate, stream: str, requests: list[Request]) -> None:
        self._services = services
        self._gate = gate
        self._stream = stream
        self._requests = requests
        self._receivers: dict[int, InternalReceiver] = {}
        self._unacked_bytes = 0
        self._offsets = [-1] * len(requests)
        self._failure: BasculeError | None = None
        self._news = asyncio.Event()

    async def run(self) -> list[int]:
        """Offsets in the order of the requests."""
        try:
            for index, request in enumerate(self._requests):
                await self._until(partial(self._has_room, len(request.data)))
                await self._send(index, request)
                if index % ROWS_AT_ONCE == ROWS_AT_ONCE - 1:
                    await asyncio.sleep(0)
            await self._until(lambda: not self._receivers)
        finally:
            for receiver in self._receivers.values():
                self._gate.cancel(receiver)
        return self._offsets

    def _has_room(self, size: int) -> bool:
        return not self._receivers or (
            len(self._receivers) < limits.FLIGHT_PUT_WINDOW
            and self._unacked_bytes + size <= limits.FLIGHT_PUT_WINDOW_BYTES
        )

    async def _until(self, holds: Callable[[], bool]) -> None:
        """Raises as soon as a message was refused, or no ack comes any more."""
        while self._failure is None and not holds():
            self._news.clear()
            try:
                async with asyncio.timeout(ACK_SECONDS):
                    await self._news.wait()
            except TimeoutError:
                raise OutcomeUnknown(f"no ack within {ACK_SECONDS:g} s{self._stored()}", hint=LOOK_FIRST) from None
        if self._failure is not None:
            raise self._failure

    async def _send(self, index: int, request: Request) -> None:
        while True:
            found = self._gate.publish_request(request.data, partial(self._on_ack, index))
            if not isinstance(found, tuple):
                break
            status, _, text, is_paused = found
            if not is_paused:
                raise _refused(Status(status), text.decode() + self._stored())
            await self._resume(request.partition)
        assert found is not None  # acks are always asked for
        self._receivers[index] = found
        self._unacked_bytes += len(request.data)

    async def _resume(self, partition: int) -> None:
        try:
            await resume(self._services, self._stream, partition, timeout=limits.FLIGHT_CALL_SECONDS)
        except GrpcError as error:
            raise Unavailable(f"{self._stream}/{partition} is paused: {error.text}{self._stored()}") from None

    def _on_ack(self, index: int, data: bytes | None) -> None:
        self._receivers.pop(index, None)
        self._unacked_bytes -= len(self._requests[index].data)
        ack = None if data is None else Ack.FromString(data)
        if ack is None:
            self._failure = OutcomeUnknown(f"the connection to NATS was lost{self._stored()}", hint=LOOK_FIRST)
        elif ack.ackError != Ack.Error.OK:
            self._failure = StateError(f"a message was not stored: {Ack.Error.Name(ack.ackError)}{self._stored()}")
        else:
            self._offsets[index] = ack.offset
        self._news.set()

    def _stored(self) -> str:
        return f" ({sum(offset >= 0 for offset in self._offsets)} of {len(self._offsets)} rows of the batch are stored)"


def _refused(status: Status, text: str) -> BasculeError:
    match status:
        case Status.NOT_FOUND:
            return StreamNotFound(text)
        case Status.UNAVAILABLE | Status.DEADLINE_EXCEEDED:
            return Unavailable(text)
        case Status.INVALID_ARGUMENT:
            return CallerError(text)
    return StateError(text)
