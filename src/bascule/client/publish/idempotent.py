"""A publisher whose messages are stored exactly once and in order, whatever fails: it numbers them, and sends until they are acked.

    async with client.publisher("orders", idempotent=True) as publisher:
        await publisher.send(b"lamp")

Each partition is a lane. A lane sends its messages one behind the other without waiting; when one has no good answer, it waits for the
answers that are still to come and sends everything again from the first message that lacks one. What was stored comes back as a
duplicate.

A message that is refused for good leaves a hole in the sequence, and nothing behind it can be stored in this epoch. The lane begins
the next epoch then, in which the others have new numbers. Only those, that is, which are surely not stored: what may be is given up
(OutcomeUnknown), since with a new number it might be stored twice. With an epoch that the caller chose, the publisher ends there.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

from bascule.client.connection import options
from bascule.client.connection.brokers import Brokers, timed_out
from bascule.client.connection.failures import LOOK_FIRST, unknown_outcome
from bascule.client.connection.retry import Backoff, Deadline
from bascule.client.publish.publish_call import call_publish, is_large
from bascule.client.publish.publish_session import AckFuture, PublishSession, PublishSessions, fail
from bascule.client.publish.publisher import BasePublisher, power_of_two
from bascule.errors import BasculeError, OutcomeUnknown, OutOfSequence, ProducerFenced, Unavailable
from bascule.kernels.window.window import Ack, PublishTarget, encode_publish_request
from bascule.partition.core.producers import NUMBER_MAX, producer_headers, producer_id_fault

TRY_SECONDS: Final = 3.0
"""How long an ack is waited for before its message is sent again: it may have met no leader. To send it once too often costs little."""


@dataclass(slots=True, eq=False)
class _Message:
    value: bytes
    key: bytes | None
    headers: dict[str, bytes] | None
    expected_offset: int
    future: AckFuture
    deadline: float
    sequence: int = -1
    is_in_doubt: bool = False
    """It was sent, and nobody knows what became of it."""
    error: BasculeError | None = None
    """Why its last try failed."""

    @property
    def is_done(self) -> bool:
        return self.future.done()

    @property
    def is_large(self) -> bool:
        return is_large(self.value, self.key, self.headers)


class _Try:
    """What waits for the ack of a message that was sent once."""

    __slots__ = ("_lane", "_message")

    def __init__(self, lane: _Lane, message: _Message) -> None:
        self._lane = lane
        self._message = message

    def done(self) -> bool:
        return False

    def set_result(self, ack: Ack) -> None:
        self._lane.acked(self._message, ack)

    def fail(self, error: BasculeError) -> None:
        self._lane.failed(self._message, error)


class _Lane:
    """The messages of one partition."""

    def __init__(self, publisher: IdempotentPublisher, partition: int, epoch: int) -> None:
        self._publisher = publisher
        self._target = PublishTarget(publisher.stream, partition, publisher.ack_policy)
        self._partition = partition
        self._epoch = epoch
        self._next_sequence = 0
        self._sent: deque[_Message] = deque()
        self._unsent: deque[_Message] = deque()
        self._outstanding = 0
        self._goes_back = False
        """Something failed: no more is sent until everything that was sent is answered."""
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_empty(self) -> bool:
        return not self._sent and not self._unsent

    def add(self, message: _Message) -> None:
        message.sequence = self._next_sequence
        self._next_sequence += 1
        self._unsent.append(message)
        if len(self._unsent) > 1 or self._goes_back or not self._send_ready():
            self._news.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work(), name="idempotent publisher")

    # ── answers ──────────────────────────────────────────────────────────────────────────────────

    def acked(self, message: _Message, ack: Ack) -> None:
        self._outstanding -= 1
        if not message.is_done:
            message.future.set_result(ack)
        self._settle()

    def failed(self, message: _Message, error: BasculeError) -> None:
        self._outstanding -= 1
        message.error = error
        if isinstance(error, OutcomeUnknown):
            message.is_in_doubt = True
        self._goes_back = True
        self._settle()

    def _settle(self) -> None:
        while self._sent and self._sent[0].is_done:
            self._sent.popleft()
            self._publisher.has_room()
        if self._goes_back or not self._sent:
            self._news.set()

    # ── sending ──────────────────────────────────────────────────────────────────────────────────

    async def _work(self) -> None:
        backoff = Backoff()
        while not self._publisher.is_closed:
            self._news.clear()
            if self._goes_back:
                if self._outstanding == 0 and await self._go_back():
                    await asyncio.sleep(backoff.next_seconds())
                    continue
            elif self._unsent:
                await self._send_some()
                continue
            elif not self._sent:
                backoff.reset()
            await self._news.wait()

    def _send_ready(self) -> bool:
        """Send the first message on a session that is there. False when there is none, or it has no room."""
        session = self._publisher.sessions.ready(self._publisher.stream, self._partition)
        return session is not None and not self._unsent[0].is_large and self._send_on(session)

    def _send_on(self, session: PublishSession) -> bool:
        message = self._unsent[0]
        waiter: Any = _Try(self, message)
        number = session.publish(
            self._target,
            message.value,
            message.key,
            self._headers(message),
            message.expected_offset,
            waiter,
            min(message.deadline, monotonic() + TRY_SECONDS),
        )
        if number < 0:
            return False
        self._outstanding += 1
        self._sent.append(self._unsent.popleft())
        return True

    def _headers(self, message: _Message) -> dict[str, bytes]:
        return {**(message.headers or {}), **producer_headers(self._publisher.id_bytes, self._epoch, message.sequence)}

    async def _send_some(self) -> None:
        """Until all are sent, or something fails."""
        publisher = self._publisher
        while self._unsent and not self._goes_back and not publisher.is_closed:
            if self._unsent[0].is_large:
                if self._sent:
                    self._news.clear()
                    await self._news.wait()
                else:
                    await self._send_alone()
                continue
            deadline = Deadline(min(self._unsent[0].deadline, monotonic() + TRY_SECONDS))
            try:
                session = await publisher.sessions.get(publisher.stream, self._partition, deadline)
                await session.wait_for_room(deadline)
                while self._unsent and not self._unsent[0].is_large and not self._goes_back and self._send_on(session):
                    pass
            except TimeoutError:
                self._not_sent(Unavailable("there was no room to publish"))
            except BasculeError as error:
                self._not_sent(error)

    def _not_sent(self, error: BasculeError) -> None:
        self._unsent[0].error = error
        self._goes_back = True

    async def _send_alone(self) -> None:
        message = self._unsent.popleft()
        self._sent.append(message)
        self._outstanding += 1
        request = encode_publish_request(
            self._target,
            message.value,
            message.key,
            self._headers(message),
            expected_offset=message.expected_offset,
        )
        try:
            seconds = max(0.01, min(message.deadline - monotonic(), 3 * TRY_SECONDS))
            ack = await call_publish(self._publisher.brokers, "Publish", request, seconds)
        except BasculeError as error:
            self.failed(message, error)
        else:
            assert ack is not None
            self.acked(message, ack)

    # ── sending again ────────────────────────────────────────────────────────────────────────────

    async def _go_back(self) -> bool:
        """Everything that was sent is answered: what lacks a good answer goes again, in its order."""
        left = [message for message in (*self._sent, *self._unsent) if not message.is_done]
        self._sent.clear()
        self._unsent = deque(left)
        self._goes_back = False
        self._publisher.has_room()
        if not left:
            return False
        first = left[0]
        fenced = next((one.error for one in left if isinstance(one.error, ProducerFenced)), None)
        if fenced is not None:
            self._end(fenced)
        elif monotonic() >= first.deadline or not _may_go_again(first):
            self._give_up_first()
        else:
            if any(message.is_in_doubt for message in left):
                await self._look_for_leader(first)
            for message in left:
                message.error = None
        return bool(self._unsent)

    async def _look_for_leader(self, message: _Message) -> None:
        """A broker that hangs keeps its connections."""
        sessions, stream = self._publisher.sessions, self._publisher.stream
        led_by = sessions.leader_of(stream, self._partition)
        deadline = Deadline(min(message.deadline, monotonic() + TRY_SECONDS))
        try:
            await sessions.has_moved(stream, self._partition, led_by, deadline)
        except BasculeError as error:
            message.error = error  # whoever sends it again finds out

    def _give_up_first(self) -> None:
        first = self._unsent[0]
        error = first.error or Unavailable("the message could not be sent in time")
        if isinstance(error, OutOfSequence) and not first.is_in_doubt and first.sequence and self._publisher.owns_epoch:
            self._begin_epoch()  # the partition has forgotten this producer, and everything before it is acked
            return
        self._unsent.popleft()
        self._fail(first, error)
        if self._publisher.owns_epoch:
            self._begin_epoch()
        else:
            self._end(error)

    def _begin_epoch(self) -> None:
        left, self._unsent = self._unsent, deque()
        self._epoch += 1
        self._next_sequence = 0
        for message in left:
            if message.is_in_doubt:
                self._fail(message, message.error)
                continue
            message.sequence = self._next_sequence
            message.error = None
            self._next_sequence += 1
            self._unsent.append(message)

    def _end(self, error: BasculeError) -> None:
        """Nothing more can be published under this epoch."""
        self._publisher.end(error)
        while self._unsent:
            self._fail(self._unsent.popleft(), error)

    def _fail(self, message: _Message, error: BasculeError | None) -> None:
        if message.is_in_doubt and not isinstance(error, OutcomeUnknown):
            why = "it was sent again without success" if error is None else error.message
            error = OutcomeUnknown(f"nobody knows whether the message is stored: {why}", hint=LOOK_FIRST)
        self._publisher.gave_up(message.future, error or Unavailable("the message was not sent"))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for message in (*self._sent, *self._unsent):
            if not message.is_done:
                fail(message.future, unknown_outcome("the message was sent", "the publisher was closed"))


def _may_go_again(message: _Message) -> bool:
    if isinstance(message.error, OutOfSequence):
        return False  # nothing before it is missing: it is the first
    return message.error is None or isinstance(message.error, Unavailable | OutcomeUnknown)


class IdempotentPublisher(BasePublisher):
    """Publishes each message exactly once. Made by `Client.publisher(…, idempotent=True)`."""

    def __init__(
        self, brokers: Brokers, stream: str, *, producer_id: str | None, epoch: int | None, **choices: Any
    ) -> None:
        super().__init__(stream, **choices)
        if self.ack_policy == options.ACK_POLICIES["none"]:
            raise options.wrong("ack", "none", "'leader' or 'all': without acks nobody knows what to send again")
        if producer_id is not None and (fault := producer_id_fault(producer_id)):
            raise options.wrong("producer_id", producer_id, fault.removeprefix("it must "))
        self.producer_id = producer_id or secrets.token_hex(12)
        """Who publishes, as the messages say."""
        self.id_bytes = self.producer_id.encode()
        self.owns_epoch = epoch is None
        if epoch is not None:
            options.integer("epoch", epoch, 0, NUMBER_MAX)
        # Milliseconds: a later life of the same producer always has a higher one.
        self.epoch = epoch if epoch is not None else (0 if producer_id is None else time.time_ns() // 1_000_000)
        self.brokers = brokers
        self.sessions = PublishSessions(brokers, power_of_two(self.window), self._not_acked)
        self._lanes: dict[int, _Lane] = {}
        self._under_way = 0
        self._room = asyncio.Event()
        self._end_reason: BasculeError | None = None

    @property
    def is_closed(self) -> bool:
        return self._closed

    # ── for lanes ────────────────────────────────────────────────────────────────────────────────

    def has_room(self) -> None:
        self._room.set()

    def end(self, error: BasculeError) -> None:
        self._end_reason = error

    def gave_up(self, future: AckFuture, error: BasculeError) -> None:
        fail(future, error)
        self._note(error)
        self._room.set()

    def _not_acked(self, _session: PublishSession, _number: int, waiter: Any, error: BasculeError) -> None:
        if isinstance(waiter, _Try):
            waiter.fail(error)

    # ── sending ──────────────────────────────────────────────────────────────────────────────────

    async def _count_partitions(self) -> int:
        return len((await self.brokers.stream(self.stream, Deadline.after(self.timeout))).partitions)

    def _try_send(
        self,
        partition: int,
        value: bytes,
        key: bytes | None,
        headers: dict[str, bytes] | None,
        expected_offset: int,
        future: AckFuture,
    ) -> bool:
        if self._end_reason is not None:
            raise self._end_reason
        if self._under_way >= self.window:
            return False
        lane = self._lanes.get(partition)
        if lane is None:
            lane = self._lanes[partition] = _Lane(self, partition, self.epoch)
        self._under_way += 1
        future.add_done_callback(self._answered)
        lane.add(_Message(value, key, headers, expected_offset, future, monotonic() + self.timeout))
        return True

    def _answered(self, _future: AckFuture) -> None:
        self._under_way -= 1
        self._room.set()

    async def _send_later(self, *message: Any) -> None:
        try:
            async with asyncio.timeout(self.timeout):
                while not self._try_send(*message):
                    self._room.clear()
                    await self._room.wait()
                    self._check_open()
        except TimeoutError:
            raise timed_out("waiting for room to publish", self.timeout) from None

    async def _drain(self) -> None:
        while not self._closed and self._under_way:
            self._room.clear()
            await self._room.wait()

    async def _release(self) -> None:
        self.sessions.close()
        for lane in self._lanes.values():
            await lane.close()
        self._room.set()
