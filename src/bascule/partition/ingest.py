"""From the NATS link to the logs of partitions, and back to publishers that wait for an ack.

At a low rate the event loop appends each batch where it was read: no thread is woken, and an ack leaves in the same turn of the loop.
At a high rate, or with a slow disk, a thread appends, so that the socket is still read; messages without an ack gather for a few
milliseconds, because larger batches cost less per message. Between the two lies a bounded buffer. When it is full, reading from NATS
stops; that is counted and logged.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol

from bascule import limits
from bascule.errors import BasculeError
from bascule.kernels.ingest.acks import AckWriter
from bascule.kernels.ingest.sink import PartitionSink, PreparedBatch
from bascule.kernels.nats.protocol import MessageSink, NatsReader
from bascule.kernels.records.producers import ProducerTable
from bascule.log.disk.slowness import SlowWrites
from bascule.log.partition.batches import Appended
from bascule.partition.replica import LedPartition
from bascule.partition.replication.ack_times import AckTimes
from bascule.partition.replication.judgements import Judgements, StillLead
from bascule.proto.api_pb2 import Ack

_logger = logging.getLogger(__name__)

# Sums over hundreds of sinks, several times a round: no Python frame for each.
_waiting_bytes: Callable[[PartitionSink], int] = attrgetter("waiting_bytes")
_waiting_records: Callable[[PartitionSink], int] = attrgetter("waiting_records")

_Work = tuple[LedPartition, list[PreparedBatch], bool, float | None]
"""Batches to append to one partition, whether to look up afterwards which producers its log knows, and when the first message of the
batches was received."""
_Done = tuple[_Work, list[Appended | BasculeError], ProducerTable | BasculeError | None]


class IngestLink(Protocol):
    """What an Ingest needs of the NATS link."""

    @property
    def reader(self) -> NatsReader: ...
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
    """How often reading stopped because the disk was too slow."""
    buffered_bytes_max: int = 0


class Ingest:
    def __init__(
        self,
        link: IngestLink,
        acks: AckWriter,
        *,
        still_lead: StillLead | None = None,
        linger_seconds: float = 0.0,
        buffer_bytes_max: int = limits.INGEST_BUFFER_BYTES_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`still_lead` is asked before a judgement is sent; without it this server leads its partitions for ever."""
        self._link = link
        self._reader = link.reader
        self._acks = acks
        self._judgements = Judgements(acks, still_lead, link.schedule_flush)
        self._linger_seconds = linger_seconds
        self._buffer_bytes_max = buffer_bytes_max
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._partitions: dict[PartitionSink, LedPartition] = {}
        self._waiting: dict[PartitionSink, float] = {}
        """Sinks that hold messages, in the order of their first message, and when that was received."""
        self._frozen: dict[PartitionSink, float | None] = {}
        """Sinks whose partition is about to get another leader: they hold messages, since this time if there are any."""
        self._refusing: dict[PartitionSink, int] = {}
        """Sinks whose partition has another leader, and the error that publishers get until that leader receives messages."""
        self._received_bytes = 0
        self._in_flight_bytes = 0
        self._learning = 0
        """Partitions whose producers are being looked up; their sinks hold messages meanwhile."""
        self._window_bytes = 0
        self._window_began = 0.0
        self._was_busy = False
        self._slow_writes = SlowWrites()
        self._gathering: asyncio.TimerHandle | None = None
        self._gather_until = 0.0
        self._crowd_since: float | None = None
        """Since when messages with acks for many partitions gather."""
        self._crowd_bytes = 0
        self._paused = False
        self._alarmed = False
        self._is_writing = False
        """The thread writes a round: batches of all partitions that had some. Messages that arrive meanwhile form the next round."""
        self._writer = _Writer(self._loop, self._on_written)
        self.stats = IngestStats()
        self.ack_times = AckTimes(clock)

    def attach(self, partition: LedPartition) -> None:
        self._partitions[partition.sink] = partition

    async def detach(self, partition: LedPartition, *, is_deposed: bool = False) -> None:
        """Remove the partition, after its messages are written, or refused if another server leads."""
        if is_deposed:
            self._frozen.pop(partition.sink, None)
            partition.refuse_collected(for_good=True)
        elif partition.sink in self._frozen:
            self.thaw(partition)
        self._flush([partition.sink])
        while partition.appending or partition.sink.waiting_records or partition.sink.is_holding:
            await asyncio.sleep(0.001)
            self._flush([partition.sink])
        self._partitions.pop(partition.sink, None)
        self._waiting.pop(partition.sink, None)

    def close(self) -> None:
        self._judgements.close()
        self._writer.close()

    # ── another leader ───────────────────────────────────────────────────────────────────────────

    def freeze(self, partition: LedPartition) -> None:
        """Hold messages that arrive from now on. Those that have arrived are still written: `flush` until none wait."""
        partition.sink.hold_all()
        self._frozen[partition.sink] = None
        self.flush(partition)

    def flush(self, partition: LedPartition) -> bool:
        """Write what was collected, if possible now. Returns whether anything still waits to be written."""
        sink = partition.sink
        if sink.waiting_records or sink.has_waiting_acks:
            self._waiting.setdefault(sink, self._clock())
            self._flush([sink])
        return bool(partition.appending or sink.waiting_records or sink.has_waiting_acks)

    def thaw(self, partition: LedPartition) -> None:
        """The partition keeps its leader: write what was held."""
        partition.sink.release_held()
        self.go_on(partition)

    def go_on(self, partition: LedPartition) -> None:
        """The hand-over has ended: write what the sink has collected, and what arrives."""
        received_at = self._frozen.pop(partition.sink, None)
        self._waiting.setdefault(partition.sink, self._clock() if received_at is None else received_at)
        self._flush([partition.sink])

    def leave(self, partition: LedPartition) -> tuple[bytes | None, bytes]:
        """The frozen partition has another leader: the hashes of what it received, and what it held. Its sink is not used any more."""
        sink = partition.sink
        self._frozen.pop(sink, None)
        self._partitions.pop(sink, None)
        self._waiting.pop(sink, None)
        return sink.give_up()

    def expect(self, sink: PartitionSink) -> None:
        """The sink holds messages of a partition that this server does not lead yet."""
        self._frozen[sink] = None

    def expect_no_more(self, sink: PartitionSink) -> None:
        self._frozen.pop(sink, None)

    def refuse(self, partition: LedPartition, error: int) -> None:
        """The frozen partition has another leader: refuse its messages, past and future ones, until `forget`."""
        sink = partition.sink
        self._frozen.pop(sink, None)
        self._partitions.pop(sink, None)
        self._refusing[sink] = error
        self._flush([sink])

    def forget(self, partition: LedPartition) -> None:
        self._refusing.pop(partition.sink, None)

    # ── messages that arrive ─────────────────────────────────────────────────────────────────────

    def on_read(self) -> None:
        """The link has read from its socket: append what it brought, at once or later."""
        touched = self._reader.touched()
        if not touched:
            return
        now = self._clock()
        if self._frozen:
            touched = self._not_frozen(touched, now)
        received = self._reader.message_bytes
        if (age := now - self._window_began) > limits.INGEST_RATE_WINDOW_SECONDS:
            # A busy window makes the next one busy from its start: otherwise its first reads would be written in small batches.
            is_recent = age <= 2 * limits.INGEST_RATE_WINDOW_SECONDS
            self._was_busy = is_recent and self._window_bytes > limits.INGEST_INLINE_BYTES
            self._window_began, self._window_bytes = now, 0
        self._window_bytes += received - self._received_bytes
        self._received_bytes = received
        waiting = self._waiting
        if waiting or self._linger_seconds or not self._writes_at_once(now):
            for sink in touched:
                if isinstance(sink, PartitionSink) and sink not in waiting:
                    waiting[sink] = now
        else:
            for sink in touched:
                if isinstance(sink, PartitionSink):
                    self._store(sink, now)
        if waiting:
            self._flush_due(now)
        if self._in_flight_bytes or self._learning or self._paused or self._alarmed:
            self._watch_buffer()

    def _not_frozen(self, touched: list[MessageSink], now: float) -> list[MessageSink]:
        for sink in self._frozen.keys() & touched:
            self._frozen[sink] = self._frozen[sink] or now
        return [sink for sink in touched if sink not in self._frozen]

    def _writes_at_once(self, now: float) -> bool:
        """Whether the event loop appends: little arrives, and the disk has been fast."""
        return (
            self._window_bytes <= limits.INGEST_INLINE_BYTES
            and not self._was_busy
            and not self._in_flight_bytes
            and not self._slow_writes.expected(now)
        )

    def _store(self, sink: PartitionSink, received_at: float) -> None:
        """Append the sink's batches here. The sink waits for the thread if its log is not open, or its producers are not known."""
        partition = self._partitions.get(sink)
        began = self._clock()
        if (
            partition is None
            or not partition.is_open
            or partition.appending
            or sink.is_holding
            or began < self._slow_writes.until
        ):
            self._waiting[sink] = received_at
            return
        for batch in sink.take():
            if batch.has_errors:
                self._judgements.write_errors(partition, batch)
            if batch.count or batch.is_sequenced:
                self._settle(partition, batch, partition.append(batch), received_at)
            else:
                batch.release()
        ended = self._clock()
        self._slow_writes.note(ended - began, ended)

    def _flush_due(self, now: float) -> None:
        """Write the sinks that are full, or that a publisher waits for; the others a moment later.

        At a high rate for many partitions every read brings a few messages for each. A batch costs the same with one message and with
        many, so messages without an ack gather for a few milliseconds; with many partitions at once, those with an ack too.
        """
        delay = 0.0
        if self._linger_seconds:
            due = [sink for sink in self._waiting if sink.waiting_records >= sink.batch_records_max]
        elif self._writes_at_once(now):
            due = list(self._waiting)
        elif self._is_writing:
            due = []
        else:
            due = [sink for sink in self._waiting if sink.waiting_bytes >= limits.INGEST_GATHER_BYTES]
            wanted = [sink for sink in self._waiting if sink.has_waiting_acks]
            if len(wanted) > limits.INGEST_ACK_CROWD:
                delay = limits.INGEST_ACK_GATHER_SECONDS
                if self._crowd_since is None:
                    self._crowd_since, self._crowd_bytes = now, self._received_bytes
            else:
                self._crowd_since = None
                due += [sink for sink in wanted if sink not in due]
        if due:
            self._flush(due)
        if self._waiting:
            self._gather(now, delay or self._linger_seconds or self._gather_seconds())

    def _gather(self, now: float, delay: float) -> None:
        """Write what waits after `delay` seconds, or earlier if that is due already."""
        if self._gathering is not None:
            if self._gather_until <= now + delay:
                return
            self._gathering.cancel()
        self._gather_until = now + delay
        self._gathering = self._loop.call_later(delay, self._gathered)

    def _gather_seconds(self) -> float:
        crowd = 1 + len(self._waiting) / limits.INGEST_GATHER_CROWD
        return min(limits.INGEST_GATHER_SECONDS * crowd, limits.INGEST_GATHER_SECONDS_MAX)

    def _gathered(self) -> None:
        self._gathering = None
        if self._crowd_grows(now := self._clock()):
            self._gather(now, limits.INGEST_ACK_GATHER_SECONDS)
            return
        self._crowd_since = None
        self._flush(list(self._waiting))
        if self._waiting:
            self._flush_due(self._clock())  # a round is being written: these wait for the next one

    def _crowd_grows(self, now: float) -> bool:
        """Whether messages with acks for many partitions still arrive and fill their batches.

        When no more arrive, the publishers wait for acks, and so does everything that they would send next.
        """
        if self._crowd_since is None or now - self._crowd_since >= limits.INGEST_ACK_GATHER_SECONDS_MAX:
            return False
        arrived, self._crowd_bytes = self._received_bytes - self._crowd_bytes, self._received_bytes
        records = sum(map(_waiting_records, self._waiting))
        return arrived > 0 and records < limits.INGEST_ACK_GATHER_RECORDS * len(self._waiting)

    def _flush(self, sinks: list[PartitionSink]) -> None:
        """Write the sinks now: here if the rate is low, else in the thread's next round."""
        works: list[_Work] = []
        writes_here = self._writes_at_once(self._clock())
        for sink in sinks:
            partition = self._partitions.get(sink)
            if partition is None:
                self._refuse(sink)
            elif self._is_writing or partition.appending:
                continue
            elif writes_here and partition.is_open and not sink.is_holding:
                self._store(sink, self._waiting.pop(sink, 0.0) or self._clock())
            else:
                self._add_work(partition, self._waiting.pop(sink, None), works)
        if works:
            self._is_writing = True
            self._writer.put(works)
        if len(self._reader.output):
            self._link.schedule_flush()

    def _refuse(self, sink: PartitionSink) -> None:
        """The partition is not led here any more."""
        self._waiting.pop(sink, None)
        error = self._refusing.get(sink, Ack.Error.UNKNOWN)
        sink.forget_producers(error, for_good=True)
        for batch in sink.take():
            self._acks.write_errors(batch, judged=False)
            self._acks.write_judgements(batch, Ack.Error.UNKNOWN)
            self._acks.reject(batch, error)
            batch.release()

    def _add_work(self, partition: LedPartition, received_at: float | None, works: list[_Work]) -> None:
        batches = []
        for batch in partition.sink.take():
            if batch.has_errors:
                self._judgements.write_errors(partition, batch)
            if batch.count or batch.is_sequenced:
                batches.append(batch)
                partition.in_flight_records += batch.count
                self._in_flight_bytes += batch.nbytes
            else:
                batch.release()
        is_holding = partition.sink.is_holding
        if batches or is_holding:
            partition.appending = True
            self._learning += is_holding
            works.append((partition, batches, is_holding, received_at))

    # ── batches that were appended ───────────────────────────────────────────────────────────────

    def _on_written(self, finished: list[_Done]) -> None:
        self._is_writing = False
        for (partition, batches, _, received_at), outcomes, producers in finished:
            partition.appending = False
            partition.in_flight_records = 0
            for batch, outcome in zip(batches, outcomes, strict=True):
                self._in_flight_bytes -= batch.nbytes
                self._settle(partition, batch, outcome, received_at)
            if producers is not None:
                self._learning -= 1
                partition.learn_producers(producers)
                self._waiting.setdefault(partition.sink, received_at or self._clock())
        if len(self._reader.output):
            self._link.schedule_flush()
        if self._waiting:
            self._flush_due(self._clock())
        self._watch_buffer()

    def _settle(
        self, partition: LedPartition, batch: PreparedBatch, outcome: Appended | BasculeError, received_at: float | None
    ) -> None:
        stats = self.stats
        if isinstance(outcome, BasculeError):
            stats.failed_batches += 1
        elif batch.count:
            stats.records += batch.count
            stats.bytes += batch.nbytes
            stats.batches += 1
        partition.settle(batch, outcome, received_at)

    # ── the buffer ───────────────────────────────────────────────────────────────────────────────

    @property
    def buffered_bytes(self) -> int:
        waiting = self._waiting.keys() | self._frozen.keys() if self._frozen else self._waiting
        return self._in_flight_bytes + sum(map(_waiting_bytes, waiting))

    def _watch_buffer(self) -> None:
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
                "the disk is too slow: %d MiB of received messages wait to be written; reading from NATS stops until half are",
                buffered >> 20,
            )
            self._link.pause_reading()
        elif self._paused and buffered < self._buffer_bytes_max // 2:
            self._paused = False
            self._link.resume_reading()


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
            for work in works:
                partition, batches, is_holding, _ = work
                outcomes = [partition.append(batch) for batch in batches]
                finished.append((work, outcomes, partition.find_producers() if is_holding else None))
            self._loop.call_soon_threadsafe(self._on_written, finished)
