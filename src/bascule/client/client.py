"""The client itself: `await bascule.connect(…)` gives one."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AsyncExitStack
from importlib import import_module
from types import TracebackType
from typing import Any, Final, Protocol, Self
from weakref import WeakSet

from bascule.client.connection import options
from bascule.client.connection.brokers import Brokers
from bascule.client.connection.options import AckPolicy, Bytes, Duration, TlsOptions
from bascule.client.connection.retry import TimeLimit
from bascule.client.consume import positions
from bascule.client.consume.consumer import Callback, Consumer
from bascule.client.consume.cursors import CursorMethods
from bascule.client.consume.partition_reader import PartitionReader, ReaderOptions
from bascule.client.consume.positions import Position, Range, Start, Stop
from bascule.client.consume.subscription import MessageFilter, ReaderFactory, Subscription
from bascule.client.publish.calls import WINDOW_DEFAULT, PublishMethods
from bascule.client.publish.engine import Engine
from bascule.client.publish.partitioner import Partitioner
from bascule.client.publish.publisher import NatsPublisher, OnError
from bascule.client.publish.sessions import PublishSessions
from bascule.client.streams import StreamMethods
from bascule.errors import BasculeError
from bascule.net.nats.auth import Login


class _Closable(Protocol):
    async def close(self) -> None: ...


CLOSE_SECONDS: Final = 1.0
"""How long closing waits until brokers have received the messages without acks."""


class Client(StreamMethods, CursorMethods, PublishMethods):
    """A connection to a cluster, used on the event loop it was made on.

    `bascule.connect` makes one. It keeps one connection to each broker it needs, finds leaders by itself, and survives
    restarts of brokers. Each call ends within its `timeout`, the client's own (5 s) unless given, with an answer or an error.
    """

    def __init__(
        self,
        servers: str | Iterable[str],
        *,
        tls: bool | ssl.SSLContext | TlsOptions | None = None,
        timeout: float = 5.0,
        patience: float = 60.0,
        token: str | None = None,
        nats: str | Iterable[str] | None = None,
    ) -> None:
        servers = servers if isinstance(servers, str) else list(servers)
        self._reach = servers, tls, token, timeout
        self._brokers = Brokers(
            options.addresses(servers),
            tls=options.tls_context(tls),
            timeout=options.seconds("timeout", timeout),
            token=token,
        )
        self._patience = options.seconds("patience", patience)
        self._nats = nats
        self._round_robins = {}
        # Weak: a part that the application has dropped need not be closed.
        self._parts: WeakSet[_Closable] = WeakSet()
        self._sessions = PublishSessions(self._brokers, WINDOW_DEFAULT, _ignore)
        self._engine = Engine(self._brokers, self._sessions, _ignore)
        self._keep: Callable[[Any], None] = self._parts.add

    # ── life ─────────────────────────────────────────────────────────────────────────────────────

    async def connect(self) -> Self:
        """Connect to a broker. Raises Unavailable with the addresses and the reason."""
        try:
            await self._brokers.connect()
        except BaseException:
            await self._brokers.close()
            raise
        return self

    async def close(self) -> None:
        """Close subscriptions, publishers and connections. Pending calls raise ClientClosed, publishes without an ack
        OutcomeUnknown."""
        if self._brokers.is_closed:
            return
        parts = list(self._parts)
        await asyncio.gather(*(part.close() for part in parts), return_exceptions=True)
        # Messages without acks may still be in flight.
        await asyncio.gather(*(session.finish(CLOSE_SECONDS) for session in self._sessions.sessions))
        await self._engine.close()
        await self._brokers.close()

    @property
    def is_closed(self) -> bool:
        return self._brokers.is_closed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()

    # ── subscribing ──────────────────────────────────────────────────────────────────────────────

    def subscribe(
        self,
        stream: str,
        *,
        partition: int | Iterable[int] | str = "all",
        start: Start | None = None,
        stop: Stop = None,
        reverse: bool = False,
        key: Bytes | None = None,
        headers: Mapping[str, Bytes | None] | None = None,
        resume: bool = False,
        read_replica: bool = False,
        timeout: float | None = None,
        history: str | os.PathLike[str] | None = None,
        storage_options: Mapping[str, str] | None = None,
        on_data_loss: str = "fail",
    ) -> Subscription:
        """Read all partitions, one, or several.

        `start` is `"earliest"` (the default), `"new"`, `"latest"` (the last message, then new ones), an offset, or a datetime. `stop`
        is None, `"latest"` (the newest message at the time of the call), an offset, or a datetime in the past; both ends are included.
        `reverse` reads backward, by default from `"latest"`, and ends at the oldest message. `key` and `headers` select messages with
        this key and all these headers; a value of None means a header of any content. The client selects them, so all are received.
        `resume` resumes a paused partition. `read_replica` reads from any in-sync replica.

        `history` is an archive of the stream, which `bascule pipeline archive` writes: its messages come first, then those of the log
        from the next offset on. `storage_options` reach its object store. `on_data_loss` is what happens when neither has a message:
        `"fail"` or `"skip"`. Needs pyarrow, and Arrow Flight on the brokers.

        Iterate over it, or over its `batches()`. `await client.subscribe(…)` returns when the brokers have confirmed.
        """
        self._brokers.check_open()
        name = options.stream_name(stream)
        numbers = None if partition == "all" else _numbers(partition)
        choices = ReaderOptions(
            options.flag("resume", resume), options.flag("read_replica", read_replica), self._patience
        )
        factory: ReaderFactory = StreamReaders(self._brokers, name, numbers, start, stop, choices, reverse=reverse)
        if history is not None:
            factory = self._with_history(factory, name, history, storage_options, on_data_loss)
        subscription = Subscription(factory, self._seconds(timeout), _filter(key, headers))
        self._parts.add(subscription)
        return subscription

    def _with_history(
        self,
        log: ReaderFactory,
        stream: str,
        history: str | os.PathLike[str],
        storage_options: Mapping[str, str] | None,
        on_data_loss: str,
    ) -> ReaderFactory:
        # By name: the archive's own readers are built on this package.
        past: Any = import_module("bascule.history.past")
        servers, tls, token, timeout = self._reach
        archive = past.ArchiveChoice(
            path=history,
            storage=storage_options,
            on_data_loss=on_data_loss,
            servers=servers,
            tls=tls,
            token=token,
            timeout=timeout,
        )
        found: ReaderFactory = import_module("bascule.history.readers").HistoryReaders(log, stream, archive)
        return found

    # ── consumer groups ──────────────────────────────────────────────────────────────────────────

    def consumer(
        self,
        group: str,
        streams: str | Iterable[str],
        *,
        consumer_id: str | None = None,
        start: Start = "earliest",
        auto_checkpoint: Duration | None = 5.0,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        handover_timeout: float = 5.0,
    ) -> Consumer:
        """A member of a consumer group: the partitions of `streams` are divided among the group's members.

        A partition is read from the message after the group's cursor, or from `start` without a cursor. The cursor is written every
        `auto_checkpoint` seconds and when a partition is released; with None only by `checkpoint`. `on_assigned` and `on_revoked` are
        called, and awaited if they are coroutines, with partitions before their first message and after their last. A partition's new
        reader waits `handover_timeout` seconds at most for the previous one to finish the message in hand.
        """
        self._brokers.check_open()
        if not isinstance(group, str) or not group:
            raise options.wrong("group", group, "a name that is not empty")
        names = [streams] if isinstance(streams, str) else list(streams)
        if not names:
            raise options.wrong("streams", names, "one stream or more")
        consumer = Consumer(
            self._brokers,
            group,
            [options.stream_name(name, "streams") for name in names],
            consumer_id=consumer_id,
            wanted=positions.parse(start, None, reverse=False, now_ns=time.time_ns()),
            auto_checkpoint=None if auto_checkpoint is None else options.seconds("auto_checkpoint", auto_checkpoint),
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            handover_timeout=options.seconds("handover_timeout", handover_timeout, zero=True),
            patience=self._patience,
        )
        self._parts.add(consumer)
        return consumer

    # ── straight to NATS ─────────────────────────────────────────────────────────────────────────

    def nats_publisher(
        self,
        stream: str,
        *,
        nats: str | Iterable[str] | None = None,
        login: Login | None = None,
        partition: int | None = None,
        partitioner: str | Partitioner | None = None,
        ack: AckPolicy = "leader",
        window: int = WINDOW_DEFAULT,
        timeout: float | None = None,
        on_error: OnError | None = None,
    ) -> NatsPublisher:
        """A publisher straight to NATS, with the methods of `publisher`. `nats` are the servers, unless `connect` was given
        them."""
        servers = self._nats if nats is None else nats
        if not servers:
            raise options.wrong("nats", servers, "the address of a NATS server, such as `nats://127.0.0.1:4222`")
        publisher = NatsPublisher(
            self._brokers,
            stream,
            [servers] if isinstance(servers, str) else list(servers),
            login or Login(),
            ack=ack,
            partition=partition,
            partitioner_choice=partitioner,
            window=window,
            timeout=self._seconds(timeout),
            on_error=on_error,
        )
        self._keep(publisher)
        return publisher


class StreamReaders:
    """Makes the readers of a subscription to a stream. `numbers` None means all partitions."""

    def __init__(
        self,
        brokers: Brokers,
        stream: str,
        numbers: list[int] | None,
        start: Start | None,
        stop: Stop,
        choices: ReaderOptions,
        *,
        reverse: bool,
    ) -> None:
        self._brokers = brokers
        self._stream = stream
        self._numbers = numbers
        self._stop = stop
        self._choices = choices
        self._reverse = reverse
        options.flag("reverse", reverse)
        self._wanted = self._range(("latest" if reverse else "earliest") if start is None else start)

    def _range(self, start: Start) -> Range:
        return positions.parse(start, self._stop, reverse=self._reverse, now_ns=time.time_ns())

    async def partitions(self, deadline: TimeLimit) -> list[int]:
        if self._numbers is not None:
            return self._numbers
        return sorted((await self._brokers.stream(self._stream, deadline)).partitions)

    def reader(self, partition: int, wake: Callable[[], None], start: Start | None = None) -> PartitionReader:
        return PartitionReader(self._brokers, self._stream, partition, self.position(start), self._choices, wake)

    def position(self, start: Start | None = None) -> Position:
        """Where a reader begins. Raises InvalidOption."""
        return Position(self._wanted if start is None else self._range(start))


def _filter(key: Bytes | None, headers: Mapping[str, Bytes | None] | None) -> MessageFilter | None:
    if key is None and not headers:
        return None
    if headers and (not isinstance(headers, Mapping) or any(not isinstance(name, str) for name in headers)):
        raise options.wrong("headers", headers, "a mapping from names to bytes, text or None")
    wanted = {
        name: None if value is None else options.payload(f"headers[{name!r}]", value)
        for name, value in (headers or {}).items()
    }
    return MessageFilter(None if key is None else options.payload("key", key), wanted or None)


def _ignore(_error: BasculeError) -> None:
    """Failures are raised by the calls themselves."""


def _numbers(partition: Any) -> list[int]:
    if isinstance(partition, str | bytes | bool):
        raise options.wrong("partition", partition, "a number, several numbers, or 'all'")
    numbers = options.partition_numbers("partition", partition)
    if not numbers:
        raise options.wrong("partition", partition, "a number, several numbers, or 'all'")
    return numbers


class Connecting:
    """The result of `connect`: await it for a client, or use it with `async with`."""

    def __init__(self, make: Callable[[], Client]) -> None:
        self._make = make
        self._exit = AsyncExitStack()

    async def _connect(self) -> Client:
        client = self._make()
        self._exit.push_async_callback(client.close)
        return await client.connect()

    def __await__(self) -> Generator[Any, None, Client]:
        return self._connect().__await__()

    async def __aenter__(self) -> Client:
        return await self._connect()

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self._exit.aclose()


def connect(
    servers: str | Iterable[str] = "127.0.0.1:9292",
    *,
    tls: bool | ssl.SSLContext | TlsOptions | None = None,
    timeout: float = 5.0,
    patience: float = 60.0,
    token: str | None = None,
    nats: str | Iterable[str] | None = None,
) -> Connecting:
    """Connect to a cluster: `client = await connect(…)`, or `async with connect(…) as client:`.

    `servers` is one address or several of the cluster's brokers; the client finds the others by itself. `tls` is True for the
    system's authorities, `TlsOptions(ca=…, cert=…, key=…)` or an SSLContext. `timeout` is what each call may take unless it says
    otherwise, `patience` how long a subscription waits for brokers to come back. `token` is sent with every call as
    `authorization: Bearer …`, and only to brokers whose certificate is verified; a `LoopbackToken` also without TLS on this machine.
    `nats` are the servers for `nats_publisher`. Raises Unavailable when no broker can be reached.
    """

    def make() -> Client:
        return Client(servers, tls=tls, timeout=timeout, patience=patience, token=token, nats=nats)

    return Connecting(make)
