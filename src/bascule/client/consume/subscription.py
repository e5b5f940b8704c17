"""The result of `Client.subscribe`: messages of one partition or several, as they arrive.

async with client.subscribe("orders", start="earliest") as subscription:
    async for message in subscription:
        …
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from types import TracebackType
from typing import Self

from bascule.client.connection.retry import TimeLimit
from bascule.client.consume.partition_reader import PartitionReader
from bascule.errors import ClientClosed
from bascule.kernels.client.messages import Message, MessageBatch

MakeReaders = Callable[[Callable[[], None], TimeLimit], Awaitable[list[PartitionReader]]]


class Subscription:
    """An async iterator of messages. Messages of one partition come in the order of their offsets; between partitions there is none.

    It lives through restarts of brokers and changes of leaders without a gap or a repeat. It ends when `stop` is reached, and
    with an error when nothing more can come: StreamDeleted, PartitionPaused, EndOfPartition, or Unavailable when the brokers
    stay away too long.
    """

    def __init__(self, make_readers: MakeReaders, timeout: float) -> None:
        self._make_readers = make_readers
        self._timeout = timeout
        self._readers: deque[PartitionReader] = deque()
        self._opened = False
        self._closed = False
        self._news = asyncio.Event()
        self._messages: Iterator[Message] = iter(())
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
            self._readers.extend(await self._make_readers(self._news.set, deadline))
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
        self._messages = iter(())
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
        while True:
            for message in self._messages:
                return message
            batch = await self.next_batch()
            if batch is None:
                raise StopAsyncIteration
            self._messages = iter(batch)

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
                return found
            if not self._readers:
                return None
            await self._news.wait()

    def _take(self) -> MessageBatch | None:
        """The next batch, from the partitions in turn. A partition that has ended with an error ends all of them."""
        for _ in range(len(self._readers)):
            reader = self._readers[0]
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


def _abandon(readers: list[PartitionReader]) -> None:
    for reader in readers:
        reader.abandon()
