"""The data directory of a Go Liftbridge server: how it is recognised, and its files.

liftbridge                                      protobuf ServerState: 1 server id
raft/raft.db, raft/snapshots/                   Raft state, see raft_state.py
streams/<stream>/<partition>/%020d.log          segments, see segments.py
"""

from __future__ import annotations

import fcntl
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bascule.errors import OperatorError, StateError
from bascule.liftbridge.protobuf import Fields

SERVER_FILE: Final = "liftbridge"
RAFT_FILE: Final = Path("raft", "raft.db")
UNFINISHED_FILE: Final = "import-unfinished"
"""In a data directory of Bascule while an import writes into it. A broker does not start there."""

_SEGMENT: Final = re.compile(r"[0-9]{20}\.log")


def refuse_liftbridge_directory(directory: Path) -> None:
    """Raise OperatorError if the directory belongs to a Liftbridge server, or holds an unfinished import. Changes nothing."""
    if (directory / UNFINISHED_FILE).exists():
        raise OperatorError(
            f"the import into {directory} was interrupted",
            hint="run the same `bascule import liftbridge` again: it begins anew",
        )
    if is_liftbridge_directory(directory):
        raise OperatorError(
            f"{directory} is the data directory of a Go Liftbridge server: Bascule has other files, and changed nothing there",
            hint=f"copy its streams and cursors into a new directory: `bascule import liftbridge {directory} --data-dir NEW`, or "
            "start with an empty one; see docs/guides/moving-from-liftbridge.md",
        )


def is_liftbridge_directory(directory: Path) -> bool:
    return (directory / SERVER_FILE).is_file() or (directory / RAFT_FILE).is_file()


@dataclass(frozen=True, slots=True)
class LiftbridgeDirectory:
    path: Path
    server_id: str
    """Empty if the file with the id is missing."""

    @classmethod
    def open(cls, path: Path) -> LiftbridgeDirectory:
        """The directory, after checking that no server runs on it. Raises OperatorError or StateError."""
        if not is_liftbridge_directory(path) and not (path / "streams").is_dir():
            raise OperatorError(
                f"{path} is not the data directory of a Go Liftbridge server: it has neither `{SERVER_FILE}` nor `{RAFT_FILE}`",
                hint="give the directory of `data.dir`, by default /tmp/liftbridge/<namespace>",
            )
        _refuse_running_server(path)
        return cls(path, _server_id(path / SERVER_FILE))

    def streams(self) -> dict[str, list[int]]:
        """The partitions on disk of each stream."""
        root = self.path / "streams"
        found: dict[str, list[int]] = {}
        for path in sorted(root.iterdir()) if root.is_dir() else ():
            numbers = sorted(int(one.name) for one in path.iterdir() if one.name.isdecimal() and one.is_dir())
            if path.is_dir() and numbers:
                found[path.name] = numbers
        return found

    def segments(self, stream: str, partition: int) -> list[Path]:
        """The log files of a partition in the order of their offsets; empty without a directory."""
        root = self.path / "streams" / stream / str(partition)
        if not root.is_dir():
            return []
        return sorted(path for path in root.iterdir() if _SEGMENT.fullmatch(path.name))


def _server_id(path: Path) -> str:
    if not path.is_file():
        return ""
    try:
        return Fields(path.read_bytes()).text(1)
    except ValueError as error:
        raise OperatorError(f"{path} is damaged: {error}", hint="restore it, or remove it") from None


def _refuse_running_server(path: Path) -> None:
    """BoltDB locks its file while a server runs."""
    file = path / RAFT_FILE
    if not file.is_file():
        return
    with file.open("rb") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            raise StateError(
                f"a Liftbridge server runs on {path}", hint="stop it first: its files change while it runs"
            ) from None
