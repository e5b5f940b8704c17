"""Copies the streams and cursors of Go Liftbridge into a new data directory of Bascule.

    1. check      every message is read and every checksum verified; a dry run ends here
    2. mark       `import-unfinished` in the target: no broker starts there, and the next import begins anew
    3. metadata   a metadata log of one server, with the streams
    4. logs       the messages with their offsets and timestamps, then the cursors; synced
    5. unmark

The target is a cluster of one server. Others join it, and `bascule cluster` raises the replication factor.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from bascule import limits
from bascule.config.sections.server import ServerConfig
from bascule.config.stream import resolve
from bascule.errors import BasculeError, OperatorError, RecordTooLarge, StateError, Unavailable
from bascule.kernels.records import records
from bascule.kernels.wire.checksum import crc32c
from bascule.liftbridge.directory import UNFINISHED_FILE, is_liftbridge_directory
from bascule.liftbridge.plan import ImportPlan, PartitionSource
from bascule.liftbridge.segments import LiftbridgeMessage, SegmentEnd
from bascule.log import LogStore, PartitionLog, SyncPolicy, new_batch
from bascule.log.disk.master_keys import MasterKeys
from bascule.log.disk.operations import PosixDisk, make_private_directory
from bascule.log.disk.stream_marker import write_marker
from bascule.metadata.controller import Controller
from bascule.metadata.core.model.ops import BrokerPlace, CreateStream, Op, SetStreamReadonly
from bascule.metadata.core.model.streams import Stream
from bascule.metadata.identity import server_id
from bascule.metadata.internal_streams import cursors_overrides
from bascule.metadata.namespace import store_namespace
from bascule.metadata.start import ControllerStart, start_controller
from bascule.metadata.stream_options import CURSORS_STREAM, settings_of, stored_config
from bascule.net.nats.bus import Handler
from bascule.proto.internal_pb2 import Cursor
from bascule.readers.cursors import cursors_partition
from bascule.readers.stored_cursors import cursor_key

SUBMIT_SECONDS: Final = 60.0
NEVER_MS: Final = 1 << 40
"""No cleaner runs during an import."""
ATTRIBUTES_AT: Final = 11
"""Position of the attributes in a batch header; the checksum covers everything after its first four bytes."""


@dataclass(slots=True)
class PartitionReport:
    stream: str
    partition: int
    messages: int = 0
    first_offset: int = -1
    last_offset: int = -1
    value_bytes: int = 0
    torn_bytes: int = 0
    """Bytes of an incomplete message at the end of the log, which were cut."""
    raised_timestamps: int = 0
    """Messages that were older than the message before them, and got its timestamp."""


@dataclass(slots=True)
class ImportReport:
    partitions: list[PartitionReport] = field(default_factory=list)
    cursors: int = 0

    @property
    def messages(self) -> int:
        return sum(one.messages for one in self.partitions)


def check_messages(plan: ImportPlan, progress: Callable[[str], None]) -> ImportReport:
    """Read everything that an import would copy. Raises OperatorError for the first damage."""
    report = ImportReport()
    for source in (one for stream in plan.streams for one in stream.partitions):
        progress(f"checking {source.stream}/{source.partition}")
        found = _Copied(source)
        for message in found.messages():
            _check_size(message, source)
        report.partitions.append(found.report)
    report.cursors = len(_cursors(plan))
    return report


def run_import(
    plan: ImportPlan, config: ServerConfig, keys: MasterKeys | None, progress: Callable[[str], None]
) -> ImportReport:
    """Copy everything into `config.data_dir`. After an error or a crash the import can be repeated, and no broker starts there."""
    target = config.data_dir
    _take_target(target)
    streams = asyncio.run(_create_metadata(plan, config))
    report = ImportReport()
    store = LogStore(target, keys=keys)
    try:
        for source in plan.streams:
            stream = streams[source.stream.name]
            for partition in source.partitions:
                progress(f"copying {partition.stream}/{partition.partition}")
                report.partitions.append(_copy(partition, stream, store))
        report.cursors = _write_cursors(plan, streams, store)
    finally:
        store.close()
    (target / UNFINISHED_FILE).unlink()
    PosixDisk().sync_directory(str(target))
    return report


# ── the target ───────────────────────────────────────────────────────────────────────────────────


def check_target(target: Path) -> None:
    """Raise StateError unless the directory is missing, empty, or left by an interrupted import."""
    if not target.exists() or (target / UNFINISHED_FILE).exists():
        return
    if is_liftbridge_directory(target):
        raise StateError(
            f"{target} is the directory of a Liftbridge server", hint="give an empty directory with --data-dir"
        )
    present = sorted(path.name for path in target.iterdir() if path.name not in ("lost+found", ".lock"))
    if present:
        raise StateError(
            f"{target} is not empty: it has {', '.join(present[:5])}",
            hint="an import makes a new cluster; give an empty directory with --data-dir",
        )


def _take_target(target: Path) -> None:
    check_target(target)
    make_private_directory(str(target))
    marker = target / UNFINISHED_FILE
    marker.touch(mode=0o600)
    PosixDisk().sync_directory(str(target))
    for name in ("streams", "raft", "raft.new", "server", "namespace"):
        path = target / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


# ── metadata ─────────────────────────────────────────────────────────────────────────────────────


class NoBus:
    """The bus of a server that is alone: no other server gets a message or answers."""

    async def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        """Drop the message."""

    async def request(self, subject: str, data: bytes, timeout: float) -> bytes:
        del data, timeout
        raise Unavailable(f"no server listens on {subject} during an import")

    async def subscribe(self, subject: str, handler: Handler) -> None:
        """No message will come."""


async def _create_metadata(plan: ImportPlan, config: ServerConfig) -> dict[str, Stream]:
    target, disk = str(config.data_dir), PosixDisk()
    namespace = config.cluster.replication.namespace
    identity = server_id(disk, target, config.node.server_id)
    store_namespace(disk, target, namespace)
    start = ControllerStart(namespace=namespace, server_id=identity, is_seed=True)
    controller = await start_controller(NoBus(), disk, target, start)
    try:
        for op in _ops(plan, config, identity):
            await _submit(controller, op)
        return dict(controller.metadata.streams)
    finally:
        await controller.stop()


def _ops(plan: ImportPlan, config: ServerConfig, identity: str) -> Iterable[Op]:
    brokers, now = (BrokerPlace(identity),), time.time_ns()
    for source in plan.streams:
        stream = source.stream
        yield CreateStream(
            name=stream.name,
            subject=stream.subject,
            partitions=stream.partitions,
            replication_factor=1,
            brokers=brokers,
            created_ns=stream.created_ns or now,
            group=stream.group,
            config=stored_config(resolve(config.cluster, stream.overrides)),
        )
        if stream.readonly:
            yield SetStreamReadonly(stream.name, now, True, tuple(sorted(stream.readonly)))
    if plan.cursors:
        yield CreateStream(
            name=CURSORS_STREAM,
            subject=f"{config.cluster.replication.namespace}.cursors",
            partitions=len(plan.cursors),
            replication_factor=1,
            brokers=brokers,
            created_ns=now,
            config=stored_config(resolve(config.cluster, cursors_overrides(config.cluster))),
        )


async def _submit(controller: Controller, op: Op) -> None:
    refusal = await controller.submit(op, timeout=SUBMIT_SECONDS)
    if refusal is not None:
        raise OperatorError(f"the stream '{getattr(op, 'name', '')}' cannot be created: {refusal.text}")


# ── messages ─────────────────────────────────────────────────────────────────────────────────────


class _Copied:
    """The messages of a partition with timestamps that do not go back, counted as they pass."""

    def __init__(self, source: PartitionSource) -> None:
        self._source = source
        self.report = PartitionReport(source.stream, source.partition)

    def messages(self) -> Iterable[LiftbridgeMessage]:
        report, end, last = self.report, SegmentEnd(), 0
        for message in self._source.messages(end):
            if message.timestamp < last:
                report.raised_timestamps += 1
                message = replace(message, timestamp=last)
            last = message.timestamp
            if report.messages == 0:
                report.first_offset = message.offset
            report.messages += 1
            report.last_offset = message.offset
            report.value_bytes += len(message.value)
            yield message
        report.torn_bytes = end.torn_bytes


def _copy(source: PartitionSource, stream: Stream, store: LogStore) -> PartitionReport:
    log = _open(store, stream, source.partition)
    writer = _LogCopy(log, stream.partitions[source.partition].leader_epoch, source.base_offset)
    copied = _Copied(source)
    for message in copied.messages():
        try:
            writer.add(message)
        except RecordTooLarge as error:
            raise _too_large(source, message, error) from None
    writer.finish()
    if log.record_count != copied.report.messages:
        raise OperatorError(
            f"{log.record_count} messages of {copied.report.messages} were written to partition {source.partition} of stream "
            f"'{source.stream}'",
            hint="this is a bug of Bascule: please report it",
        )
    return copied.report


def _open(store: LogStore, stream: Stream, partition: int) -> PartitionLog:
    write_marker(store.pool.disk, store.directory / "streams" / stream.name, stream.id)
    options = replace(settings_of(stream).log_options, sync=SyncPolicy.INTERVAL)
    return store.log(stream.name, partition, options, stream_id=stream.id, cleaner_interval_ms=NEVER_MS)


class _LogCopy:
    """Appends messages at given offsets, as batches of a leader."""

    def __init__(self, log: PartitionLog, leader_epoch: int, base_offset: int) -> None:
        self._log = log
        self._leader_epoch = leader_epoch
        self._base_offset = base_offset
        self._batch = new_batch()
        self._first = (0, 0)
        self._next_offset = 0

    def add(self, message: LiftbridgeMessage) -> None:
        batch = self._batch
        if batch.count and (message.offset != self._next_offset or batch.nbytes >= limits.INGEST_BATCH_BYTES_MAX):
            self._flush()
        if not batch.count:
            self._first = (message.offset, message.timestamp)
        subject, reply, headers = split_headers(message)
        batch.add(message.key, message.value, headers, subject, reply, message.timestamp - self._first[1])
        self._next_offset = message.offset + 1

    def _flush(self) -> None:
        base_offset, timestamp = self._first
        log, end = self._log, self._log.log_end_offset
        if base_offset > end and log.record_count == 0:
            log.reset_to(base_offset)
            end = base_offset
        with self._batch.stamp(base_offset, self._leader_epoch, timestamp) as view:
            data = bytearray(log.sealer.seal(view) if log.sealer.seals else view)
        if base_offset > end:
            data[ATTRIBUTES_AT] |= records.FOLLOWS_GAP
            data[:4] = crc32c(memoryview(data)[4:]).to_bytes(4, "little")
        log.append_replicated(bytes(data))
        self._batch.clear()

    def finish(self) -> None:
        """Write and sync the rest. An empty partition continues at its base offset."""
        if self._batch.count:
            self._flush()
        elif self._log.record_count == 0 and self._base_offset > 0:
            self._log.reset_to(self._base_offset)
        self._log.advance_high_watermark(self._log.log_end_offset - 1)
        self._log.sync()


def split_headers(message: LiftbridgeMessage) -> tuple[bytes, bytes, list[tuple[bytes, bytes]]]:
    """Subject, reply and the other headers: Liftbridge stores the first two as headers."""
    subject = reply = b""
    others = []
    for name, value in message.headers:
        if name == b"subject":
            subject = value
        elif name == b"reply":
            reply = value
        else:
            others.append((name, value))
    return subject, reply, others


def _check_size(message: LiftbridgeMessage, source: PartitionSource) -> None:
    """Small messages fit in any case; a large one is tried in a batch of its own."""
    size = len(message.key or b"") + len(message.value) + sum(len(a) + len(b) + 20 for a, b in message.headers)
    if size < limits.RECORD_SUBJECT_BYTES_MAX and len(message.headers) <= limits.RECORD_HEADERS_MAX:
        return
    subject, reply, headers = split_headers(message)
    try:
        new_batch().add(message.key, message.value, headers, subject, reply, 0)
    except RecordTooLarge as error:
        raise _too_large(source, message, error) from None


def _too_large(source: PartitionSource, message: LiftbridgeMessage, error: BasculeError) -> OperatorError:
    return OperatorError(
        f"offset {message.offset} of partition {source.partition} of stream '{source.stream}' cannot be stored: {error.message}",
        hint="leave the stream out: name the others with --stream",
    )


# ── cursors ──────────────────────────────────────────────────────────────────────────────────────


def _cursors(plan: ImportPlan) -> dict[bytes, Cursor]:
    """The latest value of each cursor of an imported stream."""
    names = {one.stream.name: one.stream.partitions for one in plan.streams}
    found: dict[bytes, Cursor] = {}
    for source in plan.cursors:
        for message in source.messages(SegmentEnd()):
            cursor = Cursor()
            with contextlib.suppress(DecodeError):
                cursor = Cursor.FromString(message.value)
            if cursor.cursor_id and 0 <= cursor.partition < names.get(cursor.stream, 0):
                found[cursor_key(cursor.cursor_id, cursor.stream, cursor.partition)] = cursor
    return found


def _write_cursors(plan: ImportPlan, streams: dict[str, Stream], store: LogStore) -> int:
    found = _cursors(plan)
    stream = streams.get(CURSORS_STREAM)
    if stream is None:
        return 0
    for partition in stream.partitions:
        log = _open(store, stream, partition.id)
        writer = _LogCopy(log, partition.leader_epoch, 0)
        subject = stream.subject if partition.id == 0 else f"{stream.subject}.{partition.id}"
        headers = ((b"subject", subject.encode()),)
        mine = {
            key: one for key, one in found.items() if cursors_partition(key, len(stream.partitions)) == partition.id
        }
        for offset, (key, cursor) in enumerate(mine.items()):
            cursor.stream_id = streams[cursor.stream].id
            value = cursor.SerializeToString()
            writer.add(LiftbridgeMessage(offset, time.time_ns(), partition.leader_epoch, key, value, headers))
        writer.finish()
    return len(found)
