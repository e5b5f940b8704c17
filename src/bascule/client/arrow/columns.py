"""Publishes messages in columns, as Arrow has them, without an object for each.

    publisher = column_publisher(client, window=8192, timeout=30)
    future = publisher.publish("orders", 0, MessageColumns(values, value_ends), ack="all")
    offsets = future.result()

Messages without an ack are sent again until the timeout: each is stored at least once, in the order of the columns unless something
fails. Another rule may send fewer again. With a producer every message has a sequence number, which is stored once: then each message
is stored exactly once and in order.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from bascule.client.blocking import BlockingClient
from bascule.client.connection import options
from bascule.client.connection.brokers import Brokers
from bascule.client.publish.calls import call_message, deliver_alone
from bascule.client.publish.engine import Engine
from bascule.client.publish.lane import Lane
from bascule.client.publish.resend_rule import ResendRule
from bascule.client.publish.rows import ColumnRows
from bascule.client.publish.sessions import PublishSessions
from bascule.client.publish.unary import LARGE_BYTES
from bascule.errors import BasculeError
from bascule.kernels.window.headers import encode_publish_headers
from bascule.kernels.window.window import (
    PublishColumns,
    PublishTarget,
    encode_publish_request,
    encode_publish_to_subject,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

RULE: Final = ResendRule(unknown=True, try_seconds=10.0)
"""Everything without an ack is sent again: after this time too, since a leader may hang."""

HeaderEntries: TypeAlias = "tuple[Buffer, Buffer, Buffer, Buffer, Buffer]"
"""Where the entries of each message end; names and where each ends; values and where each ends. Ends are int64."""


@dataclass(frozen=True, slots=True)
class Producer:
    """The producer of numbered messages. The first message of the columns has `sequence`; an epoch begins with 0 in each partition."""

    id: bytes
    epoch: int
    sequence: int


@dataclass(frozen=True, slots=True)
class MessageColumns:
    """Messages for one partition: buffers of bytes and the int64 positions where each message's end. No key is an empty key."""

    values: Buffer
    value_ends: Buffer
    keys: Buffer | None = None
    key_ends: Buffer | None = None
    headers: HeaderEntries | None = None
    timestamps: Buffer | None = None
    """Times that messages have of their own, int64 in ns and negative for none, kept in a header `bascule-timestamp`."""
    producer: Producer | None = None
    tombstones: Buffer | None = None
    """A byte for each message, not 0 if it has no value; None if all have one."""


@dataclass(slots=True)
class _Batch:
    """Columns with their headers encoded, and the outcomes so far."""

    values: memoryview
    value_ends: memoryview
    keys: memoryview | None
    key_ends: memoryview | None
    headers: memoryview | None
    header_ends: memoryview | None
    is_numbered: bool
    offsets: array[int]
    errors: dict[int, BasculeError]

    @classmethod
    def of(cls, columns: MessageColumns, headers_field: int = 5) -> _Batch:
        value_ends = memoryview(columns.value_ends)
        count = len(value_ends)
        own, times, producer, tombstones = columns.headers, columns.timestamps, columns.producer, columns.tombstones
        numbers: dict[str, Any] = {}
        if producer is not None:
            numbers = {"producer": producer.id, "epoch": producer.epoch, "sequence": producer.sequence}
        headers = header_ends = None
        if own is not None or times is not None or producer is not None or tombstones is not None:
            headers, header_ends = encode_publish_headers(
                count, own, times, tombstones=tombstones, field=headers_field, **numbers
            )
        return cls(
            memoryview(columns.values),
            value_ends,
            None if columns.keys is None else memoryview(columns.keys),
            None if columns.key_ends is None else memoryview(columns.key_ends),
            headers,
            header_ends,
            producer is not None,
            array("q", [-1]) * count,
            {},
        )

    def large_rows(self) -> list[int]:
        """Rows that are sent as calls of their own. Most columns are too small to have any."""
        if max(self.values.nbytes, 0 if self.headers is None else self.headers.nbytes) <= LARGE_BYTES // 2:
            return []
        columns = [ends for ends in (self.value_ends, self.key_ends, self.header_ends) if ends is not None]
        sizes = [_lengths(ends) for ends in columns]
        return [row for row, parts in enumerate(zip(*sizes, strict=True)) if sum(parts) > LARGE_BYTES]

    def pick(self, target: PublishTarget, rows: Sequence[int], waiter: Any, deadline: float) -> PublishColumns:
        """Some rows, or all without copying them."""
        is_all = len(rows) == len(self.offsets)
        values, value_ends = (self.values, self.value_ends) if is_all else _pick(self.values, self.value_ends, rows)
        keys, key_ends = self.keys, self.key_ends
        if keys is not None and key_ends is not None and not is_all:
            keys, key_ends = _pick(keys, key_ends, rows)
        headers, header_ends = self.headers, self.header_ends
        if headers is not None and header_ends is not None and not is_all:
            headers, header_ends = _pick(headers, header_ends, rows)
        return PublishColumns(
            target,
            values,
            value_ends,
            keys,
            key_ends,
            headers=headers,
            header_ends=header_ends,
            waiter=waiter,
            deadline=deadline,
        )

    def store(self, rows: Sequence[int], offsets: memoryview) -> None:
        if len(rows) == len(self.offsets):
            self.offsets = array("q", offsets.tobytes())
            return
        for row, offset in zip(rows, offsets, strict=True):
            self.offsets[row] = offset

    def request(self, row: int, encode: Callable[[bytes, bytes | None], bytes]) -> bytes:
        """A row as a request of its own. Fields may come in any order: the encoded headers follow the others."""
        value = bytes(_span(self.values, self.value_ends, row))
        key = None if self.keys is None or self.key_ends is None else bytes(_span(self.keys, self.key_ends, row))
        request = encode(value, key or None)
        if self.headers is not None and self.header_ends is not None:
            request += _span(self.headers, self.header_ends, row)
        return request


def _lengths(ends: memoryview) -> list[int]:
    places = ends.tolist()
    return [end - start for start, end in zip([0, *places], places, strict=False)]


def _span(data: memoryview, ends: memoryview, row: int) -> memoryview:
    return data[ends[row - 1] if row else 0 : ends[row]]


def _pick(data: memoryview, ends: memoryview, rows: Sequence[int]) -> tuple[memoryview, memoryview]:
    spans = [_span(data, ends, row) for row in rows]
    return memoryview(b"".join(spans)), memoryview(array("q", accumulate(map(len, spans))))


# ── publishing ───────────────────────────────────────────────────────────────────────────────────


class AsyncColumnPublisher:
    """Publishes columns; see the top of the file. `window` messages to each broker may wait for their ack."""

    def __init__(self, brokers: Brokers, *, window: int, timeout: float, rule: ResendRule = RULE) -> None:
        self._timeout = timeout
        self._rule = rule
        self._engine = Engine(brokers, PublishSessions(brokers, window, _ignore), _ignore)

    async def publish(self, stream: str, partition: int, columns: MessageColumns, ack: str) -> array[int]:
        """The offset of each message; -1 without acks, or where a message was stored before and its offset is not known any more.

        Raises what a broker refused, or why not all were stored in time: Unavailable when some surely were not, OutcomeUnknown else.
        """
        lane = Lane(self._engine, PublishTarget(stream, partition, options.ack_policy(ack)), self._rule)
        batch = _Batch.of(columns)
        deadline = monotonic() + self._timeout
        first, count = 0, len(batch.offsets)
        for large in [*batch.large_rows(), count]:
            if large > first:
                await lane.deliver(
                    ColumnRows(lane, batch, range(first, large), deadline, is_numbered=batch.is_numbered)
                )
            if large < count and not batch.errors:
                request = batch.request(large, partial(encode_publish_request, lane.target))
                await deliver_alone(lane, call_message(lane, "Publish", request, deadline), batch, large)
            if batch.errors:
                raise batch.errors[min(batch.errors)]
            first = large + 1
        return batch.offsets

    async def publish_to_subject(self, subject: str, columns: MessageColumns, ack: str) -> array[int]:
        """The same for a NATS subject, one message after the other: which streams store them, and where, is not known here."""
        policy = options.ack_policy(ack)
        batch = _Batch.of(columns, headers_field=4)
        deadline = monotonic() + self._timeout
        encode = partial(encode_publish_to_subject, subject, ack_policy=policy)
        for row in range(len(batch.offsets)):
            lane = Lane(self._engine, PublishTarget("", 0, policy), self._rule)
            message = call_message(lane, "PublishToSubject", batch.request(row, encode), deadline)
            await deliver_alone(lane, message, batch, row)
            if batch.errors:
                raise batch.errors[row]
        return batch.offsets

    async def close(self) -> None:
        await self._engine.close()


def _ignore(_error: BasculeError) -> None:
    """Failures are raised by `publish`."""


# ── without asyncio ──────────────────────────────────────────────────────────────────────────────


class ColumnPublisher:
    """`AsyncColumnPublisher` for threads: `publish` returns at once, with a future."""

    def __init__(self, client: BlockingClient, publisher: AsyncColumnPublisher) -> None:
        self._portal = client._portal
        self._publisher = publisher

    def publish(
        self, stream: str, partition: int, columns: MessageColumns, *, ack: str = "all"
    ) -> concurrent.futures.Future[array[int]]:
        work = self._publisher.publish(stream, partition, columns, ack)
        return asyncio.run_coroutine_threadsafe(work, self._portal.loop)

    def publish_to_subject(
        self, subject: str, columns: MessageColumns, *, ack: str = "all"
    ) -> concurrent.futures.Future[array[int]]:
        work = self._publisher.publish_to_subject(subject, columns, ack)
        return asyncio.run_coroutine_threadsafe(work, self._portal.loop)

    def close(self) -> None:
        self._portal.run(self._publisher.close())


def column_publisher(
    client: BlockingClient, *, window: int, timeout: float, rule: ResendRule = RULE
) -> ColumnPublisher:
    """A publisher of columns on a client's connections. `rule` says which messages without an ack are sent again."""
    size = options.integer("window", window, 1, 1 << 20)
    brokers = client._part._brokers
    return ColumnPublisher(
        client, client._portal.call(lambda: AsyncColumnPublisher(brokers, window=size, timeout=timeout, rule=rule))
    )
