"""The publish calls of a client: one message and its ack, many at once, or a publisher that stays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from time import monotonic
from typing import Any, Literal, TypedDict, Unpack, overload

from bascule.client.connection import options
from bascule.client.connection.core import ClientCore
from bascule.client.connection.options import ACK_NONE, AckPolicy, Bytes
from bascule.client.connection.retry import TimeLimit
from bascule.client.publish.engine import Engine
from bascule.client.publish.lane import Lane
from bascule.client.publish.partitioner import KEYED, Partitioner, choose, partitioner
from bascule.client.publish.publisher import BasePublisher, BrokerPublisher, IdempotentPublisher, OnError
from bascule.client.publish.resend_rule import ResendRule
from bascule.client.publish.rows import ColumnRows, RowBatch
from bascule.client.publish.unary import LARGE_BYTES, is_large
from bascule.errors import BasculeError
from bascule.kernels.window.headers import encode_publish_headers
from bascule.kernels.window.message import PublishMessage
from bascule.kernels.window.window import (
    Ack,
    PublishColumns,
    PublishTarget,
    encode_publish_request,
    encode_publish_to_subject,
)

WINDOW_DEFAULT = 8192
"""Messages of one publisher that wait for their ack."""


class SubjectArguments(TypedDict, total=False):
    """Arguments of `publish_to_subject` that do not change the type of its result."""

    key: Bytes | None
    headers: Mapping[str, Bytes] | None
    correlation_id: str
    timeout: float | None


class PublishArguments(SubjectArguments, total=False):
    """Arguments of `publish` that do not change the type of its result."""

    partition: int | None
    partitioner: str | Partitioner | None
    expected_offset: int | None
    resend: bool | None


@dataclass(slots=True)
class Published:
    """The outcome of many messages: for each its offset, or -1 and an error."""

    offsets: list[int]
    errors: dict[int, BasculeError]


class PublishMethods(ClientCore):
    _engine: Engine
    _patience: float
    _keep: Callable[[Any], None]

    @overload
    async def publish(
        self,
        stream: str,
        value: Bytes | None,
        *,
        ack: Literal["leader", "all"] = "leader",
        **more: Unpack[PublishArguments],
    ) -> Ack: ...
    @overload
    async def publish(
        self, stream: str, value: Bytes | None, *, ack: Literal["none"], **more: Unpack[PublishArguments]
    ) -> None: ...
    @overload
    async def publish(
        self, stream: str, value: Bytes | None, *, ack: AckPolicy, **more: Unpack[PublishArguments]
    ) -> Ack | None: ...
    async def publish(
        self,
        stream: str,
        value: Bytes | None,
        *,
        key: Bytes | None = None,
        headers: Mapping[str, Bytes] | None = None,
        partition: int | None = None,
        partitioner: str | Partitioner | None = None,
        ack: AckPolicy = "leader",
        expected_offset: int | None = None,
        correlation_id: str = "",
        timeout: float | None = None,
        resend: bool | None = None,
    ) -> Ack | None:
        """Publish one message and wait until it is stored (`ack="leader"`), stored by all in-sync replicas (`"all"`), or only
        sent (`"none"`, which returns None). A `value` of None makes a tombstone, which deletes its key in a compacted stream;
        `b""` is a value.

        The partition is `partition`, or the partitioner's choice: `"key"` (the default: the hash of the key, or 0 without one),
        `"round-robin"`, or a function. A stream with optimistic concurrency control stores the message only at `expected_offset`, if
        one is given, and raises IncorrectOffset otherwise; any other stream raises InvalidOption.

        A message that is surely not stored is sent again by itself. One that may be, because its leader died, is sent again with
        `resend`, and may then be stored twice; by default with `ack="all"`, for which there is also more time: the client's
        `patience`, unless a `timeout` is given. Otherwise, and where an offset is expected, OutcomeUnknown is raised.
        """
        policy = options.ack_policy(ack)
        resends = options.resends(resend, policy) and expected_offset is None
        seconds = self._publish_seconds(timeout, resends=resends)
        body, extra = options.value_and_headers(value, headers)
        key_bytes = None if key is None else options.payload("key", key)
        expected = -1 if expected_offset is None else options.integer("expected_offset", expected_offset, 0)
        number = await self._choose(options.stream_name(stream), partition, partitioner, key_bytes, body, seconds)
        if expected >= 0:
            await self._brokers.check_expected_offset(stream, expected, TimeLimit.after(seconds))
        target = PublishTarget(stream, number, policy)
        call = None
        if correlation_id or policy == ACK_NONE:
            name = correlation_id.encode()
            request = encode_publish_request(
                target, body, key_bytes, extra, correlation_id=name, expected_offset=expected
            )
            call = ("Publish", request)
        is_alone = call is not None or is_large(body, key_bytes, extra)
        lane = Lane(self._engine, target, ResendRule(unknown=resends))
        future: asyncio.Future[Ack | None] = asyncio.get_running_loop().create_future()
        await lane.send(
            PublishMessage(lane, body, key_bytes, extra, expected, future, monotonic() + seconds, is_alone, call)
        )
        return await future

    def _publish_seconds(self, timeout: float | None, *, resends: bool) -> float:
        """A cluster needs time to elect another leader: a publish that may be sent again has the client's patience."""
        return self._patience if timeout is None and resends else self._seconds(timeout)

    @overload
    async def publish_to_subject(
        self,
        subject: str,
        value: Bytes | None,
        *,
        ack: Literal["leader", "all"] = "leader",
        **more: Unpack[SubjectArguments],
    ) -> Ack: ...
    @overload
    async def publish_to_subject(
        self, subject: str, value: Bytes | None, *, ack: Literal["none"], **more: Unpack[SubjectArguments]
    ) -> None: ...
    @overload
    async def publish_to_subject(
        self, subject: str, value: Bytes | None, *, ack: AckPolicy, **more: Unpack[SubjectArguments]
    ) -> Ack | None: ...
    async def publish_to_subject(
        self,
        subject: str,
        value: Bytes | None,
        *,
        key: Bytes | None = None,
        headers: Mapping[str, Bytes] | None = None,
        ack: AckPolicy = "leader",
        correlation_id: str = "",
        timeout: float | None = None,
    ) -> Ack | None:
        """Publish to a NATS subject through a broker, whatever streams it has. The ack is that of the first stream that stored
        the message; without such a stream OutcomeUnknown is raised."""
        policy = options.ack_policy(ack)
        body, extra = options.value_and_headers(value, headers)
        request = encode_publish_to_subject(
            options.subject_name(subject),
            body,
            None if key is None else options.payload("key", key),
            extra,
            correlation_id=correlation_id.encode(),
            ack_policy=policy,
        )
        deadline = monotonic() + self._seconds(timeout)
        lane = Lane(self._engine, PublishTarget("", 0, policy), ResendRule())  # of its own: the partitions are unknown
        message = call_message(lane, "PublishToSubject", request, deadline)
        await lane.send(message)
        found: Ack | None = await message.future
        return found

    async def publish_many(
        self,
        stream: str,
        values: Sequence[Bytes | None],
        keys: Sequence[Bytes | None] | None = None,
        *,
        partition: int | None = None,
        partitioner: str | Partitioner | None = None,
        ack: AckPolicy = "leader",
        timeout: float | None = None,
        raise_errors: bool = True,
        resend: bool | None = None,
    ) -> Published:
        """Publish many messages and wait for all acks. Messages of one partition are stored in order, except those that had to be
        sent again; see `publish` for `resend`.

        Raises the first failure, once everything was answered or given up; with `raise_errors=False` it is in the result instead.
        """
        policy = options.ack_policy(ack)
        resends = options.resends(resend, policy)
        seconds = self._publish_seconds(timeout, resends=resends)
        bodies = [b"" if value is None else options.payload("values", value) for value in values]
        tombstones = bytes(value is None for value in values) if None in values else None
        names = None if keys is None else [None if key is None else options.payload("keys", key) for key in keys]
        if names is not None and len(names) != len(bodies):
            raise options.wrong("keys", f"{len(names)} keys", f"as long as `values`, {len(bodies)}")
        rows = await self._split(options.stream_name(stream), partition, partitioner, bodies, names, seconds)
        batch = _Lists(bodies, names, tombstones)
        deadline = monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for number, places in rows.items():
                lane = Lane(self._engine, PublishTarget(stream, number, policy), ResendRule(unknown=resends))
                group.create_task(_deliver(lane, batch, places, deadline))
        result = Published(batch.offsets, batch.errors)
        if result.errors and raise_errors:
            raise result.errors[min(result.errors)]
        return result

    def publisher(
        self,
        stream: str,
        *,
        partition: int | None = None,
        partitioner: str | Partitioner | None = None,
        ack: AckPolicy | None = None,
        window: int = WINDOW_DEFAULT,
        timeout: float | None = None,
        on_error: OnError | None = None,
        resend: bool | None = None,
        idempotent: bool = False,
        producer_id: str | None = None,
        epoch: int | None = None,
    ) -> BasePublisher:
        """A publisher of many messages to one stream: `window` of them may wait for their ack (`"leader"` by default), each `timeout`
        seconds at most.

        Messages that are surely not stored are sent again by themselves, with `resend` (by default with `ack="all"`) also those
        that may be, and then perhaps twice; with `resend=False` none is. A message that is sent again may be stored after messages
        that were in flight with it; a window of 1 keeps the order.

        With `idempotent` every message is stored exactly once and in order, whatever fails, by default with `ack="all"`: messages are
        numbered, and sent again until they are acked. `producer_id` identifies the publisher, a new id by default. A publisher
        with the same id that starts later fences this one. `epoch` replaces the clock as the number of this start: the same messages
        published again under the same id and epoch are not stored again.

        `on_error` is called with every failure. Without it, `flush` and the end of an `async with` block raise the first one.
        """
        is_idempotent = options.flag("idempotent", idempotent) or producer_id is not None or epoch is not None
        if epoch is not None and producer_id is None:
            raise options.wrong("epoch", epoch, "given together with a `producer_id`")
        if resend is False and is_idempotent:
            raise options.wrong("resend", resend, "left out: an idempotent publisher sends again")
        choices: dict[str, Any] = {
            "ack": ack or ("all" if is_idempotent else "leader"),
            "partition": partition,
            "partitioner_choice": partitioner,
            "window": window,
            "on_error": on_error,
            "resend": resend,
        }
        resends = is_idempotent or options.resends(resend, options.ack_policy(choices["ack"]))
        choices["timeout"] = self._publish_seconds(timeout, resends=resends)
        publisher: BasePublisher
        if is_idempotent:
            publisher = IdempotentPublisher(self._brokers, stream, producer_id=producer_id, epoch=epoch, **choices)
        else:
            publisher = BrokerPublisher(self._brokers, stream, **choices)
        self._keep(publisher)
        return publisher

    # ── partitions ───────────────────────────────────────────────────────────────────────────────

    async def _choose(
        self,
        stream: str,
        partition: int | None,
        choice: str | Partitioner | None,
        key: bytes | None,
        value: bytes,
        seconds: float,
    ) -> int:
        if partition is not None:
            return options.integer("partition", partition, 0, options.INT32_MAX)
        if key is None and choice in KEYED:
            return 0
        chosen = self._partitioner(stream, choice)
        return choose(chosen, key, value, await self._count_partitions(stream, seconds))

    async def _split(
        self,
        stream: str,
        partition: int | None,
        choice: str | Partitioner | None,
        values: list[bytes],
        keys: list[bytes | None] | None,
        seconds: float,
    ) -> dict[int, list[int]]:
        """The places of the values for each partition."""
        if partition is not None or (keys is None and choice in KEYED):
            return {await self._choose(stream, partition, None, None, b"", seconds): list(range(len(values)))}
        chosen = self._partitioner(stream, choice)
        count = await self._count_partitions(stream, seconds)
        rows: dict[int, list[int]] = {}
        for place, value in enumerate(values):
            rows.setdefault(choose(chosen, keys[place] if keys else None, value, count), []).append(place)
        return rows

    async def _count_partitions(self, stream: str, seconds: float) -> int:
        return len((await self._brokers.stream(stream, TimeLimit.after(seconds))).partitions)

    _round_robins: dict[str, Partitioner]

    def _partitioner(self, stream: str, choice: str | Partitioner | None) -> Partitioner:
        """Round robin goes on from call to call."""
        if choice == "round-robin":
            return self._round_robins.setdefault(stream, partitioner(choice))
        return partitioner(choice)


def call_message(lane: Lane, method: str, request: bytes, deadline: float) -> PublishMessage:
    """A message that is sent as this call."""
    future = asyncio.get_running_loop().create_future()
    return PublishMessage(lane, b"", None, None, -1, future, deadline, True, (method, request))


# ── many at once ─────────────────────────────────────────────────────────────────────────────────


class _Lists:
    """Values and keys as lists: a batch, see rows.py."""

    def __init__(self, values: list[bytes], keys: list[bytes | None] | None, tombstones: bytes | None) -> None:
        self.values = values
        self.keys = keys
        self.tombstones = tombstones
        """A byte for each message, 1 if it has no value; None if all have one."""
        self.offsets = [-1] * len(values)
        self.errors: dict[int, BasculeError] = {}
        longest_key = max((len(key or b"") for key in keys), default=0) if keys else 0
        self._has_large = max(map(len, values), default=0) + longest_key > LARGE_BYTES

    def key(self, place: int) -> bytes | None:
        return None if self.keys is None else self.keys[place]

    def headers(self, place: int) -> dict[str, bytes] | None:
        return options.NO_VALUE if self.tombstones is not None and self.tombstones[place] else None

    def split(self, places: list[int]) -> Iterator[tuple[bool, list[int]]]:
        """Runs of places whose messages are large, or are not."""
        if not self._has_large:
            return iter([(False, places)] if places else [])
        grouped = groupby(places, lambda place: is_large(self.values[place], self.key(place), None))
        return ((large, list(group)) for large, group in grouped)

    def pick(self, target: PublishTarget, rows: Sequence[int], waiter: Any, deadline: float) -> PublishColumns:
        is_all = len(rows) == len(self.values)
        values = self.values if is_all else [self.values[place] for place in rows]
        keys = self.keys if is_all or self.keys is None else [self.keys[place] for place in rows]
        headers = header_ends = None
        if self.tombstones is not None:
            tombstones = self.tombstones if is_all else bytes(self.tombstones[place] for place in rows)
            headers, header_ends = encode_publish_headers(len(rows), tombstones=tombstones)
        return PublishColumns(
            target, values, keys=keys, headers=headers, header_ends=header_ends, waiter=waiter, deadline=deadline
        )

    def store(self, rows: Sequence[int], offsets: memoryview) -> None:
        if len(rows) == len(self.offsets):
            self.offsets[:] = offsets.tolist()
            return
        for place, offset in zip(rows, offsets, strict=True):
            self.offsets[place] = offset


async def _deliver(lane: Lane, batch: _Lists, places: list[int], deadline: float) -> None:
    """One partition's messages in order: large ones as calls of their own, those between them as rows."""
    for large, some in batch.split(places):
        if not large:
            await lane.deliver(ColumnRows(lane, batch, some, deadline))
            continue
        for place in some:
            future: asyncio.Future[Ack | None] = asyncio.get_running_loop().create_future()
            message = PublishMessage(
                lane, batch.values[place], batch.key(place), batch.headers(place), -1, future, deadline, True
            )
            await deliver_alone(lane, message, batch, place)


async def deliver_alone(lane: Lane, message: PublishMessage, batch: RowBatch, row: int) -> None:
    """Deliver one row of a batch as a message of its own."""
    await lane.deliver(message)
    error = message.future.exception()
    if isinstance(error, BasculeError):
        batch.errors[row] = error
    else:
        ack = message.future.result()
        batch.offsets[row] = -1 if ack is None else ack.offset
