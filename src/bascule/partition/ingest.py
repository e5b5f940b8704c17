"""From what NATS brought to the logs, and back to whoever wants an ack.

While little arrives, a batch is written right where it was read: no thread is woken, and an ack leaves in the same turn of the event
loop. When much arrives, or the disk is slow, a thread writes, so that the socket is read on, and what nobody waits for gathers for a
few milliseconds: larger batches cost less for a message. In between lies a bounded buffer. At its bound reading stops, which is the
last resort: it is counted and logged.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from bascule import limits
from bascule.errors import BasculeError
from bascule.kernels.ingest.acks import AckWriter
from bascule.kernels.ingest.sink import PartitionSink, PreparedBatch
from bascule.kernels.records.producers import ProducerTable
from bascule.log.disk.slowness import SlowWrites
from bascule.log.partition.batches import Appended
from bascule.partition.replica import LedPartition
from bascule.partition.replication.ack_times import AckTimes
from bascule.proto.api_pb2 import Ack

_logger = logging.getLogger(__name__)

_Work = tuple[LedPartition, list[PreparedBatch], bool]
"""Batches to append to one partition, and whether to look up afterwards which producers its log knows."""
_Done = tuple[LedPartition, list[tuple[PreparedBatch, Appended | BasculeError]], ProducerTable | BasculeError | None]


class Source(Protocol):
    """The NATS link, as far as this cares."""

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def schedule_flush(self) -> None: ...


@dataclass(slots=True)
class IngestStats:
    records: int = 0
    bytes: int = 0
    batches: int = 0
    failed_batches: int = 0
    pauses: int = 0
    """How often reading had to stop because the disk was too slow."""
    buffered_bytes_max: int = 0


class Ingest:
    def __init__(
        self,
        source: Source,
        acks: AckWriter,
        *,
        linger_seconds: float = 0.0,
        buffer_bytes_max: int = limits.INGEST_BUFFER_BYTES_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._acks = acks
        self._linger_seconds = linger_seconds
        self._buffer_bytes_max = buffer_bytes_max
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._partitions: dict[PartitionSink, LedPartition] = {}
        self._waiting: dict[PartitionSink, float] = {}
        """Sinks that have collected something, and since when, in the order in which they did."""
        self._frozen: set[PartitionSink] = set()
        """Those whose partition is about to get another leader: what they collect waits."""
        self._refusing: dict[PartitionSink, int] = {}
        """Those whose partition has got one, and what publishers are told until it listens."""
        self._in_flight_bytes = 0
        self._learning = 0
        """Partitions whose producers are being found out; what arrives for them is held."""
        self._window_bytes = 0
        self._window_began = 0.0
        self._slow_writes = SlowWrites()
        self._gathering = False
        self._paused = False
        self._alarmed = False
        self._round: list[_Work] | None = None
        """Batches that the thread is writing, of all partitions that had some. Messages that arrive meanwhile form the next round."""
        self._writer = _Writer(self._loop, self._on_written)
        self.stats = IngestStats()
        self.ack_times = AckTimes(clock)

    def attach(self, partition: LedPartition) -> None:
        self._partitions[partition.sink] = partition

    async def detach(self, partition: LedPartition, *, is_deposed: bool = False) -> None:
        """What has arrived is still written, or refused if another server leads by now; then the partition is forgotten."""
        self._frozen.discard(partition.sink)
        if is_deposed:
            partition.refuse_collected(for_good=True)
        self._flush([partition.sink])
        while partition.appending or partition.sink.waiting_records or partition.sink.is_holding:
            await asyncio.sleep(0.001)
            self._flush([partition.sink])
        self._partitions.pop(partition.sink, None)
        self._waiting.pop(partition.sink, None)

    def close(self) -> None:
        self._writer.close()

    # ── another leader ───────────────────────────────────────────────────────────────────────────

    def freeze(self, partition: LedPartition) -> None:
        """What arrives from here on is kept, and not written."""
        self._frozen.add(partition.sink)

    def thaw(self, partition: LedPartition) -> None:
        """It goes on after all."""
        self._frozen.discard(partition.sink)
        if partition.sink in self._waiting:
            self._flush([partition.sink])

    def refuse(self, partition: LedPartition, error: int) -> None:
        """The partition, which is frozen, has another leader: what has arrived and still does is refused, until `forget`."""
        sink = partition.sink
        self._frozen.discard(sink)
        self._partitions.pop(sink, None)
        self._refusing[sink] = error
        self._flush([sink])

    def forget(self, partition: LedPartition) -> None:
        self._refusing.pop(partition.sink, None)

    # ── what was read ────────────────────────────────────────────────────────────────────────────

    def on_read(self, sinks: Iterable[PartitionSink], received_bytes: int) -> None:
        now = self._measure(received_bytes)
        for sink in sinks:
            self._waiting.setdefault(sink, now)
        self._flush_due()
        self._watch_buffer()

    def _measure(self, received_bytes: int) -> float:
        now = self._clock()
        if now - self._window_began > limits.INGEST_RATE_WINDOW_SECONDS:
            self._window_began, self._window_bytes = now, 0
        self._window_bytes += received_bytes
        return now

    def _writes_at_once(self) -> bool:
        """Little arrives, and the disk has been quick: nobody minds if this thread waits for it."""
        return (
            self._window_bytes <= limits.INGEST_INLINE_BYTES
            and self._in_flight_bytes == 0
            and not self._slow_writes.expected(self._clock())
        )

    def _flush_due(self) -> None:
        """Write what is worth it, or what somebody waits for; the rest a moment later.

        While much arrives for many partitions, every read brings a few messages for each. A batch costs the same whatever it holds,
        so those without anybody who waits for an ack gather for some milliseconds.
        """
        if self._linger_seconds:
            due = [sink for sink in self._waiting if sink.waiting_records >= sink.batch_records_max]
        elif self._writes_at_once():
            due = list(self._waiting)
        else:
            due = [
                sink
                for sink in self._waiting
                if sink.has_waiting_acks or sink.waiting_bytes >= limits.INGEST_GATHER_BYTES
            ]
        if due:
            self._flush(due)
        if self._waiting and not self._gathering:
            self._gathering = True
            self._loop.call_later(self._linger_seconds or self._gather_seconds(), self._gathered)

    def _gather_seconds(self) -> float:
        crowd = 1 + len(self._waiting) / limits.INGEST_GATHER_CROWD
        return min(limits.INGEST_GATHER_SECONDS * crowd, limits.INGEST_GATHER_SECONDS_MAX)

    def _gathered(self) -> None:
        self._gathering = False
        self._flush(list(self._waiting))
        if self._waiting:
            self._flush_due()  # their partitions are being written to: they wait for the next round

    def _flush(self, sinks: list[PartitionSink]) -> None:
        begun: list[_Work] = []
        for sink in sinks:
            partition = self._partitions.get(sink)
            if partition is None:
                self._waiting.pop(sink, None)
                error = self._refusing.get(sink, Ack.Error.UNKNOWN)
                sink.forget_producers(error, for_good=True)
                for batch in sink.take():
                    self._acks.write_errors(batch)
                    self._acks.reject(batch, error)
                    batch.release()
                self._source.schedule_flush()
            elif self._round is None and not partition.appending and sink not in self._frozen:
                partition.received_at = self._waiting.pop(sink, None)
                self._write(partition, sink.take(), begun)
        if begun:
            self._round = begun
            self._writer.put(begun)

    def _write(self, partition: LedPartition, batches: list[PreparedBatch], begun: list[_Work]) -> None:
        """Append the batches here, or add them to the round that the thread writes next."""
        for batch in batches:
            if batch.has_errors:
                self._acks.write_errors(batch, commit_timestamp=time.time_ns())
                self._source.schedule_flush()
            if not batch.count and not batch.is_sequenced:
                batch.release()
        batches = [batch for batch in batches if batch.count or batch.is_sequenced]
        is_holding = partition.sink.is_holding
        if not batches and not is_holding:
            return
        # Opening a log takes longer than writing to it: that is the thread's work too.
        if partition.is_open and self._writes_at_once() and not is_holding:
            began = self._clock()
            self._settle(partition, [(batch, partition.append(batch)) for batch in batches])
            now = self._clock()
            self._slow_writes.note(now - began, now)
            return
        partition.appending = True
        partition.in_flight_records = sum(batch.count for batch in batches)
        self._in_flight_bytes += sum(batch.nbytes for batch in batches)
        self._learning += is_holding
        begun.append((partition, batches, is_holding))

    # ── what was written ─────────────────────────────────────────────────────────────────────────

    def _on_written(self, finished: list[_Done]) -> None:
        self._round = None
        for partition, outcomes, producers in finished:
            self._in_flight_bytes -= sum(batch.nbytes for batch, _ in outcomes)
            partition.appending = False
            partition.in_flight_records = 0
            self._settle(partition, outcomes)
            if producers is not None:
                self._learning -= 1
                partition.learn_producers(producers)
                self._waiting.setdefault(partition.sink, partition.received_at or self._clock())
        if self._waiting:
            self._flush_due()
        self._watch_buffer()

    def _settle(self, partition: LedPartition, outcomes: list[tuple[PreparedBatch, Appended | BasculeError]]) -> None:
        for batch, outcome in outcomes:
            count, nbytes = batch.count, batch.nbytes
            batch.release_records()
            partition.settle(batch, outcome)
            if isinstance(outcome, BasculeError):
                self.stats.failed_batches += 1
                _logger.error(
                    "%s/%d: %d messages could not be stored: %s",
                    partition.stream,
                    partition.number,
                    count,
                    outcome.message,
                )
            elif count:
                self.stats.records += count
                self.stats.bytes += nbytes
                self.stats.batches += 1

    # ── the buffer between ───────────────────────────────────────────────────────────────────────

    @property
    def buffered_bytes(self) -> int:
        return self._in_flight_bytes + sum(sink.waiting_bytes for sink in self._waiting)

    def _watch_buffer(self) -> None:
        if not self._in_flight_bytes and not self._learning and not self._paused and not self._alarmed:
            return
        buffered = self.buffered_bytes
        self.stats.buffered_bytes_max = max(self.stats.buffered_bytes_max, buffered)
        if buffered >= self._buffer_bytes_max // 2 and not self._alarmed:
            self._alarmed = True
            _logger.warning("the disk is slow: %d MiB of received messages wait to be written", buffered >> 20)
        elif buffered < self._buffer_bytes_max // 4:
            self._alarmed = False
        if buffered >= self._buffer_bytes_max and not self._paused:
            self._paused = True
            self.stats.pauses += 1
            _logger.error(
                "the disk is too slow: %d MiB wait to be written, NATS is not read until half of that is",
                buffered >> 20,
            )
            self._source.pause_reading()
        elif self._paused and buffered < self._buffer_bytes_max // 2:
            self._paused = False
            self._source.resume_reading()


class _Writer:
    """A thread that appends one round after the other, and reports each to the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_written: Callable[[list[_Done]], None]) -> None:
        self._loop = loop
        self._on_written = on_written
        self._rounds: queue.SimpleQueue[list[_Work] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def put(self, works: list[_Work]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="bascule-writer", daemon=True)
            self._thread.start()
        self._rounds.put(works)

    def close(self) -> None:
        if self._thread is not None:
            self._rounds.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (works := self._rounds.get()) is not None:
            finished: list[_Done] = []
            for partition, batches, is_holding in works:
                outcomes = [(batch, partition.append(batch)) for batch in batches]
                finished.append((partition, outcomes, partition.find_producers() if is_holding else None))
            self._loop.call_soon_threadsafe(self._on_written, finished)
