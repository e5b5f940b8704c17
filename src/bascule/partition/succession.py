"""Partitions that this server takes over from a leader that hands them over.

The server subscribes to the partition's subject before the leader stops, and holds the messages that arrive. When it leads, the leader
before sends a note: the hashes of all messages that it has received in that time, and those messages that it has not stored. The server
stores the latter, then those of its held messages that the leader before has not received. The reasons: docs/internals/replication.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from bascule import limits
from bascule.config.sections.cluster import ClusterConfig
from bascule.errors import BasculeError, StateError, Unavailable
from bascule.kernels.ingest.sealed import SealedSink
from bascule.kernels.ingest.sink import PartitionSink
from bascule.metadata.controller import Controller
from bascule.metadata.core.model.streams import Partition, Stream
from bascule.metadata.stream_options import StreamSettings, settings_of
from bascule.net.nats.link import NatsLink
from bascule.partition.ingest import Ingest
from bascule.partition.replica import LedPartition, nats_subject
from bascule.proto.internal_pb2 import SuccessionRequest

LISTEN_SECONDS_MAX: Final = 30.0
"""Maximum time from listening to leading; after it the server stops listening."""
NOTE_SECONDS_MAX: Final = 5.0
"""Maximum time from leading to the note of the leader before. After it the held messages are dropped, as if that leader had failed."""
COPIES_SECONDS: Final = 5.0
"""How long copies of messages that the leader before received are recognised."""
FLUSH_SECONDS_MAX: Final = 1.0

HELD_BYTES_MAX: Final = 64 * limits.MIB
"""Messages of one partition that a successor holds until it leads. With more it drops them: their publishers get no answer."""
NOTE_PARTS_MAX: Final = 4096
"""Parts of the note with which a leader leaves a partition to its successor; a longer note is refused."""

_logger = logging.getLogger(__name__)

_Key = tuple[str, int]


@dataclass(slots=True, eq=False)
class Inheritance:
    """A partition whose messages this server receives and holds."""

    stream: str
    stream_id: int
    number: int
    leader_epoch: int
    """Of the leader that hands it over."""
    sink: PartitionSink
    subscription_id: int
    deadline: asyncio.TimerHandle
    local: LedPartition | None = None
    """The partition, once this server leads it."""
    parts: list[bytes | None] = field(default_factory=list)
    note: SuccessionRequest | None = None
    """The last part of the note, once all parts have arrived."""

    @property
    def key(self) -> _Key:
        return self.stream, self.number


class Successions:
    def __init__(
        self,
        server_id: str,
        controller: Controller,
        link: NatsLink,
        ingest: Ingest,
        new_sink: Callable[[Stream, int, StreamSettings], PartitionSink],
        cluster: ClusterConfig,
    ) -> None:
        self._server_id = server_id
        self._controller = controller
        self._link = link
        self._ingest = ingest
        self._new_sink = new_sink
        self._cluster = cluster
        self._loop = asyncio.get_running_loop()
        self._open: dict[_Key, Inheritance] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # ── requests of the leader that hands over ───────────────────────────────────────────────────

    async def on_request(self, request: SuccessionRequest) -> None:
        match request.step:
            case SuccessionRequest.LISTEN:
                await self._listen(request)
            case SuccessionRequest.TAKE:
                self._take(request)
            case SuccessionRequest.CANCEL:
                one = self._find(request)
                if one is not None and one.local is None:
                    self._abandon(one)

    async def _listen(self, request: SuccessionRequest) -> None:
        stream = self._controller.metadata.streams.get(request.stream)
        partition = None if stream is None else stream.partition(request.partition)
        if stream is None or partition is None or stream.id != request.stream_id:
            raise StateError(f"{self._server_id} does not know {request.stream}/{request.partition}")
        if partition.leader_epoch != request.leader_epoch or self._server_id not in partition.in_sync_replicas:
            raise StateError(f"{self._server_id} knows another leader of {stream.name}/{partition.id}")
        known = self._open.get((stream.name, partition.id))
        if known is not None and known.local is not None:
            raise StateError(f"{self._server_id} is still taking {stream.name}/{partition.id} over")
        if known is not None:
            self._abandon(known)
        sink = self._new_sink(stream, partition.id, settings_of(stream, self._cluster))
        if stream.group or isinstance(sink, SealedSink):
            raise StateError(f"every message of {stream.name}/{partition.id} has one receiver")
        sink.hold_all(HELD_BYTES_MAX)
        self._ingest.expect(sink)
        subject = nats_subject(stream.subject, partition.id).encode()
        one = Inheritance(
            stream.name,
            stream.id,
            partition.id,
            partition.leader_epoch,
            sink,
            self._link.subscribe(subject, sink),
            self._loop.call_later(LISTEN_SECONDS_MAX, self._expire, stream.name, partition.id),
        )
        self._open[one.key] = one
        try:
            await self._link.flush(FLUSH_SECONDS_MAX)
        except BasculeError:
            self._abandon(one)
            raise

    def _take(self, request: SuccessionRequest) -> None:
        one = self._find(request)
        if one is None:
            raise StateError(f"{self._server_id} does not listen for {request.stream}/{request.partition}")
        if not one.parts:
            if not 0 < request.parts <= NOTE_PARTS_MAX:
                raise StateError(f"a note of {request.parts} parts is refused")
            one.parts = [None] * request.parts
        if request.parts != len(one.parts) or request.part >= request.parts:
            raise StateError(f"part {request.part} of {request.parts} does not belong to the note")
        one.parts[request.part] = request.data
        if None not in one.parts:
            one.note = request
            self._finish(one)

    def _find(self, request: SuccessionRequest) -> Inheritance | None:
        one = self._open.get((request.stream, request.partition))
        if one is None or (one.stream_id, one.leader_epoch) != (request.stream_id, request.leader_epoch):
            return None
        return one

    # ── leading ──────────────────────────────────────────────────────────────────────────────────

    def claim(self, stream: Stream, partition: Partition) -> Inheritance | None:
        """The sink that already receives the messages of a partition that this server leads from now on."""
        one = self._open.get((stream.name, partition.id))
        if one is not None and (one.local is not None or one.stream_id != stream.id):
            self._abandon(one)
            return None
        return one

    def lead(self, one: Inheritance, local: LedPartition) -> None:
        """This server leads the partition: its messages are stored when the note has arrived."""
        one.local = local
        one.deadline.cancel()
        one.deadline = self._loop.call_later(NOTE_SECONDS_MAX, self._expire, one.stream, one.number)
        self._finish(one)

    def leave(self, local: LedPartition) -> None:
        """This server stops to lead the partition."""
        one = self._open.get((local.stream, local.number))
        if one is not None and one.local is local:
            self._end(one)
            one.sink.drop_held()

    def is_taking_over(self, local: LedPartition) -> bool:
        return local.sink.holds_all and (local.stream, local.number) in self._open

    def _finish(self, one: Inheritance) -> None:
        if one.local is None or one.note is None:
            return
        if one.note.new_leader_epoch != one.local.leader_epoch:
            self._give_up(one, "the note belongs to another epoch")
            return
        task = self._loop.create_task(self._take_over(one, one.note), name=f"take over {one.stream}/{one.number}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take_over(self, one: Inheritance, note: SuccessionRequest) -> None:
        # Copies of all messages in the note have been sent to this server before: after a round trip they are here.
        with contextlib.suppress(Unavailable):
            await self._link.flush(FLUSH_SECONDS_MAX)
        if self._open.get(one.key) is not one or one.local is None:
            return
        sink, data = one.sink, b"".join(part or b"" for part in one.parts)
        has_overflowed = sink.has_overflowed
        try:
            sink.take_over(note.key, data[: note.hash_bytes], note.early, data[note.hash_bytes :])
        except (ValueError, MemoryError) as error:
            self._give_up(one, str(error))
            return
        if has_overflowed:
            sink.forget_copies()  # they were dropped
            _logger.warning("%s/%d: too many messages arrived during the hand-over; some are lost", *one.key)
        elif sink.copies_missing:
            self._loop.call_later(COPIES_SECONDS, sink.forget_copies)
        self._end(one)
        self._ingest.go_on(one.local)

    def _expire(self, stream: str, number: int) -> None:
        one = self._open.get((stream, number))
        if one is None:
            return
        if one.local is None:
            self._abandon(one)
        else:
            self._give_up(one, f"no note came within {NOTE_SECONDS_MAX:g} s")

    def _give_up(self, one: Inheritance, reason: str) -> None:
        """Go on without what was held: messages without an answer have an unknown outcome, as after a failure of the leader before."""
        _logger.warning("%s/%d: messages that arrived during the hand-over are lost: %s", *one.key, reason)
        self._end(one)
        one.sink.drop_held()
        if one.local is not None:
            self._ingest.go_on(one.local)

    def _abandon(self, one: Inheritance) -> None:
        """This server does not lead the partition: stop listening."""
        self._end(one)
        self._link.unsubscribe(one.subscription_id)
        self._ingest.expect_no_more(one.sink)
        one.sink.drop_held()

    def _end(self, one: Inheritance) -> None:
        one.deadline.cancel()
        if self._open.get(one.key) is one:
            del self._open[one.key]

    def close(self) -> None:
        for one in list(self._open.values()):
            if one.local is None:
                self._abandon(one)
            else:
                self._end(one)
        for task in self._tasks:
            task.cancel()
