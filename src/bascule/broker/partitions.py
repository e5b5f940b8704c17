"""All partitions this server runs. Follows the metadata: whatever an op changed is compared with what runs here, and made so.

Changes are carried out one after the other, in the order of the Raft log, beside the event loop's other work. Deciding looks at the
metadata as it is now, not at the change: what a later op has undone already is not done at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from bascule.broker.auto_pause import AutoPause
from bascule.broker.ingest import Ingest
from bascule.broker.partition import LocalPartition, nats_subject
from bascule.broker.server_directory import PartitionStatus
from bascule.broker.stream_data import StreamData
from bascule.broker.stream_options import StreamSettings, settings_of
from bascule.config.cluster import ClusterConfig
from bascule.core.metadata.state import Change, GroupChanged, Metadata, PartitionChanged, StreamCreated, StreamDeleted
from bascule.core.metadata.streams import EventTimes, Partition, Stream
from bascule.errors import BasculeError
from bascule.kernels.acks import AckWriter
from bascule.kernels.ingest import PartitionSink
from bascule.kernels.publish import Targets
from bascule.net.nats_link import NatsLink
from bascule.net.status import Status

_logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0

_Key = tuple[str, int]


class SinkFactory(Protocol):
    def __call__(self, stream: Stream, number: int, settings: StreamSettings) -> PartitionSink: ...


class Partitions:
    def __init__(
        self,
        server_id: str,
        data: StreamData,
        link: NatsLink,
        ingest: Ingest,
        acks: AckWriter,
        targets: Targets,
        new_sink: SinkFactory,
        auto_pause: AutoPause,
        cluster: ClusterConfig,
    ) -> None:
        self._cluster = cluster
        self._server_id = server_id
        self._data = data
        self._link = link
        self._ingest = ingest
        self._acks = acks
        self._targets = targets
        self._new_sink = new_sink
        self._auto_pause = auto_pause
        self._loop = asyncio.get_running_loop()
        self._running: dict[_Key, LocalPartition] = {}
        self._received: dict[tuple[_Key, int], EventTimes] = {}
        """When messages came to a partition, by partition and stream id: outlives a pause."""
        self._metadata: Callable[[], Metadata] | None = None
        self._queue: deque[tuple[int, tuple[Change, ...]]] = deque()
        self._news = asyncio.Event()
        self._progress = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._has_begun = False

    # ── following the metadata ───────────────────────────────────────────────────────────────────

    def on_changes(self, index: int, changes: tuple[Change, ...]) -> None:
        """From the state machine, as soon as an op was applied. Only queues."""
        self._queue.append((index, changes))
        self._news.set()

    def begin(self, metadata: Callable[[], Metadata]) -> None:
        """From here on changes are carried out. First everything that the metadata holds already."""
        self._metadata = metadata
        self._has_begun = True
        self._task = asyncio.create_task(self._follow(), name="partitions")

    def reload(self) -> None:
        """The metadata came anew, as a whole: everything is compared."""
        if self._metadata is not None:
            state = self._metadata()
            gone = {name for name, _ in self._running if name not in state.streams}
            created: list[Change] = [StreamCreated(name) for name in state.streams]
            deleted: list[Change] = [StreamDeleted(name, state.applied_index) for name in gone]
            self.on_changes(state.applied_index, (*deleted, *created))

    async def settled(self, index: int) -> None:
        """Until the changes up to this index of the Raft log are carried out here."""
        async with self._progress:
            await self._progress.wait_for(lambda: not self._queue or self._queue[0][0] > index)

    async def _follow(self) -> None:
        assert self._metadata is not None
        self._queue.clear()
        self._remove_orphans(self._metadata())
        self.reload()
        while True:
            await self._news.wait()
            self._news.clear()
            while self._queue:
                # What has gathered is done together: one round trip to NATS serves all subscriptions.
                gathered = list(self._queue)
                for index, changes in gathered:
                    await self._carry_out(index, changes)
                await self._round_trip()
                async with self._progress:
                    for _ in gathered:
                        self._queue.popleft()
                    self._progress.notify_all()

    async def _carry_out(self, index: int, changes: tuple[Change, ...]) -> None:
        for change in changes:
            try:
                match change:
                    case StreamCreated(stream):
                        await self._reconcile_stream(stream)
                    case PartitionChanged(stream, number):
                        await self._reconcile(stream, number)
                    case StreamDeleted(stream, stream_id):
                        await self._delete_stream(stream, stream_id)
                    case GroupChanged():
                        pass
            except BasculeError as error:
                # A disk that is full or away may be back in a moment.
                _logger.error("cannot carry out %s, tried again: %s", change, error.message)
                self._loop.call_later(RETRY_SECONDS, self.on_changes, index, (change,))
            except Exception:
                _logger.exception("cannot carry out %s", change)

    def _remove_orphans(self, metadata: Metadata) -> None:
        """Data of streams that were deleted while this server was down, or just when it crashed."""
        for name in self._data.streams_on_disk():
            if name not in metadata.streams:
                self._data.delete_stream(name, metadata.applied_index)

    # ── one stream, one partition ────────────────────────────────────────────────────────────────

    async def _reconcile_stream(self, name: str) -> None:
        assert self._metadata is not None
        stream = self._metadata().streams.get(name)
        if stream is not None:
            for partition in stream.partitions:
                await self._reconcile(name, partition.id)

    async def _reconcile(self, name: str, number: int) -> None:
        assert self._metadata is not None
        stream = self._metadata().streams.get(name)
        partition = None if stream is None else stream.partition(number)
        if stream is None or partition is None:
            return
        self._point_publishers(stream, partition)
        running = self._running.get((name, number))
        if running is not None and (running.stream_id, running.leader_epoch) != (stream.id, partition.leader_epoch):
            await self._stop(running, Status.UNAVAILABLE, "the partition has another leader")
            running = None
        wanted = partition.leader == self._server_id and not partition.paused
        if running is None and wanted:
            self._start(stream, partition)
        elif running is not None and not wanted:
            await self._stop(running, Status.FAILED_PRECONDITION, "partition is paused")
        elif running is not None and running.readonly != partition.readonly:
            running.set_readonly(partition.readonly)

    def _point_publishers(self, stream: Stream, partition: Partition) -> None:
        settings = settings_of(stream, self._cluster)
        self._targets.set(
            stream.name,
            partition.id,
            nats_subject(stream.subject, partition.id),
            paused=partition.paused,
            readonly=partition.readonly,
            concurrency_control=settings.concurrency_control,
        )

    def _start(self, stream: Stream, partition: Partition) -> None:
        settings = settings_of(stream, self._cluster)
        self._data.claim(stream)
        local = LocalPartition(
            stream,
            partition,
            settings,
            lambda: self._data.log(stream.name, partition.id, settings),
            self._new_sink(stream, partition.id, settings),
            self._acks,
            self._loop.call_soon_threadsafe,
            self._send_acks,
        )
        key = (stream.name, partition.id)
        local.received_times = self._received.setdefault((key, stream.id), local.received_times)
        local.sink.dropping = partition.readonly
        if settings.concurrency_control:
            local.sink.next_offset = local.log.log_end_offset
        self._running[key] = local
        self._ingest.attach(local)
        local.subscription_id = self._link.subscribe(
            local.nats_subject.encode(), local.sink, queue=stream.group.encode()
        )
        self._auto_pause.watch(local)

    def _send_acks(self) -> None:
        # Most acks go to clients of this server and leave nothing for NATS.
        if len(self._link.output):
            self._link.schedule_flush()

    async def _stop(self, local: LocalPartition, status: Status, text: str) -> None:
        self._running.pop((local.stream, local.number), None)
        self._auto_pause.forget(local)
        # What this server's own clients published before they could know is still received, and answered.
        await self._round_trip()
        self._link.unsubscribe(local.subscription_id)
        local.end_subscribers(status, text)
        await self._ingest.detach(local)
        local.stop()
        await asyncio.to_thread(self._data.close_log, local.stream, local.number)

    async def _delete_stream(self, name: str, stream_id: int) -> None:
        for key, local in list(self._running.items()):
            if key[0] == name and local.stream_id <= stream_id:
                self._received.pop((key, local.stream_id), None)
                await self._stop(local, Status.NOT_FOUND, "stream deleted")
        assert self._metadata is not None
        if name not in self._metadata().streams:
            self._targets.remove(name)
        await asyncio.to_thread(self._data.delete_stream, name, stream_id)

    async def _round_trip(self) -> None:
        """Until NATS has seen what was sent, and everything that it had for us before has arrived."""
        if self._link.connected:
            with contextlib.suppress(BasculeError):
                await self._link.flush()

    # ── what runs ────────────────────────────────────────────────────────────────────────────────

    def get(self, stream: str, number: int) -> LocalPartition | None:
        """The partition, if this server leads it and it is not paused."""
        return self._running.get((stream, number))

    def __iter__(self) -> Iterator[LocalPartition]:
        return iter(list(self._running.values()))

    def __len__(self) -> int:
        return len(self._running)

    def status(self, stream: str, number: int) -> PartitionStatus:
        local = self.get(stream, number)
        return PartitionStatus(exists=local is not None, is_leader=local is not None and local.is_leader)

    async def stop(self) -> None:
        """The server stops: what has arrived is written, subscribers go to find another server, logs are closed by their store."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for local in list(self._running.values()):
            self._running.pop((local.stream, local.number), None)
            self._auto_pause.forget(local)
            local.end_subscribers(Status.UNAVAILABLE, "the server is stopping")
            await self._ingest.detach(local)
            local.stop()
