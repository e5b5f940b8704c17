"""The subscription to one partition: when the connection is lost, it is renewed after the last message received.

confirmed and then lost, UNAVAILABLE …       subscribe again after the last message received
FAILED_PRECONDITION before the handshake     another broker leads: fetch metadata, at most five times
FAILED_PRECONDITION after it                 paused: PartitionPaused, or resumed with `resume`
NOT_FOUND after it                           StreamDeleted
OUT_OF_RANGE after it                        stored messages before the stop cannot be committed: NotEnoughReplicas
RESOURCE_EXHAUSTED                           the stop was reached: the end; or nothing more will come: EndOfPartition
OK                                           a newer member of the group reads now
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bascule.client.connection import metadata, wire
from bascule.client.connection.brokers import NOT_LEADER_TRIES_MAX, Brokers, paused, start
from bascule.client.connection.failures import error_of, is_passing
from bascule.client.connection.metadata import PartitionInfo
from bascule.client.connection.retry import Backoff, TimeLimit
from bascule.client.connection.wire import Fields
from bascule.client.consume.positions import STOP_TIMESTAMP, Position
from bascule.errors import (
    BasculeError,
    EndOfPartition,
    NotEnoughReplicas,
    NotGroupMember,
    PartitionPaused,
    StreamDeleted,
    StreamNotFound,
    Unavailable,
)
from bascule.kernels.client.messages import MessageBatch
from bascule.kernels.client.streams import SubscribeClientStream
from bascule.net.grpc.channel import Channel
from bascule.net.grpc.status import Status

HANDSHAKE_SECONDS_MAX: Final = 5.0
"""Timeout for a broker to confirm a subscription."""

WAITING_BYTES_MAX: Final = 8 << 20
"""Bytes of one partition that are received and not taken; at the limit the server is held back."""

NOT_COMMITTED: Final = "are stored and not committed"
"""Text of a broker's OUT_OF_RANGE status when too few replicas are in sync to commit messages before the stop."""

LOST: Final = (
    Status.UNAVAILABLE,
    Status.CANCELLED,
    Status.DEADLINE_EXCEEDED,
    Status.INTERNAL,
)
"""Statuses that say nothing about the partition: the subscription is renewed."""


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    resume: bool = False
    read_replica: bool = False
    patience: float = 60.0
    """Seconds to reach the partition again before the subscription ends with Unavailable."""


class _SubscribeRefused(Exception):
    """The broker refused the subscription."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class PartitionReader:
    """`wake` is called when there may be messages to take, and at the end. With `stream_id` it reads the stream of that identity alone,
    and ends with StreamDeleted when a new stream has its name."""

    def __init__(
        self,
        brokers: Brokers,
        stream: str,
        partition: int,
        position: Position,
        options: ReaderOptions,
        wake: Callable[[], None],
        *,
        consumer: Fields | None = None,
        stream_id: int = 0,
    ) -> None:
        self.stream = stream
        self.partition = partition
        self.position = position
        self.error: BasculeError | None = None
        """Why it ended; None while it runs, and when everything requested was received."""
        self.ended = False
        """Nothing more will be received; messages may still be there to take."""
        self.subscriptions = 0
        """Number of confirmed subscriptions."""
        self._brokers = brokers
        self._options = options
        self._wake = wake
        self._consumer = consumer
        self._stream_id = stream_id
        self._call: SubscribeClientStream | None = None
        self._left: deque[MessageBatch] = deque()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # ── for the subscriber ───────────────────────────────────────────────────────────────────────

    async def open(self, deadline: TimeLimit) -> None:
        """Return when the broker has confirmed the subscription, or raise its error."""
        await self._pin(deadline)
        await self._begin(deadline)

    async def _begin(self, deadline: TimeLimit) -> None:
        if self.position.is_done:
            self._end(None)
            return
        if not await self._is_subscribed(deadline):
            return
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name=f"subscription {self.stream}/{self.partition}"
        )

    def take(self) -> MessageBatch | None:
        """The oldest batch that was received and not taken; None without."""
        if self._left:
            return self._left.popleft()
        return None if self._call is None else self._call.take()

    @property
    def is_exhausted(self) -> bool:
        return self.ended and not self._left

    def abandon(self) -> None:
        """End the subscription at once. Messages that were not taken are dropped."""
        self.ended = True
        self._left.clear()
        call, self._call = self._call, None
        if call is not None:
            call.on_ready = None
            call.cancel()
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """The same, and wait until its task has ended."""
        self.abandon()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _is_subscribed(self, deadline: TimeLimit) -> bool:
        """Subscribe; False if everything requested was received. Raises what retries do not help against, after the end."""
        try:
            await self._subscribe(deadline)
        except _Over as over:
            self._end(over.error)
            if over.error is not None:
                raise over.error from None
            return False
        return True

    # ── the life of a subscription ───────────────────────────────────────────────────────────────

    async def _run(self) -> None:
        error: BasculeError | None = None
        backoff = Backoff()
        try:
            while not self.ended:
                before = self.position.last
                await self._until_ended()
                if self._is_final():
                    break
                if self.position.last != before:
                    backoff.reset()
                deadline = TimeLimit.after(self._options.patience)
                if backoff.tries:
                    await backoff.wait(deadline)  # it was confirmed and lost without a message
                backoff.tries += 1
                await self._subscribe(deadline)
        except _Over as over:
            error = over.error
        except BasculeError as problem:
            error = problem
        self._end(error)

    def _end(self, error: BasculeError | None) -> None:
        self._collect()
        self.error = error
        self.ended = True
        self._wake()

    def _on_ready(self) -> None:
        self._changed.set()
        self._wake()

    async def _until_ended(self) -> None:
        while self._call is not None and not self._call.finished:
            self._changed.clear()
            await self._changed.wait()
        self._collect()

    def _collect(self) -> None:
        """Keep the messages of the call, and note the last offset."""
        call, self._call = self._call, None
        if call is None:
            return
        self._status, self._text = call.status, call.status_text
        if call.last_offset >= 0:
            self.position.last = call.last_offset
        while (batch := call.take()) is not None:
            self._left.append(batch)
        self._wake()

    def _is_final(self) -> bool:
        """Whether the end of a confirmed call is the end of the subscription. Raises _Over for an end with an error."""
        status, text = self._status, self._text
        where = f"partition {self.partition} of stream `{self.stream}`"
        if self.position.is_done:
            return True
        if status == Status.RESOURCE_EXHAUSTED:
            if (self.position.wanted.has_stop or self.position.wanted.reverse) and "readonly" not in text:
                return True
            raise _Over(EndOfPartition(f"{where} is readonly and has been read to its end"))
        if status == Status.NOT_FOUND:
            raise _Over(StreamDeleted(f"stream `{self.stream}` was deleted"))
        if status == Status.OUT_OF_RANGE and NOT_COMMITTED in text:
            raise _Over(NotEnoughReplicas(text))
        if status == Status.OK and self._consumer is not None:
            raise _Over(NotGroupMember(f"{where} is read by a newer member of the group"))
        if status == Status.FAILED_PRECONDITION and not self._options.resume:
            self._brokers.forget(self.stream)
            self._may_be_paused = True
            return False
        if status in LOST or status in (Status.OK, Status.FAILED_PRECONDITION):
            return False
        raise _Over(error_of(status, text))

    _status: int = 0
    _text: str = ""
    _may_be_paused: bool = False

    # ── subscribing ──────────────────────────────────────────────────────────────────────────────

    async def _subscribe(self, deadline: TimeLimit) -> None:
        """Subscribe to what is still missing, with retries. Raises Unavailable after the deadline, _Over when retries do not help."""
        backoff = Backoff()
        refusals = 0
        while True:
            try:
                await self._try(deadline)
            except _SubscribeRefused as refused:
                problem = self._refused(refused)
                refusals += refused.status == Status.FAILED_PRECONDITION
                if refusals > NOT_LEADER_TRIES_MAX:
                    if self._consumer is not None and "epoch" in refused.text:
                        raise NotGroupMember(refused.text) from None
                    raise problem from None
            except StreamNotFound as error:
                if self.subscriptions:
                    raise _Over(StreamDeleted(f"stream `{self.stream}` was deleted")) from None
                raise _Over(error) from None
            except PartitionPaused as error:
                raise _Over(error) from None
            except Unavailable as error:
                problem = error
            else:
                return
            self._brokers.forget(self.stream)
            if not await backoff.wait(deadline):
                raise Unavailable(
                    f"partition {self.partition} of stream `{self.stream}` cannot be read: {problem.message}"
                ) from None

    def _refused(self, refused: _SubscribeRefused) -> BasculeError:
        """The error to report if retries fail too; raises _Over when it is final."""
        status, text = refused.status, refused.text
        if status in (Status.FAILED_PRECONDITION, Status.CANCELLED, Status.DEADLINE_EXCEEDED) or is_passing(
            status, text
        ):
            return error_of(status, text)
        if status == Status.RESOURCE_EXHAUSTED:
            raise _Over(None if self.position.wanted.has_stop else EndOfPartition(text))
        is_before_all = status == Status.OUT_OF_RANGE and NOT_COMMITTED not in text
        if self.position.wanted.stop_position == STOP_TIMESTAMP and (is_before_all or status == Status.INTERNAL):
            raise _Over(None)  # all messages are newer than `stop`: Liftbridge answers INTERNAL
        if status == Status.INVALID_ARGUMENT and "stop offset" in text.lower() and not self.position.is_empty:
            raise _Over(None)  # retention has deleted the whole range
        if status == Status.INTERNAL and self.subscriptions:
            return error_of(status, text)
        if status == Status.NOT_FOUND and self.subscriptions:
            raise _Over(StreamDeleted(f"stream `{self.stream}` was deleted"))
        raise _Over(error_of(status, text))

    async def _try(self, deadline: TimeLimit) -> None:
        if self._may_be_paused:
            info = await self._brokers.partition(self.stream, self.partition, deadline)
            if info.paused:
                raise paused(self.stream, self.partition)
            self._may_be_paused = False
        channel = await self._channel(deadline)
        call = await self._handshake(channel, self._request(), deadline)
        self.subscriptions += 1
        self._call = call
        call.on_ready = self._on_ready
        self._changed.set()
        self._wake()

    async def _handshake(self, channel: Channel, request: bytes, deadline: TimeLimit) -> SubscribeClientStream:
        """A call that the broker has confirmed. Raises _SubscribeRefused, Unavailable."""
        changed = asyncio.Event()
        call = SubscribeClientStream(request, changed.set, waiting_bytes_max=WAITING_BYTES_MAX)
        start(channel, call, "Subscribe")
        try:
            async with asyncio.timeout(min(deadline.left, HANDSHAKE_SECONDS_MAX)):
                while not call.confirmed and not call.finished:
                    changed.clear()
                    await changed.wait()
        except BaseException as error:
            call.cancel()
            if isinstance(error, TimeoutError):
                raise Unavailable("the broker did not confirm the subscription in time") from None
            raise
        if not call.confirmed:
            raise _SubscribeRefused(call.status, call.status_text)
        return call

    def _request(self) -> bytes:
        return wire.encode(
            "SubscribeRequest",
            stream=self.stream,
            partition=self.partition,
            resume=self._options.resume,
            readISRReplica=self._options.read_replica,
            consumer=self._consumer,
            streamId=self._stream_id,
            **self.position.request(),
        )

    async def _channel(self, deadline: TimeLimit) -> Channel:
        info = await self._brokers.partition(self.stream, self.partition, deadline)
        if self._options.read_replica:
            replicas = [broker for broker in info.in_sync_replicas if broker in self._brokers.known.brokers]
            if replicas:
                return await self._brokers.broker_channel(random.choice(replicas), deadline)
        return await self._brokers.leader_channel(self.stream, self.partition, deadline)

    # ── pinning ──────────────────────────────────────────────────────────────────────────────────

    async def _pin(self, deadline: TimeLimit) -> None:
        """Replace positions that depend on the current end of the log by offsets."""
        self.position.pin((await self._leader_info(deadline)).newest_offset)

    async def _leader_info(self, deadline: TimeLimit) -> PartitionInfo:
        try:
            return await fetch_partition(self._brokers, self.stream, self.partition, deadline)
        except PartitionPaused:
            if not self._options.resume:
                raise
        # Only a subscription resumes a partition without a publish. It is not used otherwise.
        backoff = Backoff()
        request = wire.encode("SubscribeRequest", stream=self.stream, partition=self.partition, resume=True)
        while True:
            try:
                channel = await self._brokers.leader_channel(self.stream, self.partition, deadline)
                (await self._handshake(channel, request, deadline)).cancel()
                return await fetch_partition(self._brokers, self.stream, self.partition, deadline)
            except (_SubscribeRefused, Unavailable, PartitionPaused) as problem:
                self._brokers.forget(self.stream)
                if not await backoff.wait(deadline):
                    raise Unavailable(f"the partition could not be resumed: {problem}") from None


class _Over(Exception):
    """The subscription has ended with this error; None when everything was received."""

    def __init__(self, error: BasculeError | None) -> None:
        super().__init__()
        self.error = error


async def fetch_partition(brokers: Brokers, stream: str, partition: int, deadline: TimeLimit) -> PartitionInfo:
    """The partition's metadata from its leader."""
    request = wire.encode("FetchPartitionMetadataRequest", stream=stream, partition=partition)
    answer = await brokers.call_leader("FetchPartitionMetadata", request, stream, partition, timeout=deadline.left)
    return metadata.parse_partition(answer)
