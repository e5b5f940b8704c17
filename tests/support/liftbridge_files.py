"""Writes data directories of Go Liftbridge, byte by byte from the descriptions of its formats."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.parity.twins.twin_crc32c import crc32c

PAGE_BYTES: Final = 4096
NIL: Final = -1


# ── protobuf ─────────────────────────────────────────────────────────────────────────────────────


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def pb(*fields: tuple[int, Any]) -> bytes:
    """A protobuf message: integers and booleans as varints, text and bytes with their length. Zeros are left out, as Go does."""
    out = b""
    for number, value in fields:
        if isinstance(value, (bool, int)):
            if value:
                out += varint(number << 3) + varint(int(value))
        else:
            data = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


# ── logs ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class GoMessage:
    offset: int
    value: bytes | None = b""
    key: bytes | None = None
    timestamp: int = 1_600_000_000_000_000_000
    epoch: int = 2
    headers: Mapping[bytes, bytes] = field(default_factory=dict)


def go_bytes(data: bytes | None) -> bytes:
    return struct.pack(">i", NIL) if data is None else struct.pack(">i", len(data)) + data


def message_set(one: GoMessage) -> bytes:
    rest = struct.pack(">bb", 1, 0) + go_bytes(one.key) + go_bytes(one.value) + struct.pack(">h", len(one.headers))
    for name, value in one.headers.items():
        rest += struct.pack(">h", len(name)) + name + go_bytes(value)
    message = struct.pack(">I", crc32c(rest)) + rest
    return struct.pack(">qqQi", one.offset, one.timestamp, one.epoch, len(message)) + message


def write_partition(root: Path, stream: str, partition: int, segments: Mapping[int, Sequence[GoMessage]]) -> Path:
    """Segments by base offset, with their dense indexes and the two checkpoints."""
    directory = root / "streams" / stream / str(partition)
    directory.mkdir(parents=True)
    last = -1
    for base, messages in segments.items():
        log, index = b"", b""
        for one in messages:
            data = message_set(one)
            index += struct.pack(">iqii", one.offset - base, one.timestamp, len(log), len(data))
            log += data
            last = one.offset
        (directory / f"{base:020d}.log").write_bytes(log)
        (directory / f"{base:020d}.index").write_bytes(index + bytes(200))
    (directory / "replication-offset-checkpoint").write_text(str(last))
    (directory / "leader-epoch-checkpoint").write_text("0\n1\n2 0\n")
    return directory


# ── Raft ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class GoStream:
    name: str
    subject: str
    partitions: int = 1
    config: Mapping[int, int] = field(default_factory=dict)
    """Field of StreamConfig → value of its wrapper."""
    replicas: Sequence[str] = ("go-1",)
    readonly: bool = False
    group: str = ""

    def encoded(self) -> bytes:
        numbers = range(self.partitions)
        partitions = [
            pb(
                (1, self.subject),
                (2, self.name),
                (3, number),
                (4, self.group),
                (5, len(self.replicas)),
                *((6, one) for one in self.replicas),
                (7, self.replicas[0]),
                *((8, one) for one in self.replicas),
                (9, 2),
                (10, 2),
                (12, self.readonly),
            )
            for number in numbers
        ]
        config = pb(*((number, pb((1, value))) for number, value in self.config.items()))
        created = 1_500_000_000_000_000_000
        return pb((1, self.name), (2, self.subject), *((3, one) for one in partitions), (4, config), (5, created))


def create_stream(stream: GoStream) -> bytes:
    return pb((1, 0), (2, pb((1, stream.encoded()))))


def delete_stream(name: str) -> bytes:
    return pb((1, 5), (6, pb((1, name))))


def set_readonly(name: str, partitions: Sequence[int], readonly: bool) -> bytes:
    packed = b"".join(map(varint, partitions))
    return pb((1, 9), (10, pb((1, name), *([(2, packed)] if packed else []), (3, readonly))))


def raft_entry(index: int, data: bytes, kind: int = 0) -> bytes:
    """MessagePack of hashicorp/raft's Log, in the older form that has one type for text and bytes."""

    def raw(one: bytes) -> bytes:
        if len(one) < 32:
            return bytes([0xA0 | len(one)]) + one
        return b"\xda" + struct.pack(">H", len(one)) + one

    fields: dict[bytes, bytes] = {
        b"Index": b"\xcf" + struct.pack(">Q", index),
        b"Term": b"\x02",
        b"Type": bytes([kind]),
        b"Data": raw(data),
        b"Extensions": b"\xc0",
        b"AppendedAt": raw(bytes(15)),
    }
    return bytes([0x80 | len(fields)]) + b"".join(raw(name) + value for name, value in fields.items())


def write_bolt(path: Path, entries: Sequence[tuple[bytes, bytes]], *, keys_per_page: int = 4) -> None:
    """A BoltDB file: two metas, a freelist, the root bucket with `conf` and `logs`, and the tree of `logs`."""
    pages: list[bytes] = []
    first = 4

    def leaf(items: Iterable[tuple[int, bytes, bytes]], number: int) -> bytes:
        items = list(items)
        heads, data, at = b"", b"", 16 * len(items)
        for position, (flags, key, value) in enumerate(items):
            heads += struct.pack("<IIII", flags, at - 16 * position + len(data), len(key), len(value))
            data += key + value
        page = heads + data
        overflow = (16 + len(page) - 1) // PAGE_BYTES
        return struct.pack("<QHHI", number, 2, len(items), overflow) + page

    def padded(page: bytes) -> bytes:
        return page + bytes(-len(page) % PAGE_BYTES)

    children: list[tuple[bytes, int]] = []
    for start in range(0, len(entries), keys_per_page):
        group = entries[start : start + keys_per_page]
        number = first + sum(len(page) for page in pages) // PAGE_BYTES
        children.append((group[0][0], number))
        pages.append(padded(leaf([(0, key, value) for key, value in group], number)))
    if len(children) == 1:
        root_of_logs = children[0][1]
    elif children:
        root_of_logs = first + sum(len(page) for page in pages) // PAGE_BYTES
        heads, data = b"", b""
        for position, (key, number) in enumerate(children):
            heads += struct.pack("<IIQ", 16 * (len(children) - position) + len(data), len(key), number)
            data += key
        pages.append(padded(struct.pack("<QHHI", root_of_logs, 1, len(children), 0) + heads + data))
    inline = struct.pack("<QQ", 0, 0) + leaf([(0, b"CurrentTerm", struct.pack(">Q", 2))], 0)
    logs = struct.pack("<QQ", root_of_logs, 0) if children else struct.pack("<QQ", 0, 0) + leaf([], 0)
    root = padded(leaf([(1, b"conf", inline), (1, b"logs", logs)], 3))
    freelist = padded(struct.pack("<QHHI", 2, 0x10, 0, 0))

    def meta(number: int, transaction: int) -> bytes:
        pages_used = first + sum(len(page) for page in pages) // PAGE_BYTES
        content = struct.pack("<IIIIQQQQQ", 0xED0CDAED, 2, PAGE_BYTES, 0, 3, 0, 2, pages_used, transaction)
        checksum = 0xCBF29CE484222325
        for byte in content:
            checksum = ((checksum ^ byte) * 0x100000001B3) % (1 << 64)
        return padded(struct.pack("<QHHI", number, 4, 0, 0) + content + struct.pack("<Q", checksum))

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(meta(0, 6) + meta(1, 7) + freelist + root + b"".join(pages))


def write_raft(root: Path, ops: Sequence[bytes], *, first_index: int = 3) -> None:
    """The operations as entries of raft.db, after two entries of Raft itself."""
    entries = [(1, raft_entry(1, b"configuration", 5)), (2, raft_entry(2, b"", 1))] if first_index == 3 else []
    entries += [(first_index + number, raft_entry(first_index + number, op)) for number, op in enumerate(ops)]
    write_bolt(root / "raft" / "raft.db", [(struct.pack(">Q", index), data) for index, data in entries])


def write_snapshot(root: Path, index: int, streams: Sequence[GoStream], *, crc: int | None = None) -> Path:
    state = pb(*((1, one.encoded()) for one in streams))
    data = struct.pack(">I", len(state)) + state
    directory = root / "raft" / "snapshots" / f"2-{index}-1600000000000"
    directory.mkdir(parents=True)
    (directory / "state.bin").write_bytes(data)
    checksum = (go_crc64(data) if crc is None else crc).to_bytes(8, "big")
    meta = {"Version": 1, "ID": directory.name, "Index": index, "Term": 2, "Size": len(data)}
    (directory / "meta.json").write_text(json.dumps({**meta, "CRC": base64.b64encode(checksum).decode()}) + "\n")
    return directory


def go_crc64(data: bytes) -> int:
    """CRC-64 ECMA, reflected, one bit after the other."""
    value = (1 << 64) - 1
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0xC96C5795D7870F42 if value & 1 else 0)
    return value ^ (1 << 64) - 1


def write_server(root: Path, server_id: str = "go-1") -> Path:
    root.mkdir(parents=True, exist_ok=True)
    (root / "liftbridge").write_bytes(pb((1, server_id)))
    (root / ".instance_id").write_text("0" * 36)
    return root


# ── cursors ──────────────────────────────────────────────────────────────────────────────────────


def cursor_message(offset: int, cursor_id: str, stream: str, partition: int, position: int) -> GoMessage:
    key = f"{cursor_id},{stream},{partition}".encode()
    return GoMessage(offset, pb((1, stream), (2, partition), (3, cursor_id), (4, position)), key)
