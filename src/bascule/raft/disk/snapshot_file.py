"""The file of a snapshot. The superblock names it by index, term and checksum, so no other file can be taken for it.

snapshot-<index>-<term>     magic u32 ("BSNP") · index u64 · term u64 · membership blob · data blob · crc u32 of all before it
"""

from __future__ import annotations

from typing import Final

from bascule.kernels.wire.checksum import crc32c
from bascule.log.disk.operations import Disk, read_file
from bascule.raft.core.model.codec import U32, U64, Malformed, Reader, decode_membership, encode_blob, encode_membership
from bascule.raft.core.model.entries import RaftSnapshot
from bascule.raft.disk.errors import DamagedRaftLog

MAGIC: Final = int.from_bytes(b"BSNP", "little")
PREFIX: Final = "snapshot-"


def snapshot_name(index: int, term: int) -> str:
    return f"{PREFIX}{index:020d}-{term:020d}"


def encode_snapshot(snapshot: RaftSnapshot) -> tuple[bytes, int]:
    """Return the content of the file, and its checksum."""
    content = b"".join(
        (
            U32.pack(MAGIC),
            U64.pack(snapshot.index),
            U64.pack(snapshot.term),
            encode_blob(encode_membership(snapshot.membership)),
            encode_blob(snapshot.data),
        )
    )
    crc = crc32c(content)
    return content + U32.pack(crc), crc


def write_snapshot(disk: Disk, directory: str, snapshot: RaftSnapshot) -> int:
    """Write and sync the file, but not its directory. Returns the checksum."""
    data, crc = encode_snapshot(snapshot)
    handle = disk.open(f"{directory}/{snapshot_name(snapshot.index, snapshot.term)}", create=True)
    try:
        disk.truncate(handle, 0)
        disk.write(handle, data, 0)
        disk.sync(handle)
    finally:
        disk.close(handle)
    return crc


def read_snapshot(disk: Disk, directory: str, index: int, term: int, crc: int) -> RaftSnapshot:
    path = f"{directory}/{snapshot_name(index, term)}"
    data = read_file(disk, path)
    if data is None:
        raise DamagedRaftLog(f"{path} is missing")
    if len(data) < U32.size or crc32c(data[: -U32.size]) != crc or data[-U32.size :] != U32.pack(crc):
        raise DamagedRaftLog(f"{path} is damaged: its checksum differs from the one in the superblock")
    try:
        snapshot = _decode(Reader(data[: -U32.size]))
    except Malformed as error:
        raise DamagedRaftLog(f"{path} is malformed: {error}") from None
    if (snapshot.index, snapshot.term) != (index, term):
        raise DamagedRaftLog(f"{path} holds the snapshot of index {snapshot.index}, term {snapshot.term}")
    return snapshot


def _decode(reader: Reader) -> RaftSnapshot:
    if reader.number(U32) != MAGIC:
        raise Malformed("the magic is wrong")
    index, term = reader.number(U64), reader.number(U64)
    snapshot = RaftSnapshot(index, term, decode_membership(reader.blob()), reader.blob())
    reader.end()
    return snapshot
