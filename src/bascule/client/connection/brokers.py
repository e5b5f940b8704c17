"""The brokers of a cluster: one connection to each that is needed, the cluster's metadata, and the choice of the broker for a call.

Any broker answers most calls; the leader of a partition answers reads of it and questions about it. A connection is made when it is
needed, and kept. A broker that cannot be reached is skipped while another one can be.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from time import monotonic
from typing import Final

from bascule import limits
from bascule.client.connection import metadata, wire
from bascule.client.connection.failures import error_of, is_passing, unknown_outcome
from bascule.client.connection.metadata import Metadata, PartitionInfo, StreamInfo
from bascule.client.connection.retry import Backoff, TimeLimit
from bascule.client.connection.tokens import check_token, must_be_safe, verifies
from bascule.errors import (
    BasculeError,
    ClientClosed,
    DeadlineExceeded,
    InvalidOption,
    PartitionPaused,
    StreamNotFound,
    Unavailable,
)
from bascule.kernels.grpc.client import ClientStream
from bascule.net.grpc.channel import Channel, GrpcStatusError
from bascule.net.grpc.status import Status
from bascule.net.sockets import bracketed

Address = tuple[str, int]

NOT_LEADER_TRIES_MAX: Final = 5
"""Maximum number of times that metadata is fetched again because the broker it named does not lead."""

CONNECT_SECONDS_MAX: Final = 3.0
"""Timeout of one attempt to connect to one broker, unless it is the only one."""

HANG_SECONDS_MIN: Final = 1.0
"""Minimum time a broker has to answer before another one is asked."""

UNREACHABLE_SECONDS: Final = 1.0
"""How long a broker that could not be reached is skipped while there are others."""


def path_of(method: str) -> bytes:
    """The HTTP/2 path of a method of the API, or of another service: `bascule.Cluster/Status`."""
    return f"/{method}".encode() if "/" in method else f"/proto.API/{method}".encode()


class Brokers:
    def __init__(
        self, seeds: Iterable[Address], *, tls: ssl.SSLContext | None, timeout: float, token: str | None = None
    ) -> None:
        self.timeout = timeout
        self.known = Metadata({}, {}, {})
        self._token = None if token is None else check_token(token)
        self._seeds = list(seeds)
        if self._token is not None:
            for host, _port in self._seeds:
                must_be_safe(self._token, host, is_verified=verifies(tls))
        self._tls = tls
        self._channels: dict[Address, Channel] = {}
        self._connecting: dict[Address, asyncio.Task[Channel]] = {}
        self._asking: dict[str, asyncio.Task[Metadata]] = {}
        """Streams whose metadata is being fetched. All callers that need a stream's metadata meanwhile share one request."""
        self._failed_at: dict[Address, float] = {}
        self._leaving: list[Channel] = []
        """Connections to servers that shut down: they take no new calls, and end when their calls are answered."""
        self._current: Address | None = None
        self._closed = False

    # ── life ─────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_closed(self) -> bool:
        return self._closed

    async def connect(self) -> None:
        """Connect to one of the seeds. Raises Unavailable with the reason when none can be reached."""
        deadline = TimeLimit.after(self.timeout)
        problem = ""
        for seed in self._seeds:
            try:
                await self.channel_to(seed, deadline)
                await self.refresh(deadline=deadline)
            except Unavailable as error:
                problem = error.message
            else:
                return
        names = ", ".join(map(show, self._seeds))
        raise Unavailable(
            f"no broker can be reached at {names}: {problem}",
            hint="start one with `bascule server`, or correct the address",
        )

    async def close(self) -> None:
        self._closed = True
        for task in (*self._connecting.values(), *self._asking.values()):
            task.cancel()
        channels = [*self._channels.values(), *self._leaving]
        self._channels.clear()
        self._leaving.clear()
        await asyncio.gather(*(channel.close() for channel in channels), return_exceptions=True)

    def check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the client was closed")

    # ── connections ──────────────────────────────────────────────────────────────────────────────

    async def channel_to(self, address: Address, deadline: TimeLimit) -> Channel:
        """The connection to this broker, opened if there is none. Raises Unavailable."""
        self.check_open()
        channel = self._channels.get(address)
        if channel is not None and channel.is_connected:
            return channel
        task = self._connecting.get(address)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._connect(address), name=f"connect {show(address)}")
            self._connecting[address] = task
            task.add_done_callback(lambda done: self._connected(address, done))
        try:
            # Other callers may wait for the same connection: one of them must not cancel it.
            async with asyncio.timeout(deadline.left):
                return await asyncio.shield(task)
        except TimeoutError:
            raise Unavailable(f"{show(address)} did not answer in time") from None
        except asyncio.CancelledError:
            if task.cancelled():
                self.check_open()
            raise

    async def _connect(self, address: Address) -> Channel:
        previous = self._channels.pop(address, None)
        if previous is not None:
            self._leaving = [one for one in (*self._leaving, previous) if one.is_open]
        # A slow broker gets the whole timeout when there is no other one to try.
        seconds = CONNECT_SECONDS_MAX if len(self.addresses()) > 1 else max(CONNECT_SECONDS_MAX, self.timeout)
        channel = Channel(
            show(address), tls=self._tls, connect_timeout=seconds, metadata=self._credentials_for(address[0])
        )
        self._keep_watch(channel)
        try:
            await channel.connect()
        except GrpcStatusError as error:
            raise Unavailable(error.text) from None
        return channel

    def _credentials_for(self, host: str) -> Iterable[tuple[str, str]]:
        """Return the metadata of calls to this server. Other servers than the seeds are as the cluster's metadata names them."""
        if self._token is None:
            return ()
        try:
            must_be_safe(self._token, host, is_verified=verifies(self._tls))
        except InvalidOption as error:
            raise Unavailable(error.message, hint=error.hint) from None
        return (("authorization", f"Bearer {self._token}"),)

    def _keep_watch(self, channel: Channel) -> None:
        """Detect a broker that hangs within seconds by PINGs, if the brokers allow them that often."""
        if any(broker.answers_pings for broker in self.known.brokers.values()):
            channel.keep_watch(limits.CHANNEL_PING_SECONDS)

    def _connected(self, address: Address, task: asyncio.Task[Channel]) -> None:
        self._connecting.pop(address, None)
        if task.cancelled():
            return
        if task.exception() is not None:
            self._failed_at[address] = monotonic()
            return
        self._failed_at.pop(address, None)
        if not self._closed:
            self._channels[address] = task.result()

    def addresses(self) -> list[Address]:
        """The brokers to ask, best first: the one that answered last, then those that were not unreachable just now."""
        known = [broker.address for broker in self.known.brokers.values()]
        first = [] if self._current is None else [self._current]
        candidates = list(dict.fromkeys([*first, *known, *self._seeds]))
        recently = monotonic() - UNREACHABLE_SECONDS
        return sorted(candidates, key=lambda address: self._failed_at.get(address, 0.0) > recently)

    async def any_channel(self, deadline: TimeLimit) -> Channel:
        """A connection to any broker. Raises Unavailable when none can be reached."""
        problem = Unavailable("no broker is known")
        for address in self.addresses():
            try:
                channel = await self.channel_to(address, deadline)
            except Unavailable as error:
                problem = error
            else:
                self._current = address
                return channel
        raise problem

    async def broker_channel(self, broker: str, deadline: TimeLimit) -> Channel:
        """A connection to the broker of this id. Raises Unavailable."""
        info = self.known.brokers.get(broker)
        if info is None:
            raise Unavailable(f"broker `{broker}` is not known")
        if len(self.known.brokers) == 1:
            # The only broker is the one we are connected to, whatever address it advertises.
            return await self.any_channel(deadline)
        return await self.channel_to(info.address, deadline)

    # ── calls ────────────────────────────────────────────────────────────────────────────────────

    async def call(
        self, method: str, request: bytes, *, timeout: float | None = None, once: bool = False, changes: bool = False
    ) -> bytes:
        """Call any broker, and retry until it succeeds or the timeout passes.

        With `once` a request that may have been carried out is not repeated: OutcomeUnknown is raised instead. With `changes` it is
        repeated, and OutcomeUnknown is raised if an attempt may have been carried out and none was answered.
        """
        self.check_open()
        deadline = TimeLimit.after(self.timeout if timeout is None else timeout)
        backoff = Backoff()
        in_doubt = False
        while True:
            try:
                channel = await self.any_channel(deadline)
                return await self.ask(channel, method, request, deadline if once else self._share(deadline))
            except GrpcStatusError as error:
                maybe_done = error.status in (Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED) and not error.unprocessed
                if once and maybe_done:
                    raise unknown_outcome(f"{method} was sent", error.text) from None
                in_doubt = in_doubt or (changes and maybe_done)
                hangs = error.status == Status.DEADLINE_EXCEEDED and (in_doubt or not deadline.has_passed)
                if not is_passing(error.status, error.text) and not hangs:
                    raise error_of(error.status, error.text) from None
                problem: Exception = error_of(error.status, error.text)
                if self._current is not None:
                    self._failed_at[self._current] = monotonic()
                self._current = None
            except Unavailable as error:
                problem = error
            if not await backoff.wait(deadline):
                if in_doubt:
                    raise unknown_outcome(f"{method} was sent", str(problem)) from None
                raise problem from None
            self.check_open()

    def _share(self, deadline: TimeLimit) -> TimeLimit:
        """Half of the time that is left when there are other brokers: this one may hang."""
        if len(self.known.brokers) < 2:
            return deadline
        return TimeLimit.after(min(deadline.left, max(HANG_SECONDS_MIN, deadline.left / 2)))

    async def ask(self, channel: Channel, method: str, request: bytes, deadline: TimeLimit) -> bytes:
        """One call, once. Raises GrpcStatusError."""
        return await channel.call(path_of(method), request, timeout=deadline.left)

    async def call_leader(
        self, method: str, request: bytes, stream: str, partition: int, *, timeout: float | None = None
    ) -> bytes:
        """Call a partition's leader; metadata is fetched again when the known leader does not lead any more."""
        deadline = TimeLimit.after(self.timeout if timeout is None else timeout)
        backoff = Backoff()
        refusals = 0
        while True:
            try:
                channel = await self.leader_channel(stream, partition, deadline)
                return await self.ask(channel, method, request, deadline)
            except GrpcStatusError as error:
                refusals += error.status == Status.FAILED_PRECONDITION
                passing = is_passing(error.status, error.text) or error.status == Status.FAILED_PRECONDITION
                problem: Exception = error_of(error.status, error.text)
                if not passing or refusals > NOT_LEADER_TRIES_MAX:
                    raise problem from None
                if refusals and (await self.partition(stream, partition, deadline)).paused:
                    raise paused(stream, partition) from None
            except StreamNotFound:
                raise
            except Unavailable as error:
                problem = error
            self.forget(stream)
            if not await backoff.wait(deadline):
                raise problem from None

    # ── metadata ─────────────────────────────────────────────────────────────────────────────────

    async def refresh(
        self,
        streams: Iterable[str] | None = (),
        groups: Iterable[str] = (),
        *,
        deadline: TimeLimit | None = None,
        settings: bool = False,
        members: bool = False,
    ) -> Metadata:
        """Fetch metadata. `streams` None means all streams; an empty list fetches only the brokers. `members`: of the groups; of all
        groups if none is named."""
        timeout = self.timeout if deadline is None else deadline.left
        # On the wire an empty list means all streams: ask for a name that cannot exist instead.
        names = [] if streams is None else list(streams) or [" "]
        request = wire.encode(
            "FetchMetadataRequest", streams=names, groups=list(groups), includeSettings=settings, includeMembers=members
        )
        found = metadata.parse(await self.call("FetchMetadata", request, timeout=timeout))
        kept = {name: info for name, info in self.known.streams.items() if streams is not None and name not in names}
        self.known = Metadata(found.brokers or self.known.brokers, {**kept, **found.streams}, found.groups)
        for channel in self._channels.values():
            self._keep_watch(channel)
        return found

    def forget(self, stream: str) -> None:
        """Drop the stream's metadata, also the answer in flight: it may be as old as what was known."""
        self.known.streams.pop(stream, None)
        self._asking.pop(stream, None)

    async def stream(self, name: str, deadline: TimeLimit) -> StreamInfo:
        found = self.known.streams.get(name)
        if found is None:
            found = (await self._ask(name, deadline)).streams.get(name)
        if found is None:
            raise StreamNotFound(
                f"there is no stream `{name}`", hint="create it first: `await client.create_stream(…)`"
            )
        return found

    async def check_expected_offset(self, name: str, offset: int, deadline: TimeLimit) -> None:
        """Raise InvalidOption if the stream has no concurrency control: its brokers would ignore the expected offset."""
        found = self.known.streams.get(name)
        if found is None or found.settings is None or not found.settings.optimistic_concurrency_control:
            found = (await self.refresh([name], deadline=deadline, settings=True)).streams.get(name)
        if found is not None and found.settings is not None and not found.settings.optimistic_concurrency_control:
            raise InvalidOption(
                f"`expected_offset` is {offset}, and stream `{name}` has no optimistic concurrency control: any offset would do",
                hint="leave it out, or create the stream with optimistic_concurrency_control=True",
            )

    async def _ask(self, name: str, deadline: TimeLimit) -> Metadata:
        """Fetch a stream's metadata. Callers at the same time, such as all publishers after a failover, share one request."""
        self.check_open()
        task, seconds = self._asking.get(name), deadline.left
        if is_first := task is None:
            answer = self.refresh([name], deadline=TimeLimit.after(max(self.timeout, deadline.left)))
            task = self._asking[name] = asyncio.get_running_loop().create_task(answer, name=f"ask about {name}")
            task.add_done_callback(lambda done: self._asked(name, done))
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(task)
        except DeadlineExceeded:
            if is_first or deadline.has_passed:
                raise
        except TimeoutError:
            raise timed_out("FetchMetadata", seconds) from None
        except asyncio.CancelledError:
            if task.cancelled():
                self.check_open()
            raise
        return await self._ask(name, deadline)  # the caller that made the request had less time

    def _asked(self, name: str, task: asyncio.Task[Metadata]) -> None:
        if self._asking.get(name) is task:
            del self._asking[name]
        if not task.cancelled():
            task.exception()  # marks it as retrieved: the callers that waited have it

    async def partition(self, stream: str, number: int, deadline: TimeLimit) -> PartitionInfo:
        info = await self.stream(stream, deadline)
        found = info.partitions.get(number)
        if found is None:
            last = len(info.partitions) - 1
            raise StreamNotFound(f"stream `{stream}` has no partition {number}", hint=f"its partitions are 0 to {last}")
        return found

    async def leader(self, stream: str, partition: int, deadline: TimeLimit) -> str:
        """The partition's leader; empty when it has none, or metadata cannot be fetched."""
        try:
            return (await self.partition(stream, partition, deadline)).leader
        except BasculeError:
            return ""

    async def leader_channel(self, stream: str, partition: int, deadline: TimeLimit) -> Channel:
        info = await self.partition(stream, partition, deadline)
        if not info.leader:
            raise Unavailable(f"partition {partition} of stream `{stream}` has no leader now")
        return await self.broker_channel(info.leader, deadline)


def paused(stream: str, partition: int) -> PartitionPaused:
    return PartitionPaused(
        f"partition {partition} of stream `{stream}` is paused",
        hint="publish to it, or subscribe with resume=True, to resume it",
    )


def start(channel: Channel, stream: ClientStream, method: str) -> None:
    """Start a streaming call. Raises Unavailable."""
    try:
        channel.start(stream, path_of(method))
    except GrpcStatusError as error:
        raise Unavailable(error.text) from None


def show(address: Address) -> str:
    host, port = address
    return f"{bracketed(host)}:{port}"


def timed_out(what: str, seconds: float) -> DeadlineExceeded:
    return DeadlineExceeded(f"{what} took longer than {seconds:g} s")
