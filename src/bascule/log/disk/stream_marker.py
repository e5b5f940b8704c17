"""The marker file that names the stream of a folder of logs. A name may be used again after its stream was deleted; the index of the
op that created the stream tells the two apart, so that after a crash a new stream never gets messages of the old one.

<data directory>/streams/<name>/stream    {"id": 42, "version": 1} and its checksum
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from bascule.errors import StorageError
from bascule.kernels.wire.checksum import crc32c
from bascule.log.disk.operations import Disk, read_file, replace_file

FILE_NAME: Final = "stream"
VERSION: Final = 1


def read_marker(disk: Disk, directory: Path) -> int | None:
    """The id of the stream whose data is here; None without a marker."""
    path = directory / FILE_NAME
    data = read_file(disk, str(path))
    if data is None:
        return None
    line, _, rest = data.partition(b"\n")
    if rest != b"%08x\n" % crc32c(line):
        raise StorageError(
            f"{path} is damaged: which stream the logs beside it belong to is not known",
            hint="restore the file from a backup; `bascule log verify` reads the logs meanwhile",
        )
    return int(json.loads(line)["id"])


def write_marker(disk: Disk, directory: Path, stream_id: int) -> None:
    disk.make_directory(str(directory))
    line = json.dumps({"id": stream_id, "version": VERSION}, sort_keys=True, separators=(",", ":")).encode()
    replace_file(disk, str(directory / FILE_NAME), b"%s\n%08x\n" % (line, crc32c(line)), durable=True)


def remove_marker(disk: Disk, directory: Path) -> None:
    if read_file(disk, str(directory / FILE_NAME)) is not None:
        disk.remove(str(directory / FILE_NAME))
