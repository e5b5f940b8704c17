"""A led partition without a broker around it: real log, real kernels, messages as NATS would bring them, acks in a list."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bascule.config.sections.cluster import ClusterConfig
from bascule.errors import DiskFull
from bascule.kernels.batches.pool import BatchPool
from bascule.kernels.envelope.ack_object import Ack
from bascule.kernels.ingest.acks import AckRouter, AckWriter, CallbackReceiver
from bascule.kernels.ingest.sink import PartitionSink
from bascule.kernels.nats.protocol import NatsReader
from bascule.log import LogOptions, PartitionLog, new_batch
from bascule.log.disk.files import FilePool
from bascule.log.disk.operations import PosixDisk
from bascule.log.sync.group_commit import Syncer
from bascule.metadata.core.model.streams import Partition, Stream
from bascule.metadata.core.state import ClusterMetadata
from bascule.metadata.stream_options import StreamSettings
from bascule.net.nats.envelope import MessageType, encode
from bascule.net.nats.link import LinkOptions, NatsLink
from bascule.partition import replica as partitions
from bascule.partition.ingest import Ingest
from bascule.partition.replica import replica_options
from bascule.partition.replication.leading import Leading
from bascule.partition.replication.link import ReplicationLink
from bascule.partition.replication.replicator import Replicator
from bascule.proto.api_pb2 import AckPolicy, Message
from tests.support.waiting import PATIENCE_SECONDS

INBOX_PREFIX = b"ns.ack.me."
INBOX = "ns.ack.me.1"


class MoodyDisk(PosixDisk):
    """A disk that can be slow, or full, when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.sync_gate = threading.Event()
        self.sync_gate.set()
        self.write_seconds = 0.0
        self.is_full = False
        self.writers: set[str] = set()

    def write(self, handle: int, data: bytes | memoryview, position: int) -> None:
        self.writers.add(threading.current_thread().name)
        if self.is_full:
            raise DiskFull("the disk is full")
        time.sleep(self.write_seconds)
        self.gate.wait(PATIENCE_SECONDS)
        super().write(handle, data, position)

    def sync(self, handle: int) -> None:
        if (
            threading.current_thread() is not threading.main_thread()
        ):  # the first append saves the epoch on the event loop
            self.sync_gate.wait(PATIENCE_SECONDS)
        super().sync(handle)


class Source:
    """Counts what an ingest asks of its link."""

    def __init__(self, reader: NatsReader) -> None:
        self.reader = reader
        self.is_paused = False
        self.pauses = 0
        self.flushes = 0

    def pause_reading(self) -> None:
        self.is_paused = True
        self.pauses += 1

    def resume_reading(self) -> None:
        self.is_paused = False

    def schedule_flush(self) -> None:
        self.flushes += 1


class LedPartition:
    """Use it inside of a running loop. Unless a test has a clock, no time passes: a machine that stands still is no slow disk, and what
    arrived last has arrived just now."""

    def __init__(
        self,
        directory: Path,
        *,
        options: LogOptions | None = None,
        concurrency_control: bool = False,
        min_insync_replicas: int = 1,
        batch_records_max: int = 1024,
        opened: bool = True,
        replicas: tuple[str, ...] = ("me",),
        clock: Callable[[], float] = lambda: 1000.0,
        **ingest: Any,
    ) -> None:
        self.disk = MoodyDisk()
        self._syncer = Syncer(3_600_000)  # nothing is synced behind a test's back, only when somebody waits for it
        self.acks: list[Ack] = []
        unconnected = NatsLink(LinkOptions(servers=("nats://127.0.0.1:1",), name="nobody"))
        controller: Any = SimpleNamespace(metadata=ClusterMetadata())
        self.reader = NatsReader(message_bytes_max=1 << 20, line_bytes_max=4096)
        router = AckRouter(INBOX_PREFIX)
        router.receivers[1] = CallbackReceiver(self.acks.append)
        self.writer = AckWriter(self.reader, router)
        self.sink = PartitionSink(
            BatchPool(new_batch, bytes_max=1 << 20),
            stream=b"orders",
            partition=0,
            base_subject=b"orders",
            payload_bytes_max=1 << 20,
            batch_records_max=batch_records_max,
            batch_bytes_max=1 << 20,
            concurrency_control=concurrency_control,
        )
        self.reader.attach(1, self.sink)
        self.log = PartitionLog(
            str(directory / "log"),
            options or LogOptions(),
            pool=FilePool(self.disk, 16),
            disk=self.disk,
            syncer=self._syncer,
        )
        self.source = Source(self.reader)
        self._replicator = Replicator(
            ReplicationLink(unconnected, "ns", "me"), "me", controller, self.source.schedule_flush, lambda *_: None
        )
        self.ingest = Ingest(self.source, self.writer, clock=clock, **ingest)
        settings = StreamSettings(options or LogOptions(), 300_000, 0, False, concurrency_control, min_insync_replicas)
        metadata = Partition(0, [*replicas], "me", [*replicas], 1, 1)
        self.partition = partitions.LedPartition(
            Stream("orders", 1, "orders", "", 0, {}, []),
            metadata,
            settings,
            lambda _settings: self.log,
            self.sink,
            self.writer,
            lambda log: self._lead(metadata, settings, log),
        )
        self.ingest.attach(self.partition)
        if opened:
            assert self.partition.log is self.log

    def _lead(self, partition: Partition, settings: StreamSettings, log: PartitionLog) -> Leading:
        return Leading(
            (1, 0),
            "orders",
            partition,
            log,
            replica_options(settings, ClusterConfig()),
            self._replicator,
            self.writer,
            self.ingest.ack_times,
        )

    def arrives(self, *payloads: bytes) -> None:
        """One read of the socket brings these messages."""
        data = b"".join(b"MSG orders 1 %d\r\n%b\r\n" % (len(payload), payload) for payload in payloads)
        self.reader.examine(data)
        self.ingest.on_read()

    def values(self) -> list[bytes | None]:
        found = self.log.read(0, committed=False, bytes_max=1 << 30)
        return [] if found is None else [record.value for record in found.records()]

    async def until(self, condition: object) -> None:
        assert callable(condition)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():
                await asyncio.sleep(0.001)

    def close(self) -> None:
        self.disk.gate.set()
        self.disk.sync_gate.set()
        self.ingest.close()
        self.partition.stop()
        self._replicator.close()
        self.log.close()
        self._syncer.close()


def envelope(
    value: bytes,
    policy: int,
    number: int = 0,
    *,
    expected_offset: int = -1,
    key: bytes = b"",
    headers: Mapping[str, bytes] | None = None,
) -> bytes:
    """What a client publishes that wants an ack."""
    message = Message(
        key=key,
        value=value,
        ackInbox=INBOX,
        correlationId=str(number),
        ackPolicy=AckPolicy.Name(policy),
        offset=expected_offset,
        headers=headers or {},
    )
    return encode(MessageType.PUBLISH, message.SerializeToString())
