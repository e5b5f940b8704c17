"""The client without asyncio: the same methods, each of which returns when it is done.

    with bascule.blocking.connect("127.0.0.1:9292") as client:
        client.publish("orders", b"lamp")
        for message in client.subscribe("orders", start="earliest"):
            print(message.value)

A thread of its own runs the asyncio client; any thread may call. Subscriptions and consumers are iterators, and return batches too.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import ssl
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from bascule.client.admin.cluster import ClusterAdmin
from bascule.client.admin.streams import StreamAdmin
from bascule.client.client import Client
from bascule.client.client import connect as connect_async
from bascule.client.connection.options import AckPolicy, Bytes, TlsOptions
from bascule.client.consume.consumer import Assignment, Consumer
from bascule.client.consume.group import Place
from bascule.client.consume.subscription import Subscription
from bascule.client.publish.calls import PublishArguments, SubjectArguments
from bascule.client.publish.publisher import BasePublisher, Sendable
from bascule.errors import ClientClosed
from bascule.kernels.client.messages import Message, MessageBatch
from bascule.kernels.window.window import Ack

_P = ParamSpec("_P")
_T = TypeVar("_T")
_M = TypeVar("_M")
_A_co = TypeVar("_A_co", covariant=True)


class _Portal:
    """A loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="bascule client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run it on the loop and wait for the result. Ctrl-C cancels it."""
        if self.loop.is_closed() or not self._thread.is_alive():
            work.close()
            raise ClientClosed("the client was closed")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise ClientClosed("the client was closed") from None
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[[], _T]) -> _T:
        """Call a function on the loop's thread."""

        async def act() -> _T:
            return function()

        return self.run(act())

    def stop(self) -> None:
        if not self.loop.is_closed():
            self.run(_cancel_others())
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class _Face(Generic[_A_co]):
    """The methods of an object of the asyncio client, for threads."""

    def __init__(self, portal: _Portal, part: _A_co) -> None:
        self._portal = portal
        self._part = part


class _Part(_Face[_A_co], ABC):
    """A part of the asyncio client for threads. A `with` block closes it at its end."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()


def _blocking(
    method: Callable[Concatenate[_M, _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate[_Face[_M], _P], _T]:
    """The method of a part, run on the loop."""

    @functools.wraps(method)
    def call(self: _Face[_M], /, *arguments: _P.args, **options: _P.kwargs) -> _T:
        return self._portal.run(method(self._part, *arguments, **options))

    return call


def _making(
    method: Callable[Concatenate[_M, _P], Any], kind: Callable[[_Portal, Any], _T]
) -> Callable[Concatenate[_Face[_M], _P], _T]:
    """The method of a part, called on the loop's thread; its result as a part for threads."""

    @functools.wraps(method)
    def make(self: _Face[_M], /, *arguments: _P.args, **options: _P.kwargs) -> _T:
        return kind(self._portal, self._portal.call(lambda: method(self._part, *arguments, **options)))

    return make


class BlockingSubscription(_Part[Subscription]):
    """An iterator of messages; see `bascule.client.consume.subscription.Subscription`."""

    def open(self) -> Self:
        """Return when the brokers have confirmed: from then on no message is missed."""
        self._portal.run(self._part.open())
        return self

    def __enter__(self) -> Self:
        return self.open()

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        message = self._part.ready()
        while message is None:
            if not self._portal.run(self._part.receive()):
                raise StopIteration
            message = self._part.ready()
        return message

    def next(self, timeout: float) -> Message | None:
        """The next message, or None when none comes in time. StopIteration at the end."""
        message = self._part.ready()
        if message is None:
            self.open()
            try:
                if not self._portal.run(_within(self._part.receive(), timeout)):
                    raise StopIteration
            except TimeoutError:
                return None
            message = self._part.ready()
        return message

    next_batch = _blocking(Subscription.next_batch)
    close = _blocking(Subscription.close)

    def poll(self, timeout: float) -> Message | None:
        """The next message; None if none arrives within `timeout` seconds, and at the end of the subscription."""
        try:
            return self.next(timeout)
        except StopIteration:
            return None

    def pause(self, *partitions: int) -> None:
        """Deliver no more messages of these partitions, or of all without any, until `resume`."""
        self._portal.call(lambda: self._part.pause(*partitions))

    def resume(self, *partitions: int) -> None:
        """Deliver messages of these partitions, or of all without any, again."""
        self._portal.call(lambda: self._part.resume(*partitions))

    @property
    def paused(self) -> list[int]:
        """The partitions of which no messages are delivered."""
        return self._part.paused

    seek = _blocking(Subscription.seek)

    def batches(self) -> Iterator[MessageBatch]:
        while (batch := self.next_batch()) is not None:
            yield batch


async def _within(work: Coroutine[Any, Any, _T], seconds: float) -> _T:
    async with asyncio.timeout(seconds):
        return await work


class BlockingConsumer(_Part[Consumer]):
    """A member of a consumer group, as an iterator of messages; see `bascule.client.consume.consumer.Consumer`."""

    def open(self) -> Self:
        self._portal.run(self._part.open())
        return self

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._portal.run(self._part.close(processed=kind is None))

    def __iter__(self) -> Iterator[Message]:
        return self

    __next__ = _blocking(Consumer.__anext__)
    poll = _blocking(Consumer.poll)
    next_batch = _blocking(Consumer.next_batch)
    checkpoint = _blocking(Consumer.checkpoint)
    seek = _blocking(Consumer.seek)

    def pause(self, *assignments: Place) -> None:
        """Deliver no more messages of these partitions, or of all without any, until `resume`."""
        self._portal.call(lambda: self._part.pause(*assignments))

    def resume(self, *assignments: Place) -> None:
        """Deliver messages of these partitions, or of all without any, again."""
        self._portal.call(lambda: self._part.resume(*assignments))

    @property
    def paused(self) -> list[Assignment]:
        """The partitions of which no messages are delivered."""
        return self._portal.call(lambda: self._part.paused)

    def close(self) -> None:
        self._portal.run(self._part.close())

    def batches(self) -> Iterator[MessageBatch]:
        while True:
            yield self.next_batch()

    @property
    def assignments(self) -> list[Assignment]:
        return self._portal.call(lambda: self._part.assignments)


class BlockingPublisher(_Part[BasePublisher]):
    """A publisher of many messages; see `bascule.client.publish.publisher`. `send` gives a future of `concurrent.futures`."""

    flush = _blocking(BasePublisher.flush)
    close = _blocking(BasePublisher.close)

    def send(
        self,
        value: Bytes | None,
        *,
        key: Bytes | None = None,
        headers: Mapping[str, Bytes] | None = None,
        partition: int | None = None,
        expected_offset: int | None = None,
    ) -> concurrent.futures.Future[Ack]:
        """Send a message as soon as the window has room; `.result()` waits for its ack."""
        found: concurrent.futures.Future[Ack] = concurrent.futures.Future()

        async def send() -> None:
            future = await self._part.send(
                value, key=key, headers=headers, partition=partition, expected_offset=expected_offset
            )
            future.add_done_callback(functools.partial(_hand_over, found))

        self._portal.run(send())
        return found

    def send_all(self, messages: Iterable[Sendable]) -> None:
        """Send values, or pairs of key and value: faster than one by one. `flush` raises the first failure."""
        self._portal.run(self._part.send_all(messages))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal.run(self._part.__aexit__(kind, error, trace))


def _hand_over(found: concurrent.futures.Future[Ack], future: asyncio.Future[Ack]) -> None:
    if future.cancelled():
        found.cancel()
    elif (error := future.exception()) is not None:
        found.set_exception(error)
    else:
        found.set_result(future.result())


class BlockingClient(_Part[Client]):
    """`bascule.Client` without asyncio."""

    create_stream = _blocking(Client.create_stream)
    delete_stream = _blocking(Client.delete_stream)
    pause_stream = _blocking(Client.pause_stream)
    set_readonly = _blocking(Client.set_readonly)
    fetch_metadata = _blocking(Client.fetch_metadata)
    fetch_partition_metadata = _blocking(Client.fetch_partition_metadata)
    set_cursor = _blocking(Client.set_cursor)
    fetch_cursor = _blocking(Client.fetch_cursor)
    delete_cursor = _blocking(Client.delete_cursor)
    if TYPE_CHECKING:

        @overload
        def publish(
            self,
            stream: str,
            value: Bytes | None,
            *,
            ack: Literal["leader", "all"] = "leader",
            **more: Unpack[PublishArguments],
        ) -> Ack: ...
        @overload
        def publish(
            self, stream: str, value: Bytes | None, *, ack: Literal["none"], **more: Unpack[PublishArguments]
        ) -> None: ...
        @overload
        def publish(
            self, stream: str, value: Bytes | None, *, ack: AckPolicy, **more: Unpack[PublishArguments]
        ) -> Ack | None: ...
        def publish(self, stream: str, value: Bytes | None, **more: Any) -> Ack | None: ...

        @overload
        def publish_to_subject(
            self,
            subject: str,
            value: Bytes | None,
            *,
            ack: Literal["leader", "all"] = "leader",
            **more: Unpack[SubjectArguments],
        ) -> Ack: ...
        @overload
        def publish_to_subject(
            self, subject: str, value: Bytes | None, *, ack: Literal["none"], **more: Unpack[SubjectArguments]
        ) -> None: ...
        @overload
        def publish_to_subject(
            self, subject: str, value: Bytes | None, *, ack: AckPolicy, **more: Unpack[SubjectArguments]
        ) -> Ack | None: ...
        def publish_to_subject(self, subject: str, value: Bytes | None, **more: Any) -> Ack | None: ...
    else:
        publish = _blocking(Client.publish)
        publish_to_subject = _blocking(Client.publish_to_subject)
    publish_many = _blocking(Client.publish_many)
    publisher = _making(Client.publisher, BlockingPublisher)
    nats_publisher = _making(Client.nats_publisher, BlockingPublisher)
    subscribe = _making(Client.subscribe, BlockingSubscription)
    consumer = _making(Client.consumer, BlockingConsumer)

    @property
    def is_closed(self) -> bool:
        return self._part.is_closed

    def close(self) -> None:
        if not self._part.is_closed:
            self._portal.run(self._part.close())
            self._portal.stop()


class BlockingClusterAdmin(_Face[ClusterAdmin]):
    """`bascule.ClusterAdmin` without asyncio."""

    def __init__(self, client: BlockingClient) -> None:
        super().__init__(client._portal, ClusterAdmin(client._part))

    status = _blocking(ClusterAdmin.status)
    counts = _blocking(ClusterAdmin.counts)
    drain = _blocking(ClusterAdmin.drain)
    add_servers = _blocking(ClusterAdmin.add_servers)
    remove_server = _blocking(ClusterAdmin.remove_server)
    rebalance = _blocking(ClusterAdmin.rebalance)
    reassign = _blocking(ClusterAdmin.reassign)
    cancel = _blocking(ClusterAdmin.cancel)
    elect_unclean = _blocking(ClusterAdmin.elect_unclean)
    set_throttle = _blocking(ClusterAdmin.set_throttle)
    keys = _blocking(ClusterAdmin.keys)
    load_keys = _blocking(ClusterAdmin.load_keys)
    switch_keys = _blocking(ClusterAdmin.switch_keys)
    policies = _blocking(ClusterAdmin.policies)
    grant = _blocking(ClusterAdmin.grant)
    revoke = _blocking(ClusterAdmin.revoke)


class BlockingStreamAdmin(_Face[StreamAdmin]):
    """`bascule.StreamAdmin` without asyncio."""

    def __init__(self, client: BlockingClient) -> None:
        super().__init__(client._portal, StreamAdmin(client._part))

    describe = _blocking(StreamAdmin.describe)
    set = _blocking(StreamAdmin.set)


def connect(
    servers: str | Iterable[str] = "127.0.0.1:9292",
    *,
    tls: bool | ssl.SSLContext | TlsOptions | None = None,
    timeout: float = 5.0,
    patience: float = 60.0,
    token: str | None = None,
    nats: str | Iterable[str] | None = None,
) -> BlockingClient:
    """Connect to a cluster; the options are those of `bascule.connect`."""
    portal = _Portal()

    async def make() -> Client:
        return await connect_async(servers, tls=tls, timeout=timeout, patience=patience, token=token, nats=nats)

    try:
        return BlockingClient(portal, portal.run(make()))
    except BaseException:
        portal.stop()
        raise
