"""The superblock: term, vote, and the names of the valid files. Two copies, so that one torn write or bad sector loses no state.

    state-1, state-2    JSON on one line, its CRC-32C in hex on the next; later bytes are left from a longer version

Copy 1 is written and synced, then copy 2, and only then does the node use the new state. If one copy is damaged, the other one holds
the last state that was used. If both are damaged, the server cannot continue.

Other files are valid only if the superblock names them, so a snapshot and its log change atomically.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any, Final

from bascule.errors import FormatTooNew
from bascule.kernels.wire.checksum import crc32c
from bascule.log.disk.operations import Disk, read_file
from bascule.raft.disk.errors import DamagedRaftLog

FILE_NAMES: Final = ("state-1", "state-2")
VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Superblock:
    cluster_id: str
    server_id: str
    revision: int
    """Incremented with every write; of two whole copies the newer one is valid."""

    term: int
    vote: str | None
    snapshot_index: int
    snapshot_term: int
    snapshot_crc: int
    first_segment: int
    last_segment: int
    """Segments are named by the number of their first frame. The frames lead from the first to the last segment."""


_TYPES: Final[dict[str, tuple[type, ...]]] = {
    **dict.fromkeys((field.name for field in fields(Superblock)), (int,)),
    "cluster_id": (str,),
    "server_id": (str,),
    "vote": (str, type(None)),
}


def encode_superblock(superblock: Superblock) -> bytes:
    values = {name: getattr(superblock, name) for name in _TYPES}
    line = json.dumps({"version": VERSION, **values}, separators=(",", ":")).encode()
    return b"%s\n%08x\n" % (line, crc32c(line))


def decode_superblock(data: bytes, path: str) -> Superblock | None:
    """Return the superblock, or None if it is damaged. Raises FormatTooNew for a later version."""
    line, _, rest = data.partition(b"\n")
    if rest[:9] != b"%08x\n" % crc32c(line):
        return None
    try:
        content = json.loads(line)
        version = content.pop("version")
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    if version != VERSION:
        raise FormatTooNew(
            f"{path} has version {version!r}, this version of Bascule reads {VERSION}; no file was changed",
            hint="start the version of Bascule that wrote it, or a later one",
        )
    return Superblock(**content) if _is_superblock(content) else None


def _is_superblock(content: dict[str, Any]) -> bool:
    return content.keys() == _TYPES.keys() and all(type(value) in _TYPES[name] for name, value in content.items())


def read_superblock(disk: Disk, directory: str) -> Superblock:
    """Return the newest whole copy."""
    copies = []
    for name in FILE_NAMES:
        data = read_file(disk, f"{directory}/{name}")
        copy = None if data is None else decode_superblock(data, f"{directory}/{name}")
        if copy is not None:
            copies.append(copy)
    if not copies:
        raise DamagedRaftLog(
            f"{directory}: both copies of the state are damaged, so term and vote of this server are lost"
        )
    return max(copies, key=lambda copy: copy.revision)


class SuperblockFile:
    """The open files of both copies."""

    __slots__ = ("_disk", "_handles")

    def __init__(self, disk: Disk, directory: str, *, create: bool = False) -> None:
        self._disk = disk
        self._handles = [disk.open(f"{directory}/{name}", create=create) for name in FILE_NAMES]

    def write(self, superblock: Superblock) -> None:
        """Write and sync both copies."""
        data = encode_superblock(superblock)
        for handle in self._handles:
            self._disk.write(handle, data, 0)
            self._disk.sync(handle)

    def close(self) -> None:
        for handle in self._handles:
            self._disk.close(handle)
