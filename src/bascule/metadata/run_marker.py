"""A file that records how this server's last run ended, and whether this is the data directory of that run.

<data directory>/last-run    {"boot_id": "…", "run": "…", "server_epoch": 12, "state": "running", "version": 1} and its checksum

The cluster assigns the server epoch to a run. A directory with another epoch than the last one was emptied or is an older copy: the
metadata about its replicas is not valid. Otherwise: "stopped", the run synced its logs and ended. "running" with the machine's present
boot id, only the process died, and everything it wrote is in the page cache or on disk. "running" with another boot id, the machine
went down too, and records that were not synced may be lost.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from bascule.errors import StorageError
from bascule.kernels.wire.checksum import crc32c
from bascule.log.disk.operations import Disk, read_file, replace_file
from bascule.metadata.identity import random_id

FILE_NAME: Final = "last-run"
VERSION: Final = 1
BOOT_ID_FILE: Final = Path("/proc/sys/kernel/random/boot_id")

RUNNING: Final = "running"
STOPPED: Final = "stopped"


class Ending(Enum):
    NEVER_RAN = "never ran"
    CLEAN = "clean"
    PROCESS_DIED = "process died"
    MACHINE_DIED = "machine died"
    OTHER_DATA = "other data"
    """The directory is not the one, or not in the state, that the last run left."""

    @property
    def is_intact(self) -> bool:
        """Whether no written record can be lost."""
        return self not in (Ending.MACHINE_DIED, Ending.OTHER_DATA)


@dataclass(frozen=True, slots=True)
class _Run:
    boot_id: str
    server_epoch: int
    state: str


class RunMarker:
    def __init__(self, disk: Disk, directory: str, boot_id_file: Path = BOOT_ID_FILE) -> None:
        self._disk = disk
        self._path = f"{directory}/{FILE_NAME}"
        self._boot_id = _boot_id(boot_id_file)
        self._run = random_id()
        self._server_epoch = 0
        self._content: bytes | None = None
        self._exists, self._last = self._look()

    def _look(self) -> tuple[bool, _Run | None]:
        try:
            data = read_file(self._disk, self._path)
        except StorageError:
            return True, None
        return data is not None, None if data is None else _run_in(data)

    def ending(self, server_epoch: int) -> Ending:
        """How the last run ended. `server_epoch` is its epoch in the metadata, 0 when the cluster knows of no run."""
        if not self._exists:
            return Ending.NEVER_RAN if server_epoch == 0 else Ending.OTHER_DATA
        if self._last is None or self._last.server_epoch != server_epoch:
            return Ending.OTHER_DATA
        if self._last.state == STOPPED:
            return Ending.CLEAN
        is_same_boot = bool(self._boot_id) and self._last.boot_id == self._boot_id
        return Ending.PROCESS_DIED if is_same_boot else Ending.MACHINE_DIED

    def write_running(self, server_epoch: int) -> None:
        """Mark the run as started; durable when it returns."""
        self._server_epoch = server_epoch
        self._content = self._line(RUNNING)
        replace_file(self._disk, self._path, self._content, durable=True)

    def write_stopped(self) -> None:
        """Mark the run as cleanly ended, with all logs synced. Leaves the file alone if another run has replaced it."""
        if self._content is not None and read_file(self._disk, self._path) == self._content:
            replace_file(self._disk, self._path, self._line(STOPPED), durable=True)

    def _line(self, state: str) -> bytes:
        fields = {
            "boot_id": self._boot_id,
            "run": self._run,
            "server_epoch": self._server_epoch,
            "state": state,
            "version": VERSION,
        }
        line = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
        return b"%s\n%08x\n" % (line, crc32c(line))


def _boot_id(path: Path) -> str:
    """Empty where the system has none; then every crash counts as a crash of the machine."""
    try:
        return path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _run_in(data: bytes) -> _Run | None:
    line, _, rest = data.partition(b"\n")
    if rest != b"%08x\n" % crc32c(line):
        return None
    try:
        found = json.loads(line)
        run = _Run(found["boot_id"], found["server_epoch"], found["state"])
    except (ValueError, KeyError, TypeError):
        return None
    is_whole = isinstance(run.boot_id, str) and isinstance(run.server_epoch, int) and run.state in (RUNNING, STOPPED)
    return run if is_whole else None
