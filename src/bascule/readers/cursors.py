"""Consumers' positions, kept as messages of the compacted stream `__cursors`.

    partition   CRC-32 (IEEE) of the key, modulo the number of partitions
    key         <cursor id>,<stream>,<partition>, with the byte FF for each comma in the name of the stream
    value       Cursor of internal.proto

Any server can set a cursor: it publishes a message. A cursor is fetched from the leader of its partition, which reads its log. The
leader keeps the cursors that it has read, and before every answer reads the records that were committed since, so that an answer is
never older than the last acknowledged cursor. With followers, the leader first confirms that it still leads; a new leader waits until
it knows the high watermark of its predecessor. All calls are retried while leaders change.

The leader also replaces a cursor on condition that it has the expected value: it reads and publishes under a lock per cursor, so that
one of several concurrent replacements succeeds. Setting a cursor without a condition does not wait for that lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakValueDictionary

from google.protobuf.message import DecodeError

from bascule import limits
from bascule.errors import BasculeError, CorruptBatch, RejectedEnvelope, Unavailable
from bascule.kernels.records.records import Record
from bascule.log import PartitionLog
from bascule.metadata.core.model.streams import Stream
from bascule.metadata.stream_options import CURSORS_STREAM
from bascule.net.grpc.status import GrpcError, Status
from bascule.net.nats.envelope import MessageType, pack_message, unpack_message
from bascule.net.nats.subjects import ControlSubjects
from bascule.net.retry import retry
from bascule.partition.replica import LedPartition
from bascule.proto.api_pb2 import ALL
from bascule.proto.internal_pb2 import Cursor, CursorReplacement, FetchCursorRequest, FetchCursorResponse
from bascule.raft.transport import Bus, publish_quietly

if TYPE_CHECKING:
    from bascule.metadata.controller import Controller
    from bascule.metadata.partition_starts import PartitionStarts
    from bascule.partition.publisher import InternalPublisher
    from bascule.partition.registry import Partitions
    from bascule.partition.replica import LocalPartition
    from bascule.partition.replication.leading import Leading

NONE: Final = -1
"""The offset of a cursor that was never set."""

INLINE_RECORDS_MAX: Final = 256
"""Up to this number of records is read on the event loop; more are read by a thread."""

REMEMBERED_KEY_BYTES_MAX: Final = 2 * limits.ID_BYTES_MAX
"""Longer keys, of older servers and of clients that publish to the stream, are looked up in the log."""

POLL_SECONDS: Final = 0.01
TRY_SECONDS: Final = 2.0
"""Timeout of one attempt; the next one looks up the leader again. Setting a cursor twice does no harm."""
RETRY_SECONDS: Final = 0.1
_PASSING: Final = (
    Status.UNKNOWN,
    Status.UNAVAILABLE,
    Status.DEADLINE_EXCEEDED,
    Status.INTERNAL,
    Status.FAILED_PRECONDITION,
)
FORWARDED_SECONDS: Final = 5.0
"""Time limit of a leader for the request of another server."""

_logger = logging.getLogger(__name__)

_T = TypeVar("_T")


def cursor_key(cursor_id: str, stream: str, partition: int) -> bytes:
    """The key in `__cursors`. FF stands for a comma in the name of a stream, and occurs in no UTF-8 text: otherwise the cursors `a,b`
    of the stream `c` and `a` of `b,c` would have the same key."""
    return b"%b,%b,%d" % (cursor_id.encode(), stream.encode().replace(b",", b"\xff"), partition)


def cursors_partition(key: bytes, partitions: int) -> int:
    return zlib.crc32(key) % partitions


class CursorStore:
    def __init__(
        self,
        bus: Bus,
        subjects: ControlSubjects,
        controller: Controller,
        partitions: Partitions,
        publisher: InternalPublisher,
        starts: PartitionStarts,
        *,
        waits_for_stream: bool,
    ) -> None:
        """`waits_for_stream`: cursors are enabled, so that the controller of a new cluster is about to create their stream."""
        self._bus = bus
        self._subjects = subjects
        self._server_id = controller.server_id
        self._controller = controller
        self._partitions = partitions
        self._publisher = publisher
        self._starts = starts
        self._waits_for_stream = waits_for_stream
        self._views: dict[int, CursorView] = {}
        self._replacing: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()
        """By key, while a replacement of that cursor runs or waits."""

    async def start(self) -> None:
        """Answer other servers from now on."""
        await self._bus.subscribe(self._subjects.cursors(self._server_id), self._on_request)

    # ── setting ──────────────────────────────────────────────────────────────────────────────────

    async def set(self, stream: str, partition: int, cursor_id: str, offset: int, *, timeout: float) -> None:
        """Returns when the cursor is on all in-sync replicas. Raises GrpcError."""
        cursor = Cursor(stream=stream, partition=partition, cursor_id=cursor_id, offset=offset)
        key = cursor_key(cursor_id, stream, partition)
        number = cursors_partition(key, len((await self._stream(timeout)).partitions))
        try:
            await _insist(lambda seconds: self._publish(number, key, cursor, seconds), timeout)
        except (GrpcError, BasculeError) as error:
            raise GrpcError(Status.INTERNAL, f"the cursor was not stored: {_text(error)}") from None

    async def replace(
        self, stream: str, partition: int, cursor_id: str, expected: int, offset: int, *, timeout: float
    ) -> None:
        """As `set`, if the cursor is `expected`, -1 for none. Succeeds also when it is `offset` already, because a call may be retried.

        Raises GrpcError, with ABORTED for any other value.
        """
        cursor = Cursor(stream=stream, partition=partition, cursor_id=cursor_id, offset=offset)
        replacement = CursorReplacement(cursor=cursor, expected=expected)
        found = await self._ask_leader(cursor_key(cursor_id, stream, partition), timeout, replacement)
        if found != offset:
            raise GrpcError(Status.ABORTED, f"cursor {cursor_id} is {found}, not {expected}: it was not set")

    async def _publish(self, number: int, key: bytes, cursor: Cursor, seconds: float) -> None:
        await self._publisher.publish(
            CURSORS_STREAM, number, key=key, value=cursor.SerializeToString(), ack_policy=ALL, timeout=seconds
        )

    # ── fetching ─────────────────────────────────────────────────────────────────────────────────

    async def fetch(self, stream: str, partition: int, cursor_id: str, *, timeout: float) -> int:
        """The offset that was set last, -1 for none. Raises GrpcError."""
        return await self._ask_leader(cursor_key(cursor_id, stream, partition), timeout)

    async def _ask_leader(self, key: bytes, timeout: float, replacement: CursorReplacement | None = None) -> int:
        await self._stream(timeout)

        async def attempt(seconds: float) -> int:
            found = await self._stream(seconds)  # its leader may have changed since the last attempt
            number = cursors_partition(key, len(found.partitions))
            request = FetchCursorRequest(cursors_partition=number, key=key, replacement=replacement)
            leader = found.partitions[number].leader
            if leader == self._server_id:
                return await self._answer_here(request, seconds)
            return await self._answer_of(leader, request, seconds)

        return await _insist(attempt, timeout)

    async def _answer_here(self, request: FetchCursorRequest, timeout: float) -> int:
        try:
            async with asyncio.timeout(timeout):
                local = await self._led(request.cursors_partition)
                if request.HasField("replacement"):
                    return await self._replace(local, request.key, request.replacement, timeout)
                return await self._fetch(local, request.key)
        except TimeoutError:
            raise GrpcError(Status.INTERNAL, "the cursor could not be read in time") from None
        except BasculeError as error:
            raise GrpcError(Status.INTERNAL, f"the cursor could not be read: {error.message}") from None

    async def _replace(self, local: LocalPartition, key: bytes, wanted: CursorReplacement, timeout: float) -> int:
        lock = self._replacing.setdefault(key, asyncio.Lock())
        async with lock:
            found = await self._fetch(local, key)
            if found != wanted.expected:
                return found
            await self._publish(local.number, key, wanted.cursor, timeout)
            return wanted.cursor.offset

    async def _fetch(self, local: LocalPartition, key: bytes) -> int:
        if isinstance(local, LedPartition) and local.leading is not None and local.leading.core.followers:
            await self._make_sure(local, local.leading)
        return await self._read(local, key)

    async def _led(self, number: int) -> LocalPartition:
        """The partition, resumed and started here."""
        local = self._partitions.get(CURSORS_STREAM, number)
        if local is None:
            await self._starts.resume(CURSORS_STREAM, number)
            local = self._partitions.get(CURSORS_STREAM, number)
        if local is None or not local.is_leader:
            raise GrpcError(Status.FAILED_PRECONDITION, f"Server not leader of cursors partition {number}")
        if not local.is_open:
            await asyncio.to_thread(lambda: local.log)
        return local

    async def _make_sure(self, local: LedPartition, leading: Leading) -> None:
        """Confirm that this server still leads the partition, and wait until it knows the high watermark."""
        metadata = await self._controller.fresh_metadata()
        partition = metadata.streams[CURSORS_STREAM].partition(local.number)
        if partition is None or (partition.leader, partition.leader_epoch) != (self._server_id, local.leader_epoch):
            raise GrpcError(Status.FAILED_PRECONDITION, f"Server not leader of cursors partition {local.number}")
        while not leading.core.knows_what_is_committed:
            await asyncio.sleep(POLL_SECONDS)

    async def _read(self, local: LocalPartition, key: bytes) -> int:
        try:
            return await self._view(local).offset(key, local.log)
        except CorruptBatch as error:
            if local.found_damage(error.message):
                raise  # the next leader has all of them
            _logger.error("cursors were lost: %s", error.message)
        # Older cursors are better than none.
        return await self._view(local).offset(key, local.log, passes_damage=True)

    def _view(self, local: LocalPartition) -> CursorView:
        """The cursors read so far of a partition; a new, empty view for each leader epoch."""
        view = self._views.get(local.number)
        if view is None or (view.stream_id, view.leader_epoch) != (local.stream_id, local.leader_epoch):
            view = self._views[local.number] = CursorView(local.stream_id, local.leader_epoch)
        return view

    # ── between servers ──────────────────────────────────────────────────────────────────────────

    async def _answer_of(self, leader: str, request: FetchCursorRequest, timeout: float) -> int:
        data = pack_message(MessageType.PROPAGATED_REQUEST, request)
        try:
            answer = await self._bus.request(self._subjects.cursors(leader), data, timeout)
            response = unpack_message(FetchCursorResponse, answer, MessageType.PROPAGATED_RESPONSE)
        except (Unavailable, RejectedEnvelope) as error:
            raise GrpcError(Status.INTERNAL, f"the cursor could not be read: {error.message}") from None
        if response.HasField("error"):
            raise GrpcError(Status(response.error.code), response.error.msg)
        return response.offset

    async def _on_request(self, data: bytes, reply: str) -> None:
        try:
            request = unpack_message(FetchCursorRequest, data, MessageType.PROPAGATED_REQUEST)
        except RejectedEnvelope:
            return  # another program's bytes on our subject
        response = FetchCursorResponse()
        try:
            response.offset = await self._answer(request)
        except GrpcError as error:
            response.error.code, response.error.msg = error.status, error.text
        if reply:
            answer = pack_message(MessageType.PROPAGATED_RESPONSE, response)
            await publish_quietly(self._bus, reply, answer)

    async def _answer(self, request: FetchCursorRequest) -> int:
        number = request.cursors_partition
        partition = (await self._stream(FORWARDED_SECONDS)).partition(number)
        if partition is None or partition.leader != self._server_id:
            raise GrpcError(Status.FAILED_PRECONDITION, f"Server not leader of cursors partition {number}")
        return await self._answer_here(request, FORWARDED_SECONDS)

    async def _stream(self, timeout: float) -> Stream:
        """`__cursors`. A new cluster creates it soon after it has begun to serve clients."""
        if self._waits_for_stream:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    while CURSORS_STREAM not in self._controller.metadata.streams:
                        await asyncio.sleep(POLL_SECONDS)
        stream = self._controller.metadata.streams.get(CURSORS_STREAM)
        if stream is None:
            raise GrpcError(
                Status.INTERNAL, "there is no stream for cursors: `cursors.stream.partitions` is 0, or no leader"
            )
        return stream


class CursorView:
    """The cursors in the log of one partition, while this server leads it in one leader epoch."""

    def __init__(self, stream_id: int, leader_epoch: int, remembered_max: int = limits.CURSORS_REMEMBERED_MAX) -> None:
        self.stream_id = stream_id
        self.leader_epoch = leader_epoch
        self._remembered_max = remembered_max
        self._next_offset = 0
        self._cursors: OrderedDict[bytes, tuple[int, int]] = OrderedDict()
        """Key → offset of its message in the log, and the cursor. Least recently used first."""
        self._forgotten = False
        """Some cursors were evicted: a key that is missing here may be in the log."""
        self._reading = asyncio.Lock()

    async def offset(self, key: bytes, log: PartitionLog, *, passes_damage: bool = False) -> int:
        """The cursor, -1 for none. Raises CorruptBatch unless `passes_damage`, which skips damaged batches."""
        async with self._reading:
            await self._read_on(log, passes_damage)
            found = self._cursors.get(key)
            if found is None and self._forgotten:
                found = await asyncio.to_thread(self._search, key, log, passes_damage)
            if found is None or found[0] < log.log_start_offset:
                return NONE  # never set, or removed by retention
            self._remember(key, *found)
            return found[1]

    async def _read_on(self, log: PartitionLog, passes_damage: bool) -> None:
        """Read up to the present high watermark."""
        missing = log.readable_end_offset(committed=True) - self._next_offset
        if missing > INLINE_RECORDS_MAX:
            await asyncio.to_thread(self._read, log, passes_damage)
        elif missing > 0:
            self._read(log, passes_damage)

    def _read(self, log: PartitionLog, passes_damage: bool) -> None:
        while (found := read_some(log, self._next_offset, passes_damage)) is not None:
            records, self._next_offset = found
            for record in records:
                if record.key is not None and (offset := _cursor_in(record)) is not None:
                    self._remember(record.key, record.offset, offset)

    def _remember(self, key: bytes, at: int, offset: int) -> None:
        if len(key) > REMEMBERED_KEY_BYTES_MAX:
            self._forgotten = True
            return
        self._cursors[key] = (at, offset)
        self._cursors.move_to_end(key)
        if len(self._cursors) > self._remembered_max:
            self._cursors.popitem(last=False)
            self._forgotten = True

    def _search(self, key: bytes, log: PartitionLog, passes_damage: bool) -> tuple[int, int] | None:
        latest = None
        offset = 0
        while offset < self._next_offset and (found := read_some(log, offset, passes_damage)) is not None:
            records, offset = found
            for record in records:
                if record.key == key and (cursor := _cursor_in(record)) is not None:
                    latest = (record.offset, cursor)
        return latest


def read_some(log: PartitionLog, offset: int, passes_damage: bool) -> tuple[list[Record], int] | None:
    """Some committed records and the offset after them; None at the end of the log."""
    while True:
        try:
            found = log.read(offset)
            return None if found is None else (found.records(), found.next_offset)
        except CorruptBatch as error:
            if not passes_damage:
                raise
            if error.next_offset is None:
                return None
            offset = error.next_offset


def _cursor_in(record: Record) -> int | None:
    try:
        return None if record.value is None else Cursor.FromString(record.value).offset
    except DecodeError:
        return None  # not a message of ours: a client published to the stream's subject


async def _insist(attempt: Callable[[float], Awaitable[_T]], timeout: float) -> _T:
    """Retry until the attempt succeeds or the time is up: a leader may be down or handing over, and the next one not yet elected."""
    deadline = time.monotonic() + timeout
    return await retry(
        lambda: attempt(min(deadline - time.monotonic(), TRY_SECONDS)), _is_passing, (RETRY_SECONDS,), deadline=deadline
    )


def _is_passing(error: Exception) -> bool:
    return isinstance(error, BasculeError) or (isinstance(error, GrpcError) and error.status in _PASSING)


def _text(error: GrpcError | BasculeError) -> str:
    return error.message if isinstance(error, BasculeError) else error.text
