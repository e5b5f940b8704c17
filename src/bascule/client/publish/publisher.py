"""A publisher of many messages: a window of them is under way at any time, and who is too fast waits.

    async with client.publisher("orders", partitioner="key") as publisher:
        future = await publisher.send(b"lamp", key=b"customer-7")
        ack = await future                       # or let it be: leaving the block waits for all of them

When a broker dies, or another one comes to lead a partition, what was under way is sent again if it is surely not stored, and with
`resend` also if it may be: then it may be stored twice. By default that is so with `ack="all"`. Otherwise it gets OutcomeUnknown.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from types import TracebackType
from typing import Any, Final, Self

from bascule.client.connection import options
from bascule.client.connection.brokers import Brokers, timed_out
from bascule.client.connection.failures import unknown_outcome
from bascule.client.connection.options import Bytes
from bascule.client.connection.retry import LEADER_CHECK_SECONDS, Backoff, Deadline
from bascule.client.publish.partitioner import Partitioner, choose, partitioner
from bascule.client.publish.publish_call import call_publish, is_large
from bascule.client.publish.publish_session import AckFuture, PublishSession, PublishSessions, fail
from bascule.client.publish.resending import AgainQueue, Outgoing, UnderWay, may_be_sent_again
from bascule.errors import BasculeError, ClientClosed, OutcomeUnknown, Unavailable
from bascule.kernels.window.window import Ack, PublishTarget, encode_publish_request

SMALL_BYTES: Final = 512 << 10
"""Up to it a value is not large, whatever its headers: at most RECORD_HEADERS_BYTES_MAX, which servers take in one message."""

OnError = Callable[[BasculeError], None]


class BasePublisher(ABC):
    """What publishers through a broker and straight to NATS have in common."""

    def __init__(
        self,
        stream: str,
        *,
        ack: str,
        partition: int | None,
        partitioner_choice: str | Partitioner | None,
        window: int,
        timeout: float,
        on_error: OnError | None,
        resend: bool | None = None,
    ) -> None:
        self.stream = options.stream_name(stream)
        self.ack_policy = options.ack_policy(ack)
        self.resend = resend
        self.resends = options.resends(resend, self.ack_policy)
        """Whether what may be stored is sent again."""
        self.window = options.integer("window", window, 1, 1 << 20)
        self.timeout = options.seconds("timeout", timeout)
        self.sent = 0
        """Messages so far."""
        self.failed = 0
        """Those that were refused, or whose outcome is unknown."""
        self._fixed = None if partition is None else options.integer("partition", partition, 0, options.INT32_MAX)
        self._partitioner = partitioner(partitioner_choice)
        self._partitions = 0
        self._on_error = on_error
        self._first_error: BasculeError | None = None
        self._closed = False
        self._loop = asyncio.get_running_loop()

    # ── sending ──────────────────────────────────────────────────────────────────────────────────

    async def send(
        self,
        value: Bytes,
        *,
        key: Bytes | None = None,
        headers: Mapping[str, Bytes] | None = None,
        partition: int | None = None,
        expected_offset: int | None = None,
    ) -> AckFuture:
        """Send a message as soon as the window has room. The future gives its ack; with ack='none' it is done at once, with None.

        Raises Unavailable when the message could not be sent within the publisher's timeout: then it surely was not.
        """
        self._check_open()
        body = value if type(value) is bytes else options.payload("value", value)
        key_bytes = None if key is None else options.payload("key", key)
        extra = None if headers is None else options.headers(headers)
        expected = -1 if expected_offset is None else options.integer("expected_offset", expected_offset, 0)
        number = await self._choose(partition, key_bytes, body)
        future: AckFuture = self._loop.create_future()
        if not self._try_send(number, body, key_bytes, extra, expected, future):
            await self._send_later(number, body, key_bytes, extra, expected, future)
        self.sent += 1
        return future

    async def send_all(self, messages: Iterable[Bytes | tuple[Bytes | None, Bytes]]) -> list[AckFuture]:
        """Send values, or pairs of key and value; a future for each."""
        futures = []
        for message in messages:
            key, value = message if isinstance(message, tuple) else (None, message)
            futures.append(await self.send(value, key=key))
        return futures

    async def flush(self) -> None:
        """Until every message so far was answered or given up; with `ack="none"`, until the broker has taken them all. Raises the
        first failure since the last flush, unless `on_error` was given."""
        await self._drain()
        error, self._first_error = self._first_error, None
        if error is not None:
            raise error

    async def close(self) -> None:
        """At once: what was not answered is of unknown outcome."""
        if not self._closed:
            self._closed = True
            await self._release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self.flush()
        finally:
            await self.close()

    # ── within ───────────────────────────────────────────────────────────────────────────────────

    async def _choose(self, partition: int | None, key: bytes | None, value: bytes) -> int:
        if partition is not None:
            return options.integer("partition", partition, 0, options.INT32_MAX)
        if self._fixed is not None:
            return self._fixed
        if not self._partitions:
            self._partitions = await self._count_partitions()
        return choose(self._partitioner, key, value, self._partitions)

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the publisher was closed")

    def _note(self, error: BasculeError) -> None:
        self.failed += 1
        if self._on_error is not None:
            self._on_error(error)
        elif self._first_error is None:
            self._first_error = error

    @abstractmethod
    async def _count_partitions(self) -> int: ...

    @abstractmethod
    def _try_send(
        self,
        partition: int,
        value: bytes,
        key: bytes | None,
        headers: dict[str, bytes] | None,
        expected_offset: int,
        future: AckFuture,
    ) -> bool: ...

    @abstractmethod
    async def _send_later(self, *message: Any) -> None:
        """Wait for room, or for a connection, and send."""

    @abstractmethod
    async def _drain(self) -> None: ...

    @abstractmethod
    async def _release(self) -> None: ...


class Publisher(BasePublisher):
    """Publishes to one stream through the brokers. Made by `Client.publisher`."""

    def __init__(self, brokers: Brokers, stream: str, **choices: Any) -> None:
        super().__init__(stream, **choices)
        self._brokers = brokers
        self._sessions = PublishSessions(brokers, power_of_two(self.window), self._not_acked)
        self._targets: dict[int, PublishTarget] = {}
        self._under_way: dict[PublishSession, UnderWay | None] = {}
        self._again: dict[int, AgainQueue] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._watch: asyncio.Task[None] | None = None
        self._sequence = 0

    async def _count_partitions(self) -> int:
        return len((await self._brokers.stream(self.stream, Deadline.after(self.timeout))).partitions)

    def _try_send(
        self,
        partition: int,
        value: bytes,
        key: bytes | None,
        headers: dict[str, bytes] | None,
        expected_offset: int,
        future: AckFuture,
    ) -> bool:
        session = self._sessions.ready(self.stream, partition)
        if session is None or (len(value) > SMALL_BYTES and is_large(value, key, headers)):
            return False
        if self._again and self._again.get(partition):
            return False  # not before what is older
        if self.ack_policy == options.ACK_POLICIES["none"]:
            if session.publish(self._target(partition), value, key, headers, expected_offset, None, 0.0) < 0:
                return False
            future.set_result(None)  # type: ignore[arg-type]
            return True
        now = monotonic()
        deadline = now + self.timeout
        number = session.publish(self._target(partition), value, key, headers, expected_offset, future, deadline)
        if number < 0:
            return False
        under_way = self._under_way[session] if session in self._under_way else self._began(session)
        if under_way is not None:
            led_by = self._sessions.leader_of(self.stream, partition) if self.resends else ""
            self._sequence += 1
            under_way.add(
                (self._sequence, number, partition, value, key, headers, expected_offset, future, deadline, now, led_by)
            )
        return True

    def _target(self, partition: int) -> PublishTarget:
        target = self._targets.get(partition)
        if target is None:
            target = self._targets[partition] = PublishTarget(self.stream, partition, self.ack_policy)
        return target

    def _send_on(self, session: PublishSession, message: Outgoing) -> bool:
        """A message that was sent before."""
        number = session.publish(
            self._target(message.partition),
            message.value,
            message.key,
            message.headers,
            message.expected_offset,
            message.future,
            message.deadline,
        )
        if number < 0:
            return False
        under_way = self._under_way[session] if session in self._under_way else self._began(session)
        if under_way is not None:
            under_way.add(message._replace(number=number))
        return True

    def _began(self, session: PublishSession) -> UnderWay | None:
        """The first message on a session. A broker that is alone refuses nothing because another one is to have it."""
        self._under_way = {one: kept for one, kept in self._under_way.items() if not one.is_over}
        is_kept = self.resends or (self.resend is None and len(self._brokers.known.brokers) > 1)
        found = self._under_way[session] = UnderWay() if is_kept else None
        if self.resends and self._watch is None:
            self._watch = self._loop.create_task(self._look_for_new_leaders(), name="publisher")
        return found

    # ── sending again ────────────────────────────────────────────────────────────────────────────

    def _not_acked(self, session: PublishSession, number: int, waiter: AckFuture | None, error: BasculeError) -> None:
        under_way = self._under_way.get(session)
        if under_way is None or number < 0:
            self._give_up(waiter, error)
            return
        message = under_way.take(number)
        if message is None:
            return  # it goes another way already
        if self._closed or not may_be_sent_again(error, message, self.resend, self.resends):
            self._give_up(waiter, error)
        else:
            self._send_again(message, error)

    def _give_up(self, waiter: AckFuture | None, error: BasculeError) -> None:
        fail(waiter, error)
        self._note(error)

    def _send_again(self, message: Outgoing, reason: BasculeError) -> None:
        queue = self._again.get(message.partition)
        if queue is None:
            queue = self._again[message.partition] = AgainQueue()
        queue.add(message, reason, monotonic())
        if not queue.is_sending:
            queue.is_sending = True
            task = self._loop.create_task(self._work_off(message.partition, queue), name="publisher")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work_off(self, partition: int, queue: AgainQueue) -> None:
        try:
            while queue:
                message = queue.first
                if message.future.done():
                    queue.pop()  # its ack has come after all
                elif monotonic() >= message.deadline or self._closed:
                    self._give_up(message.future, queue.pop())
                else:
                    await asyncio.sleep(queue.backoff.next_seconds())
                    await self._send_some(partition, queue)
        finally:
            queue.is_sending = False

    async def _send_some(self, partition: int, queue: AgainQueue) -> None:
        """As many as a session takes. Returns when it takes no more, or has none."""
        while queue and not self._closed:
            message = queue.first
            deadline = Deadline(message.deadline)
            try:
                session = await self._sessions.get(self.stream, partition, deadline)
                await session.wait_for_room(deadline)
                leader = self._sessions.leader_of(self.stream, partition)
                again = message._replace(sent_at=monotonic(), led_by=leader)
                if not message.future.done() and not self._send_on(session, again):
                    return
                queue.pop()
            except (Unavailable, TimeoutError):
                return
            except BasculeError as error:
                queue.pop()
                self._give_up(message.future, error)

    async def _look_for_new_leaders(self) -> None:
        """A broker that hangs keeps its connections: what it was sent and does not answer goes to the one that leads instead."""
        while not self._closed:
            await asyncio.sleep(LEADER_CHECK_SECONDS)
            sent_before = monotonic() - LEADER_CHECK_SECONDS
            kept = [one for one in self._under_way.values() if one is not None]
            waiting = [(one, one.waiting_since(sent_before)) for one in kept]
            if any(partitions for _, partitions in waiting):
                self._brokers.forget(self.stream)
            for under_way, partitions in waiting:
                for partition, led_by in partitions:
                    deadline = Deadline.after(self.timeout)
                    if await self._sessions.has_moved(self.stream, partition, led_by, deadline, asks=False):
                        reason = unknown_outcome("the message was sent", "another broker leads the partition by now")
                        for message in under_way.take_partition(partition, led_by):
                            self._send_again(message, reason)

    async def _send_alone(
        self,
        partition: int,
        value: bytes,
        key: bytes | None,
        headers: dict[str, bytes] | None,
        expected_offset: int,
        future: AckFuture,
    ) -> None:
        """A large message: behind all that were sent before it, and before all that come after."""
        await self._drain()
        target = PublishTarget(self.stream, partition, self.ack_policy)
        request = encode_publish_request(target, value, key, headers, expected_offset=expected_offset)
        try:
            place = (self.stream, partition) if self.resends and expected_offset < 0 else None
            ack = await call_publish(self._brokers, "Publish", request, self.timeout, resend_to=place)
            future.set_result(ack)  # type: ignore[arg-type]
        except Unavailable:
            raise
        except BasculeError as error:
            fail(future, error)
            self._note(error)

    async def _send_later(self, *message: Any) -> None:
        if is_large(message[1], message[2], message[3]):
            await self._send_alone(*message)
            return
        deadline = Deadline.after(self.timeout)
        backoff = Backoff()
        while True:
            problem: BasculeError
            try:
                session = await self._sessions.get(self.stream, message[0], deadline)
                await session.wait_for_room(deadline)
                self._check_open()
                if self._try_send(*message):
                    return
                if self._again.get(message[0]):
                    backoff.reset()
                problem = Unavailable("the connection to the broker was lost")
            except TimeoutError:
                raise timed_out("waiting for room to publish", self.timeout) from None
            except Unavailable as error:
                problem = error
            if not await backoff.wait(deadline):
                raise problem from None

    async def _drain(self) -> None:
        while True:
            for session in self._sessions.sessions:
                if self.ack_policy == options.ACK_POLICIES["none"]:
                    await session.finish(self.timeout)
                elif self._under_way.get(session) is None:
                    await session.wait_until_idle()
            for session, under_way in list(self._under_way.items()):
                if under_way is not None:
                    await session.wait_until_idle(lambda one=under_way: one.is_empty)  # type: ignore[misc]
            if not self._tasks:
                return
            await asyncio.wait(self._tasks)

    async def _release(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._sessions.close()
        if self._tasks:
            await asyncio.wait(self._tasks)


async def publish_one(
    sessions: PublishSessions,
    target: PublishTarget,
    value: bytes,
    key: bytes | None,
    headers: Mapping[str, bytes] | None,
    expected_offset: int,
    timeout: float,
    *,
    resends: bool = False,
) -> Ack:
    """One message and its ack. Tried again as long as it is surely not stored; with `resends` also when it may be."""
    deadline = Deadline.after(timeout)
    backoff = Backoff()
    while True:
        future: AckFuture = asyncio.get_running_loop().create_future()
        try:
            session = await sessions.get(target.stream, target.partition, deadline)
            await session.wait_for_room(deadline)
            if session.publish(target, value, key, headers, expected_offset, future, deadline.at) >= 0:
                return await (sessions.answer(future, target, deadline) if resends else future)
            problem: BasculeError = Unavailable("the connection to the broker was lost")
        except TimeoutError:
            raise timed_out("waiting for room to publish", timeout) from None
        except Unavailable as error:
            problem = error
        except OutcomeUnknown as error:
            if not resends:
                raise
            problem = error
        if not await backoff.wait(deadline):
            raise problem from None


def power_of_two(number: int) -> int:
    """The next one that is not smaller."""
    return 1 << (number - 1).bit_length()


__all__ = ["BasePublisher", "Publisher", "fail", "publish_one"]
