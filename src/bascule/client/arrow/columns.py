"""Publishes messages in columns, as Arrow has them, without an object for each.

    publisher = column_publisher(client, window=8192, timeout=30)
    future = publisher.publish("orders", 0, MessageColumns(values, value_ends), ack="all")
    offsets = future.result()

Messages without an ack are sent again until the timeout: each is stored at least once, in the order of the columns unless something
fails. With a producer every message has a sequence number, which is stored once: then each message is stored exactly once and in order.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from bascule.client.blocking import BlockingClient
from bascule.client.connection import options
from bascule.client.connection.brokers import Brokers
from bascule.client.publish.calls import deliver_alone, subject_message
from bascule.client.publish.engine import Engine
from bascule.client.publish.lane import Lane
from bascule.client.publish.resend_rule import ResendRule
from bascule.client.publish.rows import ColumnRows
from bascule.client.publish.sessions import PublishSessions
from bascule.client.publish.unary import LARGE_BYTES
from bascule.errors import BasculeError
from bascule.kernels.window.headers import encode_publish_headers
from bascule.kernels.window.message import PublishMessage
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
    def of(cls, columns: MessageColumns) -> _Batch:
        value_ends = memoryview(columns.value_ends)
        count = len(value_ends)
        headers = header_ends = None
        if any(part is not None for part in (columns.headers, columns.timestamps, columns.producer)):
            headers, header_ends = _encoded(count, columns)
        return cls(
            memoryview(columns.values),
            value_ends,
            None if columns.keys is None else memoryview(columns.keys),
            None if columns.key_ends is None else memoryview(columns.key_ends),
            headers,
            header_ends,
            columns.producer is not None,
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

    def message(self, lane: Lane, row: int, deadline: float) -> PublishMessage:
        """A row as a message of its own."""
        value = bytes(_span(self.values, self.value_ends, row))
        key = None if self.keys is None or self.key_ends is None else bytes(_span(self.keys, self.key_ends, row))
        request = encode_publish_request(lane.target, value, key or None)
        if self.headers is not None and self.header_ends is not None:
            request += _span(self.headers, self.header_ends, row)  # encoded already; fields may come in any order
        future = asyncio.get_running_loop().create_future()
        return PublishMessage(lane, b"", None, None, -1, future, deadline, True, ("Publish", request))


def _encoded(count: int, columns: MessageColumns) -> tuple[memoryview, memoryview]:
    own, times, who = columns.headers, columns.timestamps, columns.producer
    if who is None:
        return encode_publish_headers(count, own, times)
    return encode_publish_headers(count, own, times, producer=who.id, epoch=who.epoch, sequence=who.sequence)


def _messages(columns: MessageColumns) -> Iterator[tuple[bytes, bytes | None, dict[str, bytes]]]:
    """One after the other: value, key and headers."""
    values, value_ends = memoryview(columns.values), memoryview(columns.value_ends)
    keys = None if columns.keys is None else memoryview(columns.keys)
    key_ends = None if columns.key_ends is None else memoryview(columns.key_ends)
    for row in range(len(value_ends)):
        key = None if keys is None or key_ends is None else bytes(_span(keys, key_ends, row))
        yield bytes(_span(values, value_ends, row)), key, _headers(columns, row)


def _headers(columns: MessageColumns, row: int) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    if columns.headers is not None:
        rows, names, name_ends, values, value_ends = (memoryview(part) for part in columns.headers)
        for entry in range(rows[row - 1] if row else 0, rows[row]):
            found[str(_span(names, name_ends, entry), "utf-8")] = bytes(_span(values, value_ends, entry))
    if columns.timestamps is not None and (time := memoryview(columns.timestamps)[row]) >= 0:
        found["bascule-timestamp"] = b"%d" % time
    if (who := columns.producer) is not None:
        found["bascule-producer"], found["bascule-epoch"] = who.id, b"%d" % who.epoch
        found["bascule-sequence"] = b"%d" % (who.sequence + row)
    return found


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

    def __init__(self, brokers: Brokers, *, window: int, timeout: float) -> None:
        self._timeout = timeout
        self._engine = Engine(brokers, PublishSessions(brokers, window, _ignore), _ignore)

    async def publish(self, stream: str, partition: int, columns: MessageColumns, ack: str) -> array[int]:
        """The offset of each message; -1 without acks, or where a message was stored before and its offset is not known any more.

        Raises what a broker refused, or why not all were stored in time: Unavailable when some surely were not, OutcomeUnknown else.
        """
        lane = Lane(self._engine, PublishTarget(stream, partition, options.ack_policy(ack)), RULE)
        batch = _Batch.of(columns)
        deadline = monotonic() + self._timeout
        first, count = 0, len(batch.offsets)
        for large in [*batch.large_rows(), count]:
            if large > first:
                await lane.deliver(
                    ColumnRows(lane, batch, range(first, large), deadline, is_numbered=batch.is_numbered)
                )
            if large < count and not batch.errors:
                await deliver_alone(lane, batch.message(lane, large, deadline), batch, large)
            if batch.errors:
                raise batch.errors[min(batch.errors)]
            first = large + 1
        return batch.offsets

    async def publish_to_subject(self, subject: str, columns: MessageColumns, ack: str) -> array[int]:
        """The same for a NATS subject, one message after the other: which streams store them, and where, is not known here."""
        deadline = monotonic() + self._timeout
        policy = options.ack_policy(ack)
        offsets = array("q")
        for value, key, headers in _messages(columns):
            request = encode_publish_to_subject(subject, value, key or None, headers, ack_policy=policy)
            message = subject_message(self._engine, request, policy, deadline, RULE)
            await message.lane.send(message)
            found = await message.future
            offsets.append(-1 if found is None else found.offset)
        return offsets

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


def column_publisher(client: BlockingClient, *, window: int, timeout: float) -> ColumnPublisher:
    """A publisher of columns on a client's connections."""
    size = options.integer("window", window, 1, 1 << 20)
    brokers = client._client._brokers
    return ColumnPublisher(
        client, client._portal.call(lambda: AsyncColumnPublisher(brokers, window=size, timeout=timeout))
    )
