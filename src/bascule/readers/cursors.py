"""Consumers' positions, kept as messages of the compacted stream `__cursors`.

    partition   CRC-32 (IEEE) of the key, modulo the number of partitions
    key         <cursor id>,<stream>,<partition>, with the byte FF for each comma in the name of the stream
    value       Cursor of internal.proto, with the identity of the stream; none for a deleted cursor

Any server can set a cursor: it publishes a message. A cursor is fetched from the leader of its partition, which reads its log. The
leader keeps the cursors that it has read, and before every answer reads the records that were committed since, so that an answer is
never older than the last acknowledged cursor. With followers, the leader first confirms that it still leads; a new leader waits until
it knows the high watermark of its predecessor. All calls are retried while leaders change.

The leader also replaces a cursor on condition that it has the expected value: it reads and publishes under a lock per cursor, so that
one of several concurrent replacements succeeds. Setting a cursor without a condition does not wait for that lock.

A cursor of a stream that was deleted counts as never set for its successor of the same name; stored_cursors.py has the rule. A caller
that names the identity of the stream is refused if the stream has another one. For other callers the server stores the identity that it
knows; it confirms with the controller that this is the present one, and stores the cursor again if it is not.
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

from bascule import limits
from bascule.errors import BasculeError, CorruptBatch, OutcomeUnknown, RejectedEnvelope, Unavailable
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
from bascule.readers.stored_cursors import NONE, CursorPosition, StoredCursor, cursor_in, cursor_key, name_in

if TYPE_CHECKING:
    from bascule.metadata.controller import Controller
    from bascule.metadata.partition_starts import PartitionStarts
    from bascule.partition.publisher import InternalPublisher
    from bascule.partition.registry import Partitions
    from bascule.partition.replica import LocalPartition
    from bascule.partition.replication.leading import Leading

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
_IN_DOUBT: Final = (Status.UNKNOWN, Status.DEADLINE_EXCEEDED)
"""Statuses of a publish whose message may have been stored."""
IDENTITY_SECONDS: Final = 1.0
"""Maximum time to confirm the identity of a stream; without an answer of the controller the known one counts."""
FORWARDED_SECONDS: Final = 5.0
"""Time limit of a leader for the request of another server."""

_logger = logging.getLogger(__name__)

_T = TypeVar("_T")


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

    async def set(
        self,
        stream: str,
        partition: int,
        cursor_id: str,
        offset: int,
        *,
        timeout: float,
        stream_id: int = 0,
        delete: bool = False,
    ) -> None:
        """Returns when the cursor, or its deletion, is on all in-sync replicas.

        Raises GrpcError: NOT_FOUND if the stream does not have the identity `stream_id`, DEADLINE_EXCEEDED if it is unknown whether the
        cursor was stored.
        """
        deadline = time.monotonic() + timeout
        key = cursor_key(cursor_id, stream, partition)
        cursor = Cursor(stream=stream, partition=partition, cursor_id=cursor_id, offset=offset)
        if stream_id:
            await self._require_identity(stream, stream_id, timeout)
        cursor.stream_id = stream_id or self._identity(stream)
        await self._store(key, cursor, timeout, delete=delete)
        if not stream_id and not delete and await self._has_changed(cursor, deadline):
            await self._store(key, cursor, max(0.0, deadline - time.monotonic()))

    async def replace(
        self,
        stream: str,
        partition: int,
        cursor_id: str,
        expected: int,
        offset: int,
        *,
        timeout: float,
        stream_id: int = 0,
    ) -> None:
        """As `set`, if the cursor is `expected`, -1 for none. Succeeds also when it is `offset` already, because a call may be retried.

        Raises GrpcError, with ABORTED for any other value.
        """
        if stream_id:
            await self._require_identity(stream, stream_id, timeout)
        cursor = Cursor(stream=stream, partition=partition, cursor_id=cursor_id, offset=offset, stream_id=stream_id)
        replacement = CursorReplacement(cursor=cursor, expected=expected)
        found = await self._ask_leader(cursor_key(cursor_id, stream, partition), timeout, replacement)
        if found.offset != offset:
            raise GrpcError(Status.ABORTED, f"cursor {cursor_id} is {found.offset}, not {expected}: it was not set")

    async def _store(self, key: bytes, cursor: Cursor, timeout: float, *, delete: bool = False) -> None:
        number = cursors_partition(key, len((await self._stream(timeout)).partitions))
        value = None if delete else cursor.SerializeToString()
        in_doubt = False

        async def attempt(seconds: float) -> None:
            nonlocal in_doubt
            try:
                await self._publish(number, key, value, seconds)
            except GrpcError as error:
                in_doubt = in_doubt or error.status in _IN_DOUBT
                raise
            except OutcomeUnknown:
                in_doubt = True
                raise

        try:
            await _insist(attempt, timeout)
        except (GrpcError, BasculeError) as error:
            if in_doubt:
                text = f"the cursor may or may not have been stored: {_text(error)}"
                raise GrpcError(Status.DEADLINE_EXCEEDED, text) from None
            raise GrpcError(Status.INTERNAL, f"the cursor was not stored: {_text(error)}") from None

    async def _publish(self, number: int, key: bytes, value: bytes | None, seconds: float) -> None:
        await self._publisher.publish(CURSORS_STREAM, number, key=key, value=value, ack_policy=ALL, timeout=seconds)

    # ── the identity of streams ──────────────────────────────────────────────────────────────────

    def _identity(self, stream: str) -> int:
        """Of the present stream of this name; 0 if there is none."""
        found = self._controller.metadata.streams.get(stream)
        return 0 if found is None else found.id

    async def _require_identity(self, stream: str, stream_id: int, timeout: float) -> None:
        if self._identity(stream) != stream_id:
            await self._refresh(min(timeout, IDENTITY_SECONDS))
        if self._identity(stream) != stream_id:
            text = f"stream {stream} was deleted since it was read: the cursor was not stored"
            raise GrpcError(Status.NOT_FOUND, text)

    async def _has_changed(self, cursor: Cursor, deadline: float) -> bool:
        """Whether the stream of a stored cursor has another identity than this server knew; writes it into the cursor."""
        await self._refresh(min(max(0.0, deadline - time.monotonic()), IDENTITY_SECONDS))
        present = self._identity(cursor.stream)
        if present in (0, cursor.stream_id):
            return False
        cursor.stream_id = present
        return True

    async def _refresh(self, timeout: float) -> None:
        """Apply every op that was acknowledged before now; without a quorum, go on with the state as it is."""
        if len(self._controller.members) > 1:
            with contextlib.suppress(BasculeError):
                await self._controller.fresh_metadata(timeout=timeout)

    # ── fetching ─────────────────────────────────────────────────────────────────────────────────

    async def fetch(self, stream: str, partition: int, cursor_id: str, *, timeout: float) -> CursorPosition:
        """The position that was set last for the present stream of this name. Raises GrpcError."""
        return await self._ask_leader(cursor_key(cursor_id, stream, partition), timeout)

    async def _ask_leader(
        self, key: bytes, timeout: float, replacement: CursorReplacement | None = None
    ) -> CursorPosition:
        await self._stream(timeout)

        async def attempt(seconds: float) -> CursorPosition:
            found = await self._stream(seconds)  # its leader may have changed since the last attempt
            number = cursors_partition(key, len(found.partitions))
            request = FetchCursorRequest(cursors_partition=number, key=key, replacement=replacement)
            leader = found.partitions[number].leader
            if leader == self._server_id:
                return await self._answer_here(request, seconds)
            return await self._answer_of(leader, request, seconds)

        return await _insist(attempt, timeout)

    async def _answer_here(self, request: FetchCursorRequest, timeout: float) -> CursorPosition:
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

    async def _replace(
        self, local: LocalPartition, key: bytes, wanted: CursorReplacement, timeout: float
    ) -> CursorPosition:
        lock = self._replacing.setdefault(key, asyncio.Lock())
        async with lock:
            found = await self._fetch(local, key)
            if found.offset != wanted.expected:
                return found
            cursor = wanted.cursor
            cursor.stream_id = cursor.stream_id or found.stream_id
            await self._publish(local.number, key, cursor.SerializeToString(), timeout)
            return CursorPosition(cursor.offset, cursor.stream_id)

    async def _fetch(self, local: LocalPartition, key: bytes) -> CursorPosition:
        if isinstance(local, LedPartition) and local.leading is not None and local.leading.core.followers:
            await self._make_sure(local, local.leading)
        elif len(self._controller.members) > 1:
            await self._controller.fresh_metadata()
        stored = await self._read(local, key)
        name = name_in(key)
        stream = None if name is None else self._controller.metadata.streams.get(name.stream)
        is_valid = stored is not None and stored.belongs_to(stream)
        return CursorPosition(stored.offset if stored and is_valid else NONE, 0 if stream is None else stream.id)

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

    async def _read(self, local: LocalPartition, key: bytes) -> StoredCursor | None:
        try:
            return await self._view(local).find(key, local.log)
        except CorruptBatch as error:
            if local.found_damage(error.message):
                raise  # the next leader has all of them
            _logger.error("cursors were lost: %s", error.message)
        # Older cursors are better than none.
        return await self._view(local).find(key, local.log, passes_damage=True)

    def _view(self, local: LocalPartition) -> CursorView:
        """The cursors read so far of a partition; a new, empty view for each leader epoch."""
        view = self._views.get(local.number)
        if view is None or (view.stream_id, view.leader_epoch) != (local.stream_id, local.leader_epoch):
            view = self._views[local.number] = CursorView(local.stream_id, local.leader_epoch)
        return view

    # ── between servers ──────────────────────────────────────────────────────────────────────────

    async def _answer_of(self, leader: str, request: FetchCursorRequest, timeout: float) -> CursorPosition:
        data = pack_message(MessageType.PROPAGATED_REQUEST, request)
        try:
            answer = await self._bus.request(self._subjects.cursors(leader), data, timeout)
            response = unpack_message(FetchCursorResponse, answer, MessageType.PROPAGATED_RESPONSE)
        except (Unavailable, RejectedEnvelope) as error:
            raise GrpcError(Status.INTERNAL, f"the cursor could not be read: {error.message}") from None
        if response.HasField("error"):
            raise GrpcError(Status(response.error.code), response.error.msg)
        return CursorPosition(response.offset, response.stream_id)

    async def _on_request(self, data: bytes, reply: str) -> None:
        try:
            request = unpack_message(FetchCursorRequest, data, MessageType.PROPAGATED_REQUEST)
        except RejectedEnvelope:
            return  # another program's bytes on our subject
        response = FetchCursorResponse()
        try:
            response.offset, response.stream_id = await self._answer(request)
        except GrpcError as error:
            response.error.code, response.error.msg = error.status, error.text
        if reply:
            answer = pack_message(MessageType.PROPAGATED_RESPONSE, response)
            await publish_quietly(self._bus, reply, answer)

    async def _answer(self, request: FetchCursorRequest) -> CursorPosition:
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
        self._cursors: OrderedDict[bytes, StoredCursor] = OrderedDict()
        """By key. Least recently used first."""
        self._forgotten = False
        """Some cursors were evicted: a key that is missing here may be in the log."""
        self._reading = asyncio.Lock()

    async def find(self, key: bytes, log: PartitionLog, *, passes_damage: bool = False) -> StoredCursor | None:
        """The cursor that was stored last, for any stream. Raises CorruptBatch unless `passes_damage`, which skips damaged batches."""
        async with self._reading:
            await self._read_on(log, passes_damage)
            found = self._cursors.get(key)
            if found is None and self._forgotten:
                found = await asyncio.to_thread(self._search, key, log, passes_damage)
            if found is None or found.at < log.log_start_offset:
                return None  # never set, or removed by retention
            self._remember(key, found)
            return found

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
                if record.key is not None and (stored := _stored(record)) is not None:
                    self._remember(record.key, stored)

    def _remember(self, key: bytes, stored: StoredCursor) -> None:
        if len(key) > REMEMBERED_KEY_BYTES_MAX:
            self._forgotten = True
            return
        self._cursors[key] = stored
        self._cursors.move_to_end(key)
        if len(self._cursors) > self._remembered_max:
            self._cursors.popitem(last=False)
            self._forgotten = True

    def _search(self, key: bytes, log: PartitionLog, passes_damage: bool) -> StoredCursor | None:
        latest = None
        offset = 0
        while offset < self._next_offset and (found := read_some(log, offset, passes_damage)) is not None:
            records, offset = found
            for record in records:
                if record.key == key and (stored := _stored(record)) is not None:
                    latest = stored
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


def _stored(record: Record) -> StoredCursor | None:
    if not record.value:
        return StoredCursor.deleted(record)
    found = cursor_in(record)
    return None if found is None else found[1]


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
