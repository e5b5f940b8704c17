"""The superblock: term, vote, and which files count. Two copies, so that no single torn write or bad sector makes a server forget.

    state-1, state-2    JSON on one line, the CRC-32C of that line in hex on the next; whatever follows is left from a longer one

Copy 1 is written and synced, then copy 2, and only then may anything act on it. So whichever copy is damaged, the other one holds
what was acted on last: a torn copy 1 was never acted on, a torn copy 2 is what copy 1 says. Both damaged is the end of this server.

Every other file counts only because the superblock names it. That is how a snapshot and the log behind it change in one moment.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
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
    """Grows with every write: of two copies that are whole, the newer one holds."""

    term: int
    vote: str | None
    snapshot_index: int
    snapshot_term: int
    snapshot_crc: int
    first_segment: int
    last_segment: int
    """Segments are named by the number of their first frame; those between follow from the frames."""


_TYPES: Final[dict[str, tuple[type, ...]]] = {
    **dict.fromkeys((field.name for field in fields(Superblock)), (int,)),
    "cluster_id": (str,),
    "server_id": (str,),
    "vote": (str, type(None)),
}


def encode_superblock(superblock: Superblock) -> bytes:
    line = json.dumps({"version": VERSION, **asdict(superblock)}, separators=(",", ":")).encode()
    return b"%s\n%08x\n" % (line, crc32c(line))


def decode_superblock(data: bytes, path: str) -> Superblock | None:
    """None for anything damaged. Raises FormatTooNew for an intact one of a later version."""
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
            f"{path} has version {version!r}, this Bascule knows {VERSION}; nothing was changed",
            hint="start the version of Bascule that wrote it, or a later one",
        )
    return Superblock(**content) if _is_superblock(content) else None


def _is_superblock(content: dict[str, Any]) -> bool:
    return content.keys() == _TYPES.keys() and all(type(value) in _TYPES[name] for name, value in content.items())


def read_superblock(disk: Disk, directory: str) -> Superblock:
    """The newest copy that is whole. Reads only."""
    copies = []
    for name in FILE_NAMES:
        data = read_file(disk, f"{directory}/{name}")
        copy = None if data is None else decode_superblock(data, f"{directory}/{name}")
        if copy is not None:
            copies.append(copy)
    if not copies:
        raise DamagedRaftLog(
            f"{directory}: term and vote of this server are lost, both copies of its state are damaged"
        )
    return max(copies, key=lambda copy: copy.revision)


class SuperblockFile:
    """Both copies, held open."""

    __slots__ = ("_disk", "_handles")

    def __init__(self, disk: Disk, directory: str, *, create: bool = False) -> None:
        self._disk = disk
        self._handles = [disk.open(f"{directory}/{name}", create=create) for name in FILE_NAMES]

    def write(self, superblock: Superblock) -> None:
        """Durable in both copies once this returns."""
        data = encode_superblock(superblock)
        for handle in self._handles:
            self._disk.write(handle, data, 0)
            self._disk.sync(handle)

    def close(self) -> None:
        for handle in self._handles:
            self._disk.close(handle)
