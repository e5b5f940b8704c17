"""Messages in columns, as Arrow has them: published without making an object of any.

    publisher = column_publisher(client, window=8192, timeout=30)
    future = publisher.publish("orders", 0, MessageColumns(values, value_ends), ack="all")
    offsets = future.result()

Until its time is up, whatever has no good answer is sent again: what is published is stored at least once, in the order of the
columns while nothing fails. With a producer every message has a sequence, and a sequence that is stored is not stored again: then it is
exactly once, in order, whatever fails.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from typing_extensions import Buffer

from bascule.client.blocking import BlockingClient
from bascule.client.connection import options
from bascule.client.connection.brokers import Brokers
from bascule.client.connection.failures import publish_failure, unknown_outcome
from bascule.client.connection.retry import Backoff, Deadline
from bascule.client.publish.many import answered
from bascule.client.publish.publish_call import LARGE_BYTES, call_publish
from bascule.client.publish.publish_session import PublishSessions
from bascule.client.publish.publisher import power_of_two
from bascule.errors import BasculeError, OutcomeUnknown, Unavailable
from bascule.kernels.window.headers import encode_publish_headers
from bascule.kernels.window.window import (
    FAILED,
    NOT_SENT,
    OUTCOME_UNKNOWN,
    SENT,
    STORED,
    WAITING,
    PublishColumns,
    PublishTarget,
    encode_publish_request,
    encode_publish_to_subject,
)

TRY_SECONDS: Final = 10.0
"""How long acks are waited for before everything that lacks one is sent again: a leader may hang, or have lost its office."""

HeaderEntries = tuple[Buffer, Buffer, Buffer, Buffer, Buffer]
"""Where the entries of each message end; names and where each ends; values and where each ends. Ends are int64."""


@dataclass(frozen=True, slots=True)
class Producer:
    """Who numbers the messages: the first of the columns has `sequence`. An epoch begins with 0 in each partition."""

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
    """Columns with their headers encoded, and what became of the messages so far."""

    values: memoryview
    value_ends: memoryview
    keys: memoryview | None
    key_ends: memoryview | None
    headers: memoryview | None
    header_ends: memoryview | None
    is_numbered: bool
    offsets: array[int]

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
        )

    def large_rows(self) -> list[int]:
        """Rows that have to travel alone. Most columns are too small to have any."""
        if max(self.values.nbytes, 0 if self.headers is None else self.headers.nbytes) <= LARGE_BYTES // 2:
            return []
        columns = [ends for ends in (self.value_ends, self.key_ends, self.header_ends) if ends is not None]
        sizes = [_lengths(ends) for ends in columns]
        return [row for row, parts in enumerate(zip(*sizes, strict=True)) if sum(parts) > LARGE_BYTES]

    def picked(self, target: PublishTarget, rows: Sequence[int], **more: object) -> PublishColumns:
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
            **more,  # type: ignore[arg-type]
        )

    def request(self, target: PublishTarget, row: int) -> bytes:
        """A `PublishRequest`. Its fields may come in any order: the headers, which are encoded already, follow the rest."""
        value = bytes(_span(self.values, self.value_ends, row))
        key = None if self.keys is None or self.key_ends is None else bytes(_span(self.keys, self.key_ends, row))
        headers = b""
        if self.headers is not None and self.header_ends is not None:
            headers = bytes(_span(self.headers, self.header_ends, row))
        return encode_publish_request(target, value, key or None) + headers


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
        self._brokers = brokers
        self._timeout = timeout
        self._sessions = PublishSessions(brokers, power_of_two(window), lambda *_: None)

    async def publish(self, stream: str, partition: int, columns: MessageColumns, ack: str) -> array[int]:
        """The offset of each message; -1 without acks, or where a message was stored before and its offset is not known any more.

        Raises what a broker refused, or why not all were stored in time: Unavailable when some surely were not, OutcomeUnknown else.
        """
        target = PublishTarget(stream, partition, options.ack_policy(ack))
        batch = _Batch.of(columns)
        deadline = Deadline.after(self._timeout)
        rows: list[int] = []
        first = 0
        for large in [*batch.large_rows(), len(batch.offsets)]:
            rows = list(range(first, large))
            await self._publish_rows(target, batch, rows, deadline)
            if large < len(batch.offsets):
                await self._publish_alone(target, batch, large, deadline)
            first = large + 1
        return batch.offsets

    async def publish_to_subject(self, subject: str, columns: MessageColumns, ack: str) -> array[int]:
        """The same for a NATS subject, one message after the other: which streams have it, and where, is not known here."""
        deadline = Deadline.after(self._timeout)
        policy = options.ack_policy(ack)
        offsets = array("q")
        for value, key, headers in _messages(columns):
            request = encode_publish_to_subject(subject, value, key or None, headers, ack_policy=policy)
            offsets.append(await self._call("PublishToSubject", request, deadline))
        return offsets

    def close(self) -> None:
        self._sessions.close()

    async def _publish_alone(self, target: PublishTarget, batch: _Batch, row: int, deadline: Deadline) -> None:
        batch.offsets[row] = await self._call("Publish", batch.request(target, row), deadline)

    async def _call(self, method: str, request: bytes, deadline: Deadline) -> int:
        """Until it is answered: the offset."""
        backoff = Backoff()
        while True:
            try:
                ack = await call_publish(self._brokers, method, request, min(deadline.left, TRY_SECONDS))
            except (OutcomeUnknown, Unavailable):
                if not await backoff.wait(deadline):
                    raise
            else:
                return -1 if ack is None else ack.offset

    async def _publish_rows(
        self, target: PublishTarget, batch: _Batch, rows: Sequence[int], deadline: Deadline
    ) -> None:
        """Those that are not large, again and again until every one has a good answer."""
        backoff = Backoff()
        while rows:
            problem: BasculeError
            try:
                session = await self._sessions.get(target.stream, target.partition, deadline)
                await session.wait_for_room(deadline)
            except TimeoutError:
                problem = Unavailable("the messages were not sent in time")
            except Unavailable as error:
                problem = error
            else:
                done: asyncio.Future[PublishColumns] = asyncio.get_running_loop().create_future()
                at = min(deadline.at, Deadline.after(TRY_SECONDS).at)
                session.publish_columns(sent := batch.picked(target, rows, waiter=done, deadline=at))
                await answered(self._sessions, sent, done, deadline)
                if sent.done and not sent.failed:
                    _note_offsets(batch, rows, sent)
                    return
                rows, problem = _unanswered(batch, rows, sent)
            if rows and not await backoff.wait(deadline):
                raise problem from None


def _note_offsets(batch: _Batch, rows: Sequence[int], sent: PublishColumns) -> None:
    if len(rows) == len(batch.offsets):
        batch.offsets = array("q", sent.offsets.tobytes())
        return
    for row, offset in zip(rows, sent.offsets, strict=True):
        batch.offsets[row] = offset


def _unanswered(batch: _Batch, rows: Sequence[int], sent: PublishColumns) -> tuple[Sequence[int], BasculeError]:
    """The rows to send again and why. Of numbered messages all from the first on: those behind it were refused for the gap, or are
    known to be stored when they come again. Raises what was refused for good, the first of it."""
    outcomes = sent.outcomes.tolist()
    again: list[int] = []
    problem: BasculeError | None = None
    for row, offset, outcome in zip(rows, sent.offsets, outcomes, strict=True):
        if outcome in (STORED, SENT):
            batch.offsets[row] = offset
            continue
        error = _failure(outcome, sent)
        if not isinstance(error, Unavailable | OutcomeUnknown) and not again:
            raise error
        problem = problem or error
        again.append(row)
    assert problem is not None, "something failed"
    if batch.is_numbered:
        again = [row for row in rows if row >= again[0]]
    return again, problem


def _failure(outcome: int, sent: PublishColumns) -> BasculeError:
    if outcome == NOT_SENT:
        return Unavailable("the messages were not sent in time")
    if outcome in (OUTCOME_UNKNOWN, WAITING):
        return unknown_outcome(
            "the message was sent", "the connection was lost, time was up, or another broker leads now"
        )
    return publish_failure(outcome - FAILED, sent.texts.get(outcome, ""))


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
        self._portal.call(self._publisher.close)


def column_publisher(client: BlockingClient, *, window: int, timeout: float) -> ColumnPublisher:
    """A publisher of columns on a client's connections."""
    size = options.integer("window", window, 1, 1 << 20)
    brokers = client._client._brokers
    return ColumnPublisher(
        client, client._portal.call(lambda: AsyncColumnPublisher(brokers, window=size, timeout=timeout))
    )
