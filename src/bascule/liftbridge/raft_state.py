"""The streams of a Go Liftbridge cluster, from the Raft state of one of its servers.

    raft/snapshots/<id>/meta.json    {"ID", "Index", "Term", "Size", "CRC": base64 of the big-endian CRC-64 (ECMA) of state.bin, …}
    raft/snapshots/<id>/state.bin    length u32, big-endian · protobuf MetadataSnapshot: 1 streams
    raft/raft.db                     BoltDB; bucket `logs`: index u64, big-endian → MessagePack {Index, Term, Type, Data, …}
                                     Type 0: Data is a protobuf RaftLog: 1 op · 2 createStream · 6 deleteStream · 10 setStreamReadonly

The latest whole snapshot is the beginning, and the entries after its index change it. Everything but streams is left out: servers and
leaders mean nothing in another cluster, and members of groups join again.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from bascule.config.stream import StreamOverrides
from bascule.errors import OperatorError
from bascule.liftbridge.bolt import BoltFile
from bascule.liftbridge.directory import RAFT_FILE, LiftbridgeDirectory
from bascule.liftbridge.msgpack import unpack
from bascule.liftbridge.protobuf import Fields

COMMAND: Final = 0
CREATE_STREAM: Final = 0
DELETE_STREAM: Final = 5
SET_STREAM_READONLY: Final = 9
_CONFIG: Final = {
    1: "retention_max_bytes",
    2: "retention_max_messages",
    3: "retention_max_age_ms",
    4: "cleaner_interval_ms",
    5: "segment_max_bytes",
    6: "segment_max_age_ms",
    8: "compact_enabled",
    9: "auto_pause_time_ms",
    10: "auto_pause_disable_if_subscribers",
    11: "min_insync_replicas",
    12: "concurrency_control",
    13: "encryption",
}
"""Field of Liftbridge's StreamConfig → setting. 7, the number of goroutines of compaction, has no effect here."""
_BOOLEANS: Final = frozenset(
    {"compact_enabled", "auto_pause_disable_if_subscribers", "concurrency_control", "encryption"}
)


@dataclass(frozen=True, slots=True)
class LiftbridgeStream:
    name: str
    subject: str
    partitions: int
    group: str = ""
    created_ns: int = 0
    overrides: StreamOverrides = field(default_factory=StreamOverrides)
    replicas: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """The servers that store each partition."""
    readonly: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class LiftbridgeStreams:
    streams: dict[str, LiftbridgeStream]
    index: int
    """Index of the last Raft entry: of several servers the one with the highest knows most."""


def read_streams(directory: LiftbridgeDirectory) -> LiftbridgeStreams:
    """Raises OperatorError if the Raft state is missing or damaged."""
    try:
        index, streams = _snapshot(directory.path / "raft" / "snapshots")
        for at, entry in _entries(directory.path / RAFT_FILE, index):
            index = at
            if entry is not None:
                _apply(entry, streams)
    except (ValueError, OSError) as error:
        raise OperatorError(
            f"the Raft state in {directory.path / 'raft'} cannot be read: {error}",
            hint="give the directory of another server first, or use --without-metadata: then a stream's subject is its name unless "
            "--subject gives it, and its settings are those of the configuration",
        ) from None
    return LiftbridgeStreams(streams, index)


# ── snapshots ────────────────────────────────────────────────────────────────────────────────────


def _snapshot(root: Path) -> tuple[int, dict[str, LiftbridgeStream]]:
    """Index and streams of the latest whole snapshot; 0 and none without one."""
    found = []
    for path in root.iterdir() if root.is_dir() else ():
        if path.is_dir() and not path.name.endswith(".tmp") and (path / "meta.json").is_file():
            meta = json.loads((path / "meta.json").read_text())
            if not isinstance(meta, dict) or not isinstance(meta.get("Index"), int):
                raise ValueError(f"{path / 'meta.json'} has no index")
            found.append((meta["Index"], path, str(meta.get("CRC") or "")))
    problem: ValueError | None = None
    for index, path, crc in sorted(found, reverse=True):
        data = (path / "state.bin").read_bytes()
        if binascii.hexlify(base64.b64decode(crc)) != b"%016x" % crc64(data):
            problem = ValueError(f"the checksum of {path / 'state.bin'} is wrong")
            continue
        size = int.from_bytes(data[:4], "big")
        if len(data) < 4 + size:
            raise ValueError(f"{path / 'state.bin'} is too short")
        streams = [_stream(one) for one in Fields(data[4 : 4 + size]).messages(1)]
        return index, {one.name: one for one in streams}
    if problem is not None:
        raise problem
    return 0, {}


_CRC64_ECMA: Final = 0xC96C5795D7870F42


def crc64(data: bytes) -> int:
    """CRC-64 with the ECMA polynomial, as Go's hash/crc64."""
    value = 0xFFFFFFFFFFFFFFFF
    for byte in data:
        value = _CRC64_TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFFFFFFFFFF


def _table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (_CRC64_ECMA if value & 1 else 0)
        table.append(value)
    return tuple(table)


_CRC64_TABLE: Final = _table()


# ── the log ──────────────────────────────────────────────────────────────────────────────────────


def _entries(path: Path, after: int) -> Iterator[tuple[int, Fields | None]]:
    """The entries after an index, and their operations; None for entries of Raft itself."""
    if not path.is_file():
        raise ValueError(f"{path} is missing")
    expected = after + 1
    for key, value in BoltFile(path.read_bytes()).bucket(b"logs"):
        index = int.from_bytes(key, "big")
        if index <= after:
            continue
        if index != expected:
            raise ValueError(f"the entries {expected} to {index - 1} are missing from {path}")
        expected += 1
        entry = unpack(value)
        if not isinstance(entry, dict) or not isinstance(entry.get(b"Type"), int):
            raise ValueError(f"entry {index} of {path} is damaged")
        data = entry.get(b"Data")
        yield index, Fields(data) if entry[b"Type"] == COMMAND and isinstance(data, bytes) else None


def _apply(entry: Fields, streams: dict[str, LiftbridgeStream]) -> None:
    op = entry.number(1)
    if op == CREATE_STREAM and entry.has(2):
        created = _stream(entry.message(2).message(1))
        streams[created.name] = created
    elif op == DELETE_STREAM:
        streams.pop(entry.message(6).text(1), None)
    elif op == SET_STREAM_READONLY:
        change = entry.message(10)
        name, numbers = change.text(1), change.numbers(2)
        stream = streams.get(name)
        if stream is not None:
            touched = frozenset(numbers or range(stream.partitions))
            kept = stream.readonly | touched if change.number(3) else stream.readonly - touched
            streams[name] = replace(stream, readonly=kept)


def _stream(found: Fields) -> LiftbridgeStream:
    partitions = found.messages(3)
    config = found.message(4)
    given: dict[str, int | bool] = {}
    for number, name in _CONFIG.items():
        if config.has(number):
            value = config.message(number).number(1)
            given[name] = bool(value) if name in _BOOLEANS else value
    return LiftbridgeStream(
        name=found.text(1),
        subject=found.text(2),
        partitions=max((one.number(3) + 1 for one in partitions), default=1),
        group=partitions[0].text(4) if partitions else "",
        created_ns=max(0, found.number(5)),
        overrides=StreamOverrides(**given),  # type: ignore[arg-type] # the types follow from the names
        replicas={one.number(3): tuple(one.texts(6)) for one in partitions},
        readonly=frozenset(one.number(3) for one in partitions if one.number(12)),
    )
