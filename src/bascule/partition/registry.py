"""The partitions that this server runs. Follows the metadata: starts, stops and updates replicas as each change requires.

Changes are carried out one after the other, in the order of the Raft log. Each one is compared with the present metadata, not with the
change: an op that a later op has undone is not carried out at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from bascule.config.sections.cluster import ClusterConfig
from bascule.errors import BasculeError, StateError
from bascule.kernels.calls.targets import Targets
from bascule.kernels.ingest.acks import AckWriter
from bascule.kernels.ingest.sink import PartitionSink
from bascule.log import PartitionLog
from bascule.log.recovery.report import RecoveryReport
from bascule.metadata.controller import Controller
from bascule.metadata.core.model.streams import EventTimestamps, Partition, Stream
from bascule.metadata.core.state import (
    Change,
    ClusterMetadata,
    PartitionChanged,
    ServerChanged,
    StreamCreated,
    StreamRemoved,
)
from bascule.metadata.feed import MetadataFeed
from bascule.metadata.partition_starts import PartitionStatus
from bascule.metadata.stream_options import RESERVED_STREAMS, StreamSettings, interval_warnings, settings_of
from bascule.names import AUDIT_STREAM
from bascule.net.grpc.status import Status
from bascule.net.nats.link import NatsLink
from bascule.partition.auto_pause import AutoPause
from bascule.partition.core.follower import Follower, FollowerState
from bascule.partition.core.follower_events import Flaw
from bascule.partition.failed_changes import FailedChanges, ReplicaRestart, Step
from bascule.partition.hand_over import HandOverReport, HandOvers
from bascule.partition.ingest import Ingest
from bascule.partition.reassignments import HAND_OVER_SECONDS, Reassignments
from bascule.partition.repairs import Opened, Repairs
from bascule.partition.replica import FollowedPartition, LedPartition, LocalPartition, nats_subject, replica_options
from bascule.partition.replication.following import Following
from bascule.partition.replication.leading import Leading
from bascule.partition.replication.link import ReplicationLink
from bascule.partition.replication.replicator import Replicator
from bascule.partition.states import LastKnown, LastKnownOffsets, ReplicaState, replica_state
from bascule.partition.stream_data import StreamData
from bascule.partition.succession import FLUSH_SECONDS_MAX, Successions
from bascule.partition.succession_calls import SuccessionCalls

_logger = logging.getLogger(__name__)

_Key = tuple[str, int]


class SinkFactory(Protocol):
    def __call__(self, stream: Stream, number: int, settings: StreamSettings) -> PartitionSink: ...


class Partitions:
    def __init__(
        self,
        server_id: str,
        controller: Controller,
        feed: MetadataFeed,
        data: StreamData,
        link: NatsLink,
        replication: ReplicationLink,
        ingest: Ingest,
        acks: AckWriter,
        targets: Targets,
        new_sink: SinkFactory,
        auto_pause: AutoPause,
        cluster: ClusterConfig,
        succession_calls: SuccessionCalls,
        *,
        seals_internal_streams: bool,
    ) -> None:
        self._cluster = cluster
        self._seals_internal_streams = seals_internal_streams
        self._controller = controller
        self._repairs = Repairs(server_id, controller, self._restart)
        self._replicator = Replicator(replication, server_id, controller, self._flush_acks, self._repairs.on_broken)
        self._hand_overs = HandOvers(
            server_id,
            controller,
            ingest,
            succession_calls,
            lambda: link.flush(FLUSH_SECONDS_MAX),
            self.settled,
            self._has_new_leader,
            lambda local: self._link.unsubscribe(local.subscription_id),
        )
        self.successions = Successions(server_id, controller, link, ingest, new_sink, cluster)
        self._reassignments = Reassignments(
            server_id,
            controller,
            lambda local, successor: self._hand_overs.hand_over(local, successor, timeout=HAND_OVER_SECONDS),
        )
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
        self._unheard: set[_Key] = set()
        """Partitions that are led here and whose subscriptions NATS may not have received yet."""
        self._received: dict[tuple[_Key, int], EventTimestamps] = {}
        """Times of received messages, by partition and stream id. Kept during a pause."""
        self._last_known = LastKnownOffsets(data)
        self._found: dict[_Key, Opened] = {}
        """States of logs that were opened for replicas which have not started."""
        self._unfinished: set[_Key] = set()
        """Partitions whose start or stop failed halfway: the next attempt stops them first."""
        self._warned: set[int] = set()
        """Ids of streams whose settings were checked."""
        self._failed = FailedChanges(self._enqueue)
        self._queue: deque[tuple[int, tuple[Change | ReplicaRestart, ...]]] = deque()
        self._news = asyncio.Event()
        self._progress = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._follows = True
        feed.subscribe(self)

    @property
    def _metadata(self) -> ClusterMetadata:
        return self._controller.metadata

    # ── following the metadata ───────────────────────────────────────────────────────────────────

    def on_changes(self, index: int, changes: tuple[Change, ...]) -> None:
        """Called by the metadata feed when an op was applied. Queues the changes."""
        self._queue.append((index, changes))
        self._news.set()

    def _enqueue(self, index: int, step: Step) -> None:
        self._queue.append((index, (step,)))
        self._news.set()

    def _restart(self, stream: str, number: int) -> None:
        self._enqueue(0, ReplicaRestart(stream, number))

    def begin(self) -> None:
        """From now on changes are carried out; first the whole metadata."""
        self._task = asyncio.create_task(self._follow(), name="partitions")

    def reload(self) -> None:
        """The whole metadata was replaced: compare everything."""
        if self._task is not None:
            state = self._metadata
            gone = {name for name, _ in self._running if name not in state.streams}
            created: list[Change] = [StreamCreated(name) for name in state.streams]
            deleted: list[Change] = [StreamRemoved(name, state.applied_index) for name in gone]
            self.on_changes(state.applied_index, (*deleted, *created))

    async def settled(self, index: int) -> None:
        """Wait until the changes up to this index of the Raft log are carried out here."""
        async with self._progress:
            await self._progress.wait_for(lambda: not self._queue or self._queue[0][0] > index)

    async def _follow(self) -> None:
        self._queue.clear()
        self._remove_orphans()
        self.reload()
        while True:
            await self._news.wait()
            self._news.clear()
            while self._queue:
                # Queued changes are carried out together: one round trip to NATS serves all subscriptions.
                gathered = list(self._queue)
                for index, changes in gathered:
                    await self._carry_out(index, changes)
                await self._round_trip()
                self._unheard.clear()
                async with self._progress:
                    for _ in gathered:
                        self._queue.popleft()
                    self._progress.notify_all()

    async def _carry_out(self, index: int, changes: tuple[Change | ReplicaRestart, ...]) -> None:
        for change in changes:
            for step in self._steps(change):
                try:
                    await self._take(step)
                except Exception as error:
                    self._failed.add(index, step, error)
                else:
                    self._failed.discard(step)

    def _steps(self, change: Change | ReplicaRestart) -> list[Step]:
        """The change as one step for each partition, so that a partition that fails does not hold up the others."""
        match change:
            case StreamCreated(name):
                stream = self._metadata.streams.get(name)
                return (
                    [] if stream is None else [PartitionChanged(name, partition.id) for partition in stream.partitions]
                )
            case ServerChanged(server) if server == self._server_id:
                return [PartitionChanged(*key) for key in self._running]
            case PartitionChanged() | StreamRemoved() | ReplicaRestart():
                return [change]
        return []

    async def _take(self, step: Step) -> None:
        match step:
            case PartitionChanged(stream, number):
                await self._reconcile(stream, number)
            case StreamRemoved(stream, stream_id):
                await self._delete_stream(stream, stream_id)
            case ReplicaRestart(stream, number):
                await self._start_again(stream, number)

    def _remove_orphans(self) -> None:
        """Delete the data of streams that were deleted while this server was down, or just when it crashed."""
        state = self._metadata
        for name in self._data.streams_on_disk():
            if name not in state.streams:
                self._enqueue(state.applied_index, StreamRemoved(name, state.applied_index))

    # ── one stream, one partition ────────────────────────────────────────────────────────────────

    async def _reconcile(self, name: str, number: int) -> None:
        metadata = self._metadata
        stream = metadata.streams.get(name)
        partition = None if stream is None else stream.partition(number)
        if stream is None or partition is None:
            return
        self._point_publishers(stream, partition)
        running = self._running.get((name, number))
        if running is not None and not self._is_as_wanted(running, stream, partition):
            await self._stop(running, *self._why_stop(partition), closes=self._is_unwanted(stream, partition, running))
            running = None
        if self._server_id not in partition.replicas:
            await asyncio.to_thread(self._data.delete_log, name, number)
        elif running is None and not partition.paused:
            await self._start(stream, partition)
        elif running is not None:
            if isinstance(running, LedPartition) and running.leading is None and len(partition.replicas) > 1:
                # Its log was not needed so far; now it has followers, and they fetch from it.
                await self._open(stream, partition, settings_of(stream, self._cluster))
                _ = running.log
            self._refresh(running, stream, partition)

    def _is_as_wanted(self, running: LocalPartition, stream: Stream, partition: Partition) -> bool:
        """Whether the replica still has the right role, stream and leader epoch."""
        return (
            (running.stream_id, running.leader_epoch) == (stream.id, partition.leader_epoch)
            and running.is_leader == (partition.leader == self._server_id)
            and self._server_id in partition.replicas
            and not partition.paused
            and (stream.name, partition.id) not in self._unfinished
            and not self._begins_anew(running, partition)
        )

    def _begins_anew(self, running: LocalPartition, partition: Partition) -> bool:
        """Whether the replica has another replica epoch in the metadata: it has left the in-sync set, or its server restarted."""
        following = running.following if isinstance(running, FollowedPartition) else None
        replica_epoch = self._metadata.replica_epoch(partition, self._server_id)
        return following is not None and following.core.replica_epoch != replica_epoch

    def _is_unwanted(self, stream: Stream, partition: Partition, running: LocalPartition) -> bool:
        """Whether this server does not use the log any more."""
        return partition.paused or self._server_id not in partition.replicas or running.stream_id != stream.id

    def _why_stop(self, partition: Partition) -> tuple[Status, str]:
        if partition.paused:
            return Status.FAILED_PRECONDITION, "partition is paused"
        return Status.UNAVAILABLE, "the partition has another leader"

    def _refresh(self, running: LocalPartition, stream: Stream, partition: Partition) -> None:
        self._apply_settings(running, settings_of(stream, self._cluster))
        if running.readonly != partition.readonly:
            running.set_readonly(partition.readonly)
        if isinstance(running, LedPartition):
            if running.leading is not None:
                running.leading.refresh(partition)
            self._reassignments.look_at(running, partition)
        elif self._server_id not in partition.in_sync_replicas:
            running.end_subscribers(Status.UNAVAILABLE, "this replica is not in sync any more")

    def _apply_settings(self, running: LocalPartition, settings: StreamSettings) -> None:
        if settings == running.settings:
            return
        running.settings = settings
        self._data.set_options(running.stream, running.number, settings)
        if isinstance(running, LedPartition):
            self._auto_pause.forget(running)
            self._auto_pause.watch(running)

    def _point_publishers(self, stream: Stream, partition: Partition) -> None:
        settings = settings_of(stream, self._cluster)
        # Without a secret no broker writes audit records, and no client may.
        is_closed = stream.name == AUDIT_STREAM and not self._seals_internal_streams
        self._targets.set(
            stream.name,
            partition.id,
            nats_subject(stream.subject, partition.id),
            paused=partition.paused,
            readonly=partition.readonly or is_closed,
            concurrency_control=settings.concurrency_control,
            receiver=partition.leader if self._seals_internal_streams and stream.name in RESERVED_STREAMS else None,
        )

    # ── starting ─────────────────────────────────────────────────────────────────────────────────

    async def _start(self, stream: Stream, partition: Partition) -> None:
        settings = settings_of(stream, self._cluster)
        self._warn_of_short_intervals(stream)
        self._data.claim(stream)
        if len(partition.replicas) > 1:
            # A replicated partition needs its log at once; one without followers opens it on first use.
            found = await self._open(stream, partition, settings)
            if self._repairs.leaves_first(stream.name, (stream.id, partition.id), partition, found):
                return
        self._found.pop((stream.name, partition.id), None)
        self._unfinished.add((stream.name, partition.id))
        if partition.leader == self._server_id:
            self._become_leader(stream, partition, settings)
        else:
            self._become_follower(stream, partition, settings)
        self._unfinished.discard((stream.name, partition.id))

    def _warn_of_short_intervals(self, stream: Stream) -> None:
        if stream.id not in self._warned:
            self._warned.add(stream.id)
            for text in interval_warnings(stream):
                _logger.warning("stream %s: %s", stream.name, text)

    async def _open(self, stream: Stream, partition: Partition, settings: StreamSettings) -> Opened:
        key = (stream.id, partition.id)
        flaw = self._repairs.flaw_of(key, partition)
        if flaw is not None:
            await self._remove_log(stream.name, partition.id, flaw)
            self._repairs.was_removed(key)
        had_files = self._data.is_on_disk(stream.name, partition.id)
        log = self._data.log(stream, partition.id, settings)
        if log.is_loaded:
            return self._found.get((stream.name, partition.id), Opened())
        report = await asyncio.to_thread(log.open)
        for line in report.lines():
            _logger.warning("%s/%d: %s", stream.name, partition.id, line)
        found = self._examine(stream, report, had_files)
        self._found[stream.name, partition.id] = found
        return found

    async def _remove_log(self, name: str, number: int, flaw: Flaw) -> None:
        if flaw is Flaw.OUTDATED:
            await asyncio.to_thread(self._data.delete_log, name, number)
            _logger.warning("%s/%d: the outdated log was deleted", name, number)
        else:
            place = await asyncio.to_thread(self._data.set_aside, name, number)
            _logger.error("%s/%d: the %s log was moved to %s", name, number, flaw.value, place)
        self._found.pop((name, number), None)

    def _examine(self, stream: Stream, report: RecoveryReport, had_files: bool) -> Opened:
        """What the opened log has lost since this server last ran."""
        if report.damage or report.missing:
            return Opened("; ".join(report.lines()), is_damaged=True)
        if report.cut_reason is not None:
            return Opened(f"its log was cut at offset {report.cut_from_offset}: {report.cut_reason}")
        if not had_files and stream.id < self._metadata.server_epochs.get(self._server_id, 0):
            return Opened("its files are gone, or never were")
        return Opened()

    def _become_leader(self, stream: Stream, partition: Partition, settings: StreamSettings) -> None:
        inherited = self.successions.claim(stream, partition)
        local = LedPartition(
            stream,
            partition,
            settings,
            lambda settings: self._data.log(stream, partition.id, settings),
            self._new_sink(stream, partition.id, settings) if inherited is None else inherited.sink,
            self._acks,
            lambda log: self._leading(stream, partition, settings, log),
        )
        self._unheard.add((stream.name, partition.id))
        self._begin(local, stream, partition)
        local.sink.dropping = partition.readonly
        if settings.concurrency_control or len(partition.replicas) > 1:
            local.sink.next_offset = local.log.log_end_offset
        self._ingest.attach(local)
        if inherited is None:
            local.subscription_id = self._link.subscribe(
                local.nats_subject.encode(), local.sink, queue=stream.group.encode()
            )
        else:
            local.subscription_id = inherited.subscription_id
            self.successions.lead(inherited, local)
        self._auto_pause.watch(local)
        self._reassignments.look_at(local, partition)
        self._look_for_damage(local, local.leading)

    def _leading(self, stream: Stream, partition: Partition, settings: StreamSettings, log: PartitionLog) -> Leading:
        leading = Leading(
            (stream.id, partition.id),
            stream.name,
            partition,
            log,
            replica_options(settings, self._cluster),
            self._replicator,
            self._acks,
            self._ingest.ack_times,
        )
        self._replicator.attach(leading)
        return leading

    def _become_follower(self, stream: Stream, partition: Partition, settings: StreamSettings) -> None:
        local = FollowedPartition(
            stream, partition, settings, lambda settings: self._data.log(stream, partition.id, settings)
        )
        self._begin(local, stream, partition)
        if not self._follows:
            return
        key = (stream.id, partition.id)
        core = Follower(
            partition.leader,
            partition.leader_epoch,
            replica_options(settings, self._cluster),
            replica_epoch=self._metadata.replica_epoch(partition, self._server_id),
            data_loss_epoch=partition.data_loss_epoch,
            first_number=self._replicator.next_number(key),
        )
        local.following = Following(key, stream.name, core, local.log, self._replicator)
        self._replicator.attach(local.following)
        local.following.begin()
        self._look_for_damage(local, local.following)

    def _begin(self, local: LocalPartition, stream: Stream, partition: Partition) -> None:
        key = (stream.name, partition.id)
        local.received_times = self._received.setdefault((key, stream.id), local.received_times)
        self._running[key] = local
        if local.is_open:
            self._last_known.forget(stream.id, partition.id)

    def _look_for_damage(self, local: LocalPartition, role: Leading | Following | None) -> None:
        """Start a repair if recovery found damage when it opened the log."""
        if role is None:
            return
        report = local.log.open()
        if report.damage or report.missing:
            self._repairs.on_broken(role, "; ".join(report.lines()), Flaw.DAMAGED)

    def _flush_acks(self) -> None:
        # Most acks go to clients of this server and write nothing to NATS.
        if len(self._link.output):
            self._link.schedule_flush()

    # ── stopping ─────────────────────────────────────────────────────────────────────────────────

    async def _stop(self, local: LocalPartition, status: Status, text: str, *, closes: bool) -> None:
        """`closes`: close the log, too. Otherwise the next role takes it over as it is."""
        key = (local.stream, local.number)
        self._running.pop(key, None)
        try:
            if isinstance(local, LedPartition):
                await self._stop_leading(local, status, text, is_deposed=not closes)
            else:
                local.end_subscribers(status, text)
                await self._stop_following(local)
            if closes:
                self._last_known.note(local)
                await asyncio.to_thread(self._data.close_log, *key)
        except Exception:
            self._running[key] = local
            self._unfinished.add(key)
            raise
        self._unfinished.discard(key)

    async def _stop_leading(self, local: LedPartition, status: Status, text: str, *, is_deposed: bool) -> None:
        self._auto_pause.forget(local)
        local.end_subscribers(status, text)
        if self._hand_overs.is_given_away(local):
            self._hand_overs.on_stopped(local)
        else:
            await self._stop_receiving(local, is_deposed=is_deposed)
        local.stop()
        if local.leading is not None:
            self._replicator.detach(local.leading)

    async def _stop_receiving(self, local: LedPartition, *, is_deposed: bool) -> None:
        self.successions.leave(local)
        if is_deposed:
            if local.leading is not None:
                local.leading.holds_leader_acks = True  # another server leads: LEADER acks would be false
        else:
            # Messages that this server's own clients have published before are still received, and answered.
            await self._round_trip()
        self._link.unsubscribe(local.subscription_id)
        await self._ingest.detach(local, is_deposed=is_deposed)

    async def _stop_following(self, local: LocalPartition) -> None:
        if isinstance(local, FollowedPartition) and local.following is not None:
            self._replicator.detach(local.following)
            await local.following.stop()

    async def _start_again(self, name: str, number: int) -> None:
        """Start the replica again after it has left the in-sync set."""
        running = self._running.get((name, number))
        if running is not None and not running.is_leader:
            await self._stop(running, Status.UNAVAILABLE, "the replica is rebuilt", closes=True)
        await self._reconcile(name, number)

    async def _delete_stream(self, name: str, stream_id: int) -> None:
        for key, local in list(self._running.items()):
            if key[0] == name and local.stream_id <= stream_id:
                self._received.pop((key, local.stream_id), None)
                self._last_known.forget(local.stream_id, local.number)
                await self._stop(local, Status.NOT_FOUND, "stream deleted", closes=True)
                self._replicator.forget((local.stream_id, local.number))
        if name not in self._metadata.streams:
            self._targets.remove(name)
        await asyncio.to_thread(self._data.delete_stream, name, stream_id)

    async def _round_trip(self) -> None:
        """Wait until NATS has received all output, and all messages that it had sent before have arrived."""
        if self._link.connected:
            with contextlib.suppress(BasculeError):
                await self._link.flush()

    # ── what runs ────────────────────────────────────────────────────────────────────────────────

    @property
    def has_begun(self) -> bool:
        """Whether the metadata of the cluster is known and carried out."""
        return self._task is not None

    def get(self, stream: str, number: int) -> LocalPartition | None:
        """The replica of the partition that runs here, in either role."""
        return self._running.get((stream, number))

    def last_known(self, stream: str, number: int) -> LastKnown | None:
        """Offsets and times of a replica here whose log is closed, from when it was last open; None without such a replica."""
        found = self._metadata.streams.get(stream)
        partition = None if found is None else found.partition(number)
        if found is None or partition is None or self._server_id not in partition.replicas:
            return None
        return self._last_known.of(found, number)

    def led(self, stream: str, number: int) -> LedPartition | None:
        """The partition, if this server leads it and it is not paused."""
        local = self._running.get((stream, number))
        return local if isinstance(local, LedPartition) else None

    def all_led(self) -> list[LedPartition]:
        return [local for local in self._running.values() if isinstance(local, LedPartition)]

    def __iter__(self) -> Iterator[LocalPartition]:
        return iter(list(self._running.values()))

    def __len__(self) -> int:
        return len(self._running)

    @property
    def failing_count(self) -> int:
        """Partitions that are not as the metadata wants them because the last attempt failed."""
        return len(self._failed)

    def status(self, stream: str, number: int) -> PartitionStatus:
        """`is_leader` once every message published from now on arrives here: other servers report that to clients."""
        local = self.get(stream, number)
        is_starting = (stream, number) in self._unheard or (stream, number) in self._unfinished
        is_leader = local is not None and local.is_leader and not is_starting
        has_failed = self._failed.has(stream, number)
        stream_id = 0 if local is None else local.stream_id
        return PartitionStatus(local is not None, is_leader, has_failed, stream_id)

    def replica_states(self) -> list[ReplicaState]:
        """States of all partitions that are led here and whose log is open."""
        found = (replica_state(local) for local in self.all_led())
        return [state for state in found if state is not None]

    def end_replicated_readers(self, text: str) -> None:
        """End the readers of replicated partitions: other servers have the same messages, and newer ones."""
        streams = self._metadata.streams
        for local in list(self._running.values()):
            stream = streams.get(local.stream)
            partition = None if stream is None else stream.partition(local.number)
            if partition is not None and len(partition.replicas) > 1:
                local.end_subscribers(Status.UNAVAILABLE, text)

    # ── handing over ─────────────────────────────────────────────────────────────────────────────

    async def hand_over(self, stream: str, number: int, successor: str | None = None, *, timeout: float) -> str:
        """Give the leadership to another in-sync replica, or to `successor`; the new leader. Raises StateError, Unavailable."""
        local = self.led(stream, number)
        if local is None:
            raise StateError(f"this server does not lead {stream}/{number}")
        return await self._hand_overs.hand_over(local, successor, timeout=timeout)

    async def hand_over_all(self, *, timeout: float) -> HandOverReport:
        """Hand over every partition that this server leads and another server could."""
        return await self._hand_overs.hand_over_all(self.all_led(), timeout=timeout)

    def _has_new_leader(self, local: LedPartition) -> bool:
        """Whether the new leader has answered the replica here, or there is no replica here any more."""
        running = self._running.get((local.stream, local.number))
        if isinstance(running, FollowedPartition) and running.following is not None:
            return running.following.core.state in (FollowerState.FETCHING, FollowerState.WRITING)
        return running is not local

    async def stop_following(self) -> None:
        """Before the server stops: replicas here stop fetching, so that no leader adds them to the in-sync set again."""
        self._follows = False
        for local in list(self._running.values()):
            await self._stop_following(local)

    async def stop(self) -> None:
        """Stop all replicas: messages that have arrived are written, subscribers are sent elsewhere. The store closes the logs."""
        self._repairs.close()
        self._reassignments.close()
        self._failed.close()
        self.successions.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for local in list(self._running.values()):
            self._running.pop((local.stream, local.number), None)
            local.end_subscribers(Status.UNAVAILABLE, "the server is stopping")
            if isinstance(local, LedPartition):
                self._auto_pause.forget(local)
                self.successions.leave(local)
                await self._ingest.detach(local)
                local.stop()
            else:
                await self._stop_following(local)
        self._replicator.close()
