"""Subscriptions to a partition through the API: forward, until they are stopped, or backward to the oldest message.

A subscription reads as much as its client has room for. While the client does not read, nothing is read for it, and batches in memory
are dropped and read again later if all subscriptions together hold too much.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from bascule import limits
from bascule.errors import (
    BasculeError,
    CorruptBatch,
    EncryptionKeyError,
    EndOfReadonlyLog,
    LogClosed,
    LogDeleted,
    ReaderCancelled,
    grpc_status,
    without_paths,
)
from bascule.kernels.calls import subscribe as outcome
from bascule.kernels.calls.subscribe import SubscribeStream
from bascule.kernels.records.records import Record
from bascule.log import LogReader, ReverseReader
from bascule.log.disk.slowness import SlowReads
from bascule.log.segments.slices import BatchSlice
from bascule.names import TOMBSTONE_HEADER
from bascule.net.grpc.status import Status
from bascule.partition.replica import LocalPartition
from bascule.proto.api_pb2 import Message

_logger = logging.getLogger(__name__)

STOP_REACHED: Final = "Stop offset reached"
END_OF_READONLY: Final = "End of readonly partition"

UNCOMMITTED_SECONDS_MAX: Final = 5.0
"""Maximum time that a subscription with an end waits for stored messages which too few replicas have. Then it ends with an error."""


class HeldSlices:
    """The bytes that all subscriptions together have read and not delivered."""

    def __init__(self, bytes_max: int = limits.SUBSCRIPTIONS_HELD_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0

    @property
    def is_full(self) -> bool:
        return self.bytes > self.bytes_max


class ForwardSubscription:
    """Forward from an offset. `stop_offset` is inclusive; None for no end."""

    def __init__(
        self,
        stream: SubscribeStream,
        partition: LocalPartition,
        start_offset: int,
        stop_offset: int | None,
        held: HeldSlices,
        shortage: Callable[[], str | None],
    ) -> None:
        """`shortage` says why the partition cannot commit messages; None while it can."""
        self._stream = stream
        self._partition = partition
        self._stop_offset = stop_offset
        self._held = held
        self._shortage = shortage
        self._patience: asyncio.TimerHandle | None = None
        self._held_bytes = 0
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._reader = LogReader(partition.log, start_offset, bytes_max=limits.SUBSCRIPTION_READ_BYTES)
        # The start may be after the end of the log: received messages are still being written.
        self._reader.next_offset = start_offset
        self._reading = False
        self._waking = False
        self._waits = False
        """The log calls `_on_news` when there is more to read."""
        self._slow_reads = SlowReads()
        self.on_end: Callable[[ForwardSubscription], None] | None = None

    def begin(self) -> None:
        self._stream.subscription = self
        self._partition.subscribers.add(self)
        self._pump()

    @property
    def delivered(self) -> tuple[int, int]:
        return self._stream.messages, self._stream.message_bytes

    # ── events ───────────────────────────────────────────────────────────────────────────────────

    def on_room(self) -> None:
        if not self._waits:
            self._pump()

    def on_closed(self) -> None:
        """The client has disconnected, or the status was sent."""
        self._reader.cancel()
        if self._patience is not None:
            self._patience.cancel()
        self._release()
        self._partition.subscriber_left(self)
        if self.on_end is not None:
            self.on_end(self)

    def end(self, status: Status, text: str) -> None:
        if not self._stream.is_over:
            self._stream.unload()
            self._release()
            self._stream.finish(int(status), without_paths(text))

    # ── reading and delivering ───────────────────────────────────────────────────────────────────

    def _pump(self) -> None:
        try:
            while not self._reading and not self._stream.is_over:
                if not self._stream.loaded_bytes and not self._read():
                    return
                if not self._deliver():
                    return
        except BasculeError as error:
            self._fail(error)

    def _read(self) -> bool:
        """Load the next batches; False when there are none yet, or a thread reads them."""
        if self._stop_offset is not None and self._reader.next_offset > self._stop_offset:
            self.end(Status.RESOURCE_EXHAUSTED, STOP_REACHED)
            return False
        if not self._stream.has_room():
            return False
        if self._slow_reads.expected:
            self._reading = True
            self._loop.run_in_executor(None, self._poll).add_done_callback(self._on_polled)
            return False
        return self._load(self._poll())

    def _poll(self) -> BatchSlice | None:
        began = time.monotonic()
        found = self._reader.poll()
        self._slow_reads.note(time.monotonic() - began)
        return found

    def _on_polled(self, done: asyncio.Future[BatchSlice | None]) -> None:
        self._reading = False
        if self._stream.is_over:
            done.exception()
            return
        try:
            loaded = self._load(done.result())
        except BasculeError as error:
            self._fail(error)
            return
        if loaded:
            self._pump()

    def _load(self, found: BatchSlice | None) -> bool:
        if found is None:
            self._waits = self._reader.call_when_ready(self._on_news)
            if self._waits and self._stop_offset is not None and self._patience is None:
                self._be_patient()
            return not self._waits and self._read()
        end_offset = found.end_offset if self._stop_offset is None else min(found.end_offset, self._stop_offset + 1)
        batches = found.clear()
        self._stream.load(batches, found.first_offset, end_offset)
        self._held_bytes = len(batches)
        self._held.bytes += self._held_bytes
        return True

    def _deliver(self) -> bool:
        """Send the loaded batches; False when the client has no room or the call is over."""
        result = self._stream.deliver()
        if result == outcome.BUDGET:
            if self._held.is_full:
                # Dropped and read again when there is room, to save memory.
                self._reader.next_offset = self._stream.next_offset
                self._stream.unload()
                self._release()
            return False
        self._release()
        if result == outcome.DAMAGED:
            reason = f"a batch after offset {self._stream.next_offset - 1} cannot be read"
            self.end(*_end_of_damage(self._partition, reason))
            return False
        if result == outcome.END and self._stop_offset is not None and self._stream.next_offset > self._stop_offset:
            self._reader.skip_to(self._stop_offset + 1)
        return True

    def _release(self) -> None:
        self._held.bytes -= self._held_bytes
        self._held_bytes = 0

    def _on_news(self) -> None:
        """Called on the thread that moved the end of the log."""
        if self._waking:
            return
        self._waking = True
        if threading.get_ident() == self._loop_thread:
            self._loop.call_soon(self._wake)
        else:
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:
                self._waking = False  # the loop has been closed

    def _wake(self) -> None:
        self._waking = self._waits = False
        self._pump()

    # ── messages that are not committed ──────────────────────────────────────────────────────────

    def _be_patient(self) -> None:
        self._patience = self._loop.call_later(UNCOMMITTED_SECONDS_MAX, self._lose_patience, self._reader.next_offset)

    def _lose_patience(self, waited_for: int) -> None:
        """The client wants messages that are stored, and the partition cannot commit them: an error instead of an endless wait."""
        self._patience = None
        if self._stream.is_over or not self._waits:
            return
        try:
            newest, committed = self._partition.log.newest_offset, self._partition.log.high_watermark
        except BasculeError as error:
            self._fail(error)
            return
        reason = self._shortage() if newest > committed and self._reader.next_offset == waited_for else None
        if reason is None:
            self._be_patient()
        else:
            self.end(Status.OUT_OF_RANGE, f"offsets {committed + 1} to {newest} are stored and not committed: {reason}")

    # ── endings ──────────────────────────────────────────────────────────────────────────────────

    def _fail(self, error: BasculeError) -> None:
        self.end(*status_of(error, self._partition))


def status_of(error: BasculeError, partition: LocalPartition) -> tuple[Status, str]:
    """The status with which a failed subscription ends."""
    match error:
        case EndOfReadonlyLog():
            return Status.RESOURCE_EXHAUSTED, END_OF_READONLY
        case LogDeleted():
            return Status.NOT_FOUND, "stream deleted"
        case LogClosed():
            return Status.INTERNAL, "the log was closed"
        case ReaderCancelled():
            return Status.CANCELLED, "the subscription was cancelled"
        case EncryptionKeyError():
            return Status.UNKNOWN, error.message
        case CorruptBatch():
            _logger.error("%s/%d: %s", partition.stream, partition.number, error.message)
            return _end_of_damage(partition, error.message)
    _logger.error("%s/%d: %s", partition.stream, partition.number, error.message)
    return Status[grpc_status(error)], error.message


def _end_of_damage(partition: LocalPartition, reason: str) -> tuple[Status, str]:
    """UNAVAILABLE when another replica has the damaged batch: the reader continues with the next leader or the rebuilt log."""
    if partition.found_damage(reason):
        return Status.UNAVAILABLE, f"this replica is damaged: {reason}"
    return Status.DATA_LOSS, reason


class ReverseSubscription:
    """From an offset down to the oldest message or to `stop_offset`. Never waits for new messages."""

    def __init__(
        self, stream: SubscribeStream, partition: LocalPartition, start_offset: int, stop_offset: int | None
    ) -> None:
        """Raises LogEmpty when the log has no messages."""
        self._stream = stream
        self._partition = partition
        self._stop_offset = stop_offset
        self._reader = ReverseReader(
            partition.log, start_offset, stop_offset=stop_offset or 0, bytes_max=limits.SUBSCRIPTION_READ_BYTES
        )
        self._waiting: list[Record] = []
        self.delivered = (0, 0)
        self.on_end: Callable[[ReverseSubscription], None] | None = None

    def begin(self) -> None:
        self._stream.subscription = self
        self._partition.subscribers.add(self)
        self.on_room()

    def on_room(self) -> None:
        try:
            while not self._stream.is_over and self._stream.has_room():
                if not self._waiting:
                    found = self._reader.read()
                    if found is None:
                        self._finish()
                        return
                    self._waiting = found[::-1]
                message = self._encode(self._waiting.pop())
                self._stream.send(message)
                self.delivered = (self.delivered[0] + 1, self.delivered[1] + len(message))
        except BasculeError as error:
            self.end(*status_of(error, self._partition))

    def _finish(self) -> None:
        if self._stop_offset is not None:
            self.end(Status.RESOURCE_EXHAUSTED, STOP_REACHED)
        else:
            self.end(Status.RESOURCE_EXHAUSTED, "the oldest message was reached")

    def _encode(self, record: Record) -> bytes:
        subject, reply = record.subject, record.reply
        headers = {name.decode(errors="replace"): value for name, value in record.headers}
        extra = {TOMBSTONE_HEADER: b"1"} if record.value is None else {}
        message = Message(
            offset=record.offset,
            key=record.key or b"",
            value=record.value or b"",
            timestamp=record.timestamp,
            stream=self._partition.stream,
            partition=self._partition.number,
            subject=subject.decode(errors="replace"),
            replySubject=reply.decode(errors="replace"),
            headers=headers | {"subject": subject, "reply": reply} | extra,
        )
        return message.SerializeToString()

    def on_closed(self) -> None:
        self._reader.cancel()
        self._partition.subscriber_left(self)
        if self.on_end is not None:
            self.on_end(self)

    def end(self, status: Status, text: str) -> None:
        if not self._stream.is_over:
            self._stream.finish(int(status), without_paths(text))
