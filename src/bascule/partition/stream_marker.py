"""Which stream a folder of logs belongs to. A name may be used again after its stream was deleted; the index of the op that created
the stream tells the two apart, so that a crash between delete and create never hands old messages to a new stream.

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
    """The id of the stream whose data lies here; None when nobody has said."""
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
