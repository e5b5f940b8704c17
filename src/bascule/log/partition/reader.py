"""Readers with a position. They wait for new records without polling, in a thread or in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial

from bascule import limits
from bascule.errors import CallerError, EndOfReadonlyLog, LogEmpty, ReaderCancelled
from bascule.kernels.records.records import Record
from bascule.log.partition.partition_log import PartitionLog
from bascule.log.segments.slices import BatchSlice


class LogReader:
    """Reads forward from an offset, batch slice by batch slice, and waits at the end.

    A start beyond the end means the next new record. Ends with LogDeleted, LogClosed, EndOfReadonlyLog or ReaderCancelled.
    After CorruptBatch, `skip_to(error.next_offset)` continues after the damage.
    """

    def __init__(
        self, log: PartitionLog, offset: int, *, committed: bool = True, bytes_max: int = limits.READ_BYTES_DEFAULT
    ) -> None:
        if offset < 0:
            raise CallerError(f"offset {offset} is negative", hint="offsets begin at 0")
        self._log = log
        self._committed = committed
        self._bytes_max = bytes_max
        self._cancelled = False
        self.next_offset = min(offset, log.log_end_offset)

    def skip_to(self, offset: int) -> None:
        self.next_offset = max(self.next_offset, offset)

    def poll(self) -> BatchSlice | None:
        """Return the next batches; None at the end of a log that may grow."""
        if self._cancelled:
            raise ReaderCancelled("the reader was cancelled")
        log = self._log
        # Before the read: records that are committed in the meantime have to be read too.
        was_at_end = log.readonly and self._at_readonly_end()
        found = log.read(self.next_offset, bytes_max=self._bytes_max, committed=self._committed)
        if found is not None:
            self.next_offset = found.next_offset
            return found
        if was_at_end:
            raise EndOfReadonlyLog(f"the log {self._log.directory} is readonly and ends at {self.next_offset}")
        return None

    def _at_readonly_end(self) -> bool:
        log = self._log
        return self._committed and log.readonly and log.readable_end_offset(committed=True) == log.log_end_offset

    def read(self, timeout: float | None = None) -> BatchSlice | None:
        """Return the next batches, waiting in this thread; None after `timeout` seconds."""
        news = threading.Event()
        while True:
            found = self.poll()
            if found is not None:
                return found
            news.clear()
            if self.call_when_ready(news.set) and not news.wait(timeout):
                self._log.stop_waiting(self)
                return None

    async def next(self) -> BatchSlice:
        """Return the next batches, waiting in the event loop."""
        loop = asyncio.get_running_loop()
        while True:
            found = self.poll()
            if found is not None:
                return found
            news = asyncio.Event()
            if self.call_when_ready(partial(_set_in_loop, loop, news)):
                try:
                    await news.wait()
                finally:
                    self._log.stop_waiting(self)

    def call_when_ready(self, callback: Callable[[], None]) -> bool:
        """Call back once, on any thread, when poll() may return batches or raise. False if it may do so now."""
        waits = self._log.call_when_readable(self, self.next_offset, callback, committed=self._committed)
        # If the log became readonly or the reader was cancelled since the last poll, no later event would wake it.
        if waits and (self._cancelled or (self._log.readonly and self._at_readonly_end())):
            self._log.stop_waiting(self)
            return False
        return waits

    def stop_waiting(self) -> None:
        self._log.stop_waiting(self)

    def cancel(self) -> None:
        """End a waiting read. Any thread may call it."""
        self._cancelled = True
        self._log.wake_reader(self)


def _set_in_loop(loop: asyncio.AbstractEventLoop, news: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(news.set)


class ReverseReader:
    """Reads backwards from an offset to the oldest record, or to `stop_offset`, inclusive. Never waits."""

    def __init__(
        self,
        log: PartitionLog,
        offset: int | None = None,
        *,
        stop_offset: int = 0,
        committed: bool = True,
        bytes_max: int = limits.READ_BYTES_DEFAULT,
    ) -> None:
        newest = log.readable_end_offset(committed=committed) - 1
        if log.oldest_offset < 0 or newest < 0:
            raise LogEmpty(f"the log {log.directory} has no records to read backwards")
        if offset is not None and offset < 0:
            raise CallerError(f"offset {offset} is negative", hint="offsets begin at 0")
        self._log = log
        self._committed = committed
        self._bytes_max = bytes_max
        self._stop_offset = stop_offset
        self._cancelled = False
        self.next_offset = newest if offset is None else min(offset, newest)

    def read(self) -> list[Record] | None:
        """Return the previous records, highest offset first; None at the end."""
        if self._cancelled:
            raise ReaderCancelled("the reader was cancelled")
        while self.next_offset >= max(0, self._stop_offset):
            found = self._log.read_reverse(self.next_offset, bytes_max=self._bytes_max, committed=self._committed)
            if found is None:
                return None
            self.next_offset = found.first_offset - 1
            wanted = [record for record in found.records() if record.offset >= self._stop_offset]
            if wanted:
                return wanted[::-1]
        return None

    def skip_to(self, offset: int) -> None:
        """Continue below `offset`, for example below `first_offset` of a CorruptBatch."""
        self.next_offset = min(self.next_offset, offset)

    def cancel(self) -> None:
        self._cancelled = True

    def __iter__(self) -> Iterator[Record]:
        while (found := self.read()) is not None:
            yield from found
