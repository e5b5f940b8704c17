"""Whether this server's last run ended as it should, told by a file that lies in the data directory only while a broker runs.

<data directory>/running    {"boot_id": "…", "run": "…", "version": 1} and its checksum

No file: the last run synced its logs and left. A file with the machine's present boot id: the process died alone, and everything it
wrote is in the page cache or on disk. Any other file: the machine went down with it, and what was not synced may be lost.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from bascule.broker.identity import random_id
from bascule.errors import StorageError
from bascule.kernels.records import crc32c
from bascule.log.disk import Disk, read_file, replace_file

FILE_NAME: Final = "running"
VERSION: Final = 1
BOOT_ID_FILE: Final = Path("/proc/sys/kernel/random/boot_id")


class RunMarker:
    def __init__(self, disk: Disk, directory: str, boot_id_file: Path = BOOT_ID_FILE) -> None:
        self._disk = disk
        self._path = f"{directory}/{FILE_NAME}"
        self._boot_id = _boot_id(boot_id_file)
        self._run = random_id()
        self._content: bytes | None = None
        self.was_clean, self.was_intact = self._look()

    def _look(self) -> tuple[bool, bool]:
        try:
            data = read_file(self._disk, self._path)
        except StorageError:
            return False, False
        if data is None:
            return True, True
        return False, bool(self._boot_id) and _boot_id_in(data) == self._boot_id

    def write(self) -> None:
        """Durable when it returns: from now on this run has to end well to leave no trace."""
        line = json.dumps(
            {"boot_id": self._boot_id, "run": self._run, "version": VERSION}, sort_keys=True, separators=(",", ":")
        ).encode()
        self._content = b"%s\n%08x\n" % (line, crc32c(line))
        replace_file(self._disk, self._path, self._content, durable=True)

    def remove(self) -> None:
        """The run has ended well: all logs are synced. Another one that has begun meanwhile keeps its file."""
        if self._content is not None and read_file(self._disk, self._path) == self._content:
            self._disk.remove(self._path)


def _boot_id(path: Path) -> str:
    """Empty where the system does not tell: then no crash counts as harmless."""
    try:
        return path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _boot_id_in(data: bytes) -> str | None:
    line, _, rest = data.partition(b"\n")
    if rest != b"%08x\n" % crc32c(line):
        return None
    try:
        found = json.loads(line)["boot_id"]
    except (ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) else None
