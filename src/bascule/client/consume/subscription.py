"""The result of `Client.subscribe`: messages of one partition or several, as they arrive.

async with client.subscribe("orders", start="earliest") as subscription:
    async for message in subscription:
        …
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from bascule.client.connection import options
from bascule.client.connection.retry import TimeLimit
from bascule.client.consume.partition_reader import PartitionReader
from bascule.client.consume.positions import Start
from bascule.errors import ClientClosed, InvalidOption
from bascule.kernels.client.messages import Message, MessageBatch

Wake = Callable[[], None]


class ReaderFactory(Protocol):
    """Makes the readers of a subscription."""

    async def partitions(self, deadline: TimeLimit) -> list[int]: ...
    def reader(self, partition: int, wake: Wake, start: Start | None = None) -> PartitionReader:
        """With `start` from there instead of the subscription's start. Raises InvalidOption."""


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """The messages to deliver: those with this key, and with all these headers. A header's value of None means any."""

    key: bytes | None = None
    headers: dict[str, bytes | None] | None = None

    def apply(self, batch: MessageBatch) -> MessageBatch:
        return batch.matching(self.key, self.headers)


class Subscription:
    """An async iterator of messages. Messages of one partition come in the order of their offsets; between partitions there is none.

    It lives through restarts of brokers and changes of leaders without a gap or a repeat. It ends when `stop` is reached, and
    with an error when nothing more can come: StreamDeleted, PartitionPaused, EndOfPartition, or Unavailable when the brokers
    stay away too long.
    """

    def __init__(self, factory: ReaderFactory, timeout: float, wanted: MessageFilter | None = None) -> None:
        self._factory = factory
        self._timeout = timeout
        self._filter = wanted
        self._readers: deque[PartitionReader] = deque()
        self._opened = False
        self._closed = False
        self._news = asyncio.Event()
        self._messages: deque[Message] = deque()
        self._paused: set[int] = set()
        self._aside: dict[int, deque[Message]] = {}
        """Received messages of paused partitions."""
        self._numbers: list[int] = []
        self._failure: BaseException | None = None
        self._loop = asyncio.get_running_loop()

    # ── life ─────────────────────────────────────────────────────────────────────────────────────

    async def open(self) -> Self:
        """Return when the brokers have confirmed: from then on no message is missed. Iterating does it by itself."""
        if self._closed:
            raise ClientClosed("the subscription was closed")
        if self._opened:
            return self
        self._opened = True
        deadline = TimeLimit.after(self._timeout)
        try:
            self._numbers = await self._factory.partitions(deadline)
            self._readers.extend(self._factory.reader(number, self._news.set) for number in self._numbers)
            async with asyncio.TaskGroup() as group:
                for reader in self._readers:
                    group.create_task(reader.open(deadline))
        except BaseExceptionGroup as errors:
            await self.close()
            raise errors.exceptions[0] from None
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._messages.clear()
        self._news.set()
        await self._close_readers()

    async def _close_readers(self) -> None:
        readers, self._readers = list(self._readers), deque()
        await asyncio.gather(*(reader.close() for reader in readers))

    def __del__(self) -> None:
        # A loop that is left early seldom closes its subscription. This may run on another thread.
        if self._readers and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_abandon, list(self._readers))

    def __await__(self) -> Generator[None, None, Self]:
        return self.open().__await__()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        while not self._messages:
            if not await self.receive():
                raise StopAsyncIteration
        return self._messages.popleft()

    def ready(self) -> Message | None:
        """The next message, if it was received already."""
        return self._messages.popleft() if self._messages else None

    async def receive(self) -> bool:
        """Wait for messages, which `ready` returns then. False at the end."""
        batch = await self.next_batch()
        self._messages.extend(batch or ())
        return batch is not None

    async def poll(self, timeout: float) -> Message | None:
        """The next message; None if none arrives within `timeout` seconds, and at the end of the subscription."""
        await self.open()
        try:
            async with asyncio.timeout(options.seconds("timeout", timeout, zero=True)):
                return await self.__anext__()
        except (TimeoutError, StopAsyncIteration):
            return None

    async def batches(self) -> AsyncIterator[MessageBatch]:
        """The same messages as columns: what came together stays together, and no message becomes an object unless it is asked
        for."""
        while (batch := await self.next_batch()) is not None:
            yield batch

    async def next_batch(self) -> MessageBatch | None:
        """The next messages of some partition; None at the end."""
        if not self._opened:
            await self.open()
        while True:
            if self._closed:
                raise ClientClosed("the subscription was closed")
            if self._failure is not None:
                raise self._failure  # on each call
            self._news.clear()
            try:
                found = self._take()
            except BaseException as error:
                self._failure = error
                await self._close_readers()
                raise
            if found is not None:
                found = found if self._filter is None else self._filter.apply(found)
                if len(found):
                    return found
                continue
            if not self._readers:
                return None
            await self._news.wait()

    def _take(self) -> MessageBatch | None:
        """The next batch, from the partitions in turn. A partition that has ended with an error ends all of them."""
        for _ in range(len(self._readers)):
            reader = self._readers[0]
            if reader.partition in self._paused:
                self._readers.rotate(-1)
                continue
            found = reader.take()
            if found is not None:
                self._readers.rotate(-1)
                return found
            if not reader.is_exhausted:
                self._readers.rotate(-1)
                continue
            self._readers.popleft()
            if reader.error is not None:
                raise reader.error
        return None

    # ── positions ────────────────────────────────────────────────────────────────────────────────

    def pause(self, *partitions: int) -> None:
        """Deliver no more messages of these partitions, or of all without any, until `resume`. The stream itself goes on."""
        chosen = self._chosen(partitions)
        self._paused |= chosen
        kept = [message for message in self._messages if message.partition in chosen]
        if kept:
            self._messages = deque(message for message in self._messages if message.partition not in chosen)
            for message in kept:
                self._aside.setdefault(message.partition, deque()).append(message)

    def resume(self, *partitions: int) -> None:
        """Deliver messages of these partitions, or of all without any, again: from the first one that was not delivered."""
        for number in sorted(self._chosen(partitions)):
            self._paused.discard(number)
            self._messages.extendleft(reversed(self._aside.pop(number, ())))
        self._news.set()

    @property
    def paused(self) -> list[int]:
        """The partitions of which no messages are delivered."""
        return sorted(self._paused)

    async def seek(self, start: Start, *partitions: int) -> None:
        """Go on reading at `start` in these partitions, or in all without any: what `Client.subscribe` takes, such as an offset.

        Returns when the brokers have confirmed. A message that was received and not delivered is dropped.
        """
        await self.open()
        if self._failure is not None:
            raise self._failure
        chosen = sorted(self._chosen(partitions))
        readers = [self._factory.reader(number, self._news.set, start) for number in chosen]
        old = [reader for reader in self._readers if reader.partition in chosen]
        deadline = TimeLimit.after(self._timeout)
        try:
            await asyncio.gather(*(reader.open(deadline) for reader in readers))
        except BaseException:
            await asyncio.gather(*(reader.close() for reader in readers))
            raise
        for number in chosen:
            self._aside.pop(number, None)
        self._messages = deque(message for message in self._messages if message.partition not in chosen)
        self._readers = deque([*(reader for reader in self._readers if reader not in old), *readers])
        await asyncio.gather(*(reader.close() for reader in old))
        self._news.set()

    def _chosen(self, partitions: tuple[int, ...]) -> set[int]:
        if self._closed:
            raise ClientClosed("the subscription was closed")
        if not self._opened:
            raise InvalidOption("the subscription is not open", hint="`await` it, or enter it with `async with`, first")
        for number in partitions:
            if number not in self._numbers:
                raise options.wrong("partitions", number, f"of the subscription: {', '.join(map(str, self._numbers))}")
        return set(partitions or self._numbers)


def _abandon(readers: list[PartitionReader]) -> None:
    for reader in readers:
        reader.abandon()
