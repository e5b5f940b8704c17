"""The readers of a subscription with `history`: of each partition the archive first, batch by batch, then the log.

archive        read in threads; so many bytes wait for the subscriber, then reading waits
the seam       subscribe to the log after the last archived offset, and look where the log begins: what retention removed
               meanwhile is read from the archive, which has it by now, or is an error
log            a subscription like any other, of the stream with the archive's id
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol

from bascule.client.connection import wire
from bascule.client.connection.retry import TimeLimit
from bascule.client.consume.partition_reader import WAITING_BYTES_MAX, PartitionReader
from bascule.client.consume.positions import STOP_TIMESTAMP, Position, Start
from bascule.client.consume.subscription import ReaderFactory, Wake
from bascule.errors import BasculeError, InvalidOption
from bascule.flight.schema import COLUMNS
from bascule.history.past import ArchiveChoice, Past
from bascule.history.positions import start_of
from bascule.kernels.client.messages import MessageBatch, decode_batch
from bascule.names import TOMBSTONE_HEADER
from bascule.spark.read.state import StreamState

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_MAX: Final = 4096
"""Rows of an archive that become one batch of messages."""


class HistoryReader(PartitionReader):
    """One partition. `past` is of this reader alone."""

    def __init__(self, log: PartitionReader, past: Past) -> None:
        super().__init__(log._brokers, log.stream, log.partition, log.position, log._options, log._wake)
        self._past = past
        self._room = asyncio.Event()
        self._is_at_seam = False

    # ── for the subscriber ───────────────────────────────────────────────────────────────────────

    async def open(self, deadline: TimeLimit) -> None:
        wanted = start_of(self.position.wanted, self.stream, self.partition)
        found = await asyncio.to_thread(self._past.look)
        self._stream_id = found.id
        await self._pin(deadline)
        if wanted is None or self.position.is_done:
            self._past.close()
            await self._begin(deadline)
            return
        first, end = await asyncio.to_thread(self._first_range, found, wanted)
        if self.position.wanted.stop_position == STOP_TIMESTAMP and self.position.stop is not None:
            self.position.is_empty = self.position.stop < first
        self.position.start_at(first)
        if self.position.is_done or end == first:
            self._past.close()
            await self._begin(deadline)
            return
        self._task = asyncio.get_running_loop().create_task(
            self._run_from(found, first, end), name=f"history of {self.stream}/{self.partition}"
        )

    def _first_range(self, found: StreamState, wanted: Any) -> tuple[int, int]:
        """Where it begins, and to where the archive is needed. A stop at a time becomes an offset."""
        first = self._past.start(found, self.partition, wanted)
        if self.position.wanted.stop_position == STOP_TIMESTAMP:
            after = self._past.offset_at(found, self.partition, self.position.wanted.stop + 1)
            if after is not None:
                self.position.stop = after - 1
        return first, self._past.archived_end(found, self.partition, first)

    def take(self) -> MessageBatch | None:
        if self._left:
            self._room.set()
            return self._left.popleft()
        return None if self._is_at_seam else super().take()

    def abandon(self) -> None:
        super().abandon()
        self._past.close()

    # ── archive, seam, log ───────────────────────────────────────────────────────────────────────

    async def _run_from(self, found: StreamState, first: int, end: int) -> None:
        try:
            while True:
                await self._read_past(found, first, end)
                if self.position.is_done:
                    self._end(None)
                    return
                found, first, end = await self._to_log(end)
                if first == end:
                    break
        except BasculeError as error:
            self._end(error)
            return
        except Exception as error:  # what threads raise would be lost with the task
            self._end(BasculeError(f"the history of {self.stream}/{self.partition} cannot be read: {error!r}"))
            return
        finally:
            self._past.close()
        if not self.ended:
            await self._run()

    async def _read_past(self, found: StreamState, first: int, end: int) -> None:
        stop = self.position.stop
        last = end if stop is None else min(end, stop + 1)
        rows = _in_pieces(self._past.read(found, self.partition, first, last, COLUMNS))
        while (batch := await asyncio.to_thread(_next_messages, rows)) is not None:
            self._left.append(batch)
            self.position.last = batch.last_offset
            self._wake()
            while sum(one.nbytes for one in self._left) >= WAITING_BYTES_MAX:
                self._room.clear()
                await self._room.wait()
        self.position.last = max(0, last) - 1

    async def _to_log(self, position: int) -> tuple[StreamState, int, int]:
        """Subscribe to the log. The range that has to be read from the archive before that; empty when there is none."""
        self._is_at_seam, is_whole = True, False
        try:
            await self._is_subscribed(TimeLimit.after(self._options.patience))
            found, first, end = await asyncio.to_thread(self._after_seam, position)
            is_whole = first == end
        finally:
            if not is_whole:
                self._drop_call()
            self._is_at_seam = False
            self._wake()
        return found, first, end

    def _drop_call(self) -> None:
        """With the messages after those that are missing."""
        call, self._call = self._call, None
        if call is not None:
            call.on_ready = None
            call.cancel()

    def _after_seam(self, position: int) -> tuple[StreamState, int, int]:
        """What the log no longer had when it was subscribed to. Raises DataLost if the archive does not have it either."""
        found = self._past.look()
        state = found.partitions[self.partition]
        if state.log_start_offset <= position:
            return found, position, position
        end = self._past.archived_end(found, self.partition, position)
        first = self._past.resumed(found, self.partition, position)
        return (found, first, end) if first < end else (found, position, position)


class LogReaders(ReaderFactory, Protocol):
    """The readers of the log alone."""

    def position(self, start: Start | None = None) -> Position: ...


class HistoryReaders:
    """Makes the readers of a subscription with `history`."""

    def __init__(self, log: LogReaders, stream: str, archive: ArchiveChoice) -> None:
        if log.position().wanted.reverse:
            raise InvalidOption("`reverse` is set, and `history`", hint="an archive is read forward: leave out one")
        archive.options(stream)
        self._log = log
        self._stream = stream
        self._archive = archive

    async def partitions(self, deadline: TimeLimit) -> list[int]:
        return await self._log.partitions(deadline)

    def reader(self, partition: int, wake: Wake, start: Start | None = None) -> HistoryReader:
        return HistoryReader(self._log.reader(partition, wake, start), Past(self._archive, self._stream))


# ── rows as messages ─────────────────────────────────────────────────────────────────────────────


def _in_pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, ROWS_MAX):
            yield batch.slice(start, ROWS_MAX)


def _next_messages(rows: Iterator[pa.RecordBatch]) -> MessageBatch | None:
    batch = next(rows, None)
    return None if batch is None else as_messages(batch)


def as_messages(rows: pa.RecordBatch) -> MessageBatch:
    """Rows with all columns as messages. Their times are in microseconds: an archive keeps no nanoseconds."""
    import pyarrow as pa

    columns = {name: rows[name] for name in COLUMNS}
    columns["timestamp"] = columns["timestamp"].cast(pa.int64())
    lists = {name: column.to_pylist() for name, column in columns.items()}
    named = ("offset", "key", "value", "timestamp", "stream", "partition", "subject", "replySubject", "headers")
    return decode_batch([_encoded(*row) for row in zip(*(lists[name] for name in named), strict=True)])


def _encoded(
    offset: int,
    key: bytes | None,
    value: bytes | None,
    timestamp_us: int,
    stream: str,
    partition: int,
    subject: str,
    reply: str | None,
    headers: list[tuple[str, bytes | None]],
) -> bytes:
    """One as a broker sends it: with its subjects among the headers, and a header in place of the value that a tombstone has not."""
    entries = {"subject": subject.encode(), "reply": (reply or "").encode()}
    entries |= {name: item or b"" for name, item in headers}
    if value is None:
        entries[TOMBSTONE_HEADER] = b""
    return wire.encode(
        "Message",
        offset=offset,
        key=key,
        value=value,
        timestamp=timestamp_us * 1_000,
        stream=stream,
        partition=partition,
        subject=subject,
        replySubject=reply,
        headers=[{"key": name, "value": item} for name, item in entries.items()],
    )
