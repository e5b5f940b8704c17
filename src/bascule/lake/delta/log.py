"""Reads the log of a Delta table: commits, each a file of JSON lines, and checkpoints, which hold the sum of the commits before them.

    _delta_log/<version>.json                    actions: protocol, metaData, add, remove, txn, commitInfo
    _delta_log/<version>.checkpoint.parquet      the same actions, without commitInfo
    _delta_log/_last_checkpoint                  {"version": …}

deltalake writes it and hides most of it: transactions, statistics as they were written, and the commit that each action is of. The
proof needs these. https://github.com/delta-io/delta/blob/master/PROTOCOL.md
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

from bascule.errors import ArchiveDamaged
from bascule.lake.delta.place import LakePlace

LOG: Final = "_delta_log"
_COMMIT: Final = re.compile(LOG + r"/(\d{20})\.json")
_CHECKPOINT: Final = re.compile(LOG + r"/(\d{20})\.checkpoint(\.[\w.-]+)?\.parquet")


@dataclass(frozen=True, slots=True)
class AddedFile:
    """An `add` action."""

    path: str
    size: int
    values: tuple[tuple[str, str], ...]
    """Of the partition columns."""
    modified_ms: int
    stats: str
    is_change: bool = True

    def facts(self, name: str) -> dict[str, Any] | None:
        """An object that the writer has put into the statistics under a name of its own."""
        try:
            found = json.loads(self.stats).get(name)
        except (ValueError, AttributeError):
            return None
        return found if isinstance(found, dict) else None


@dataclass(frozen=True, slots=True)
class RemovedFile:
    """A `remove` action."""

    path: str
    at_ms: int
    is_data_change: bool = True


@dataclass(slots=True)
class DeltaCommit:
    """The actions of a version; of a checkpoint, those that hold up to it."""

    version: int
    added: list[AddedFile] = field(default_factory=list)
    removed: list[RemovedFile] = field(default_factory=list)
    transactions: dict[str, int] = field(default_factory=dict)
    metadata: dict[str, Any] | None = None
    protocol: dict[str, Any] | None = None
    info: dict[str, Any] = field(default_factory=dict)
    deletion_vectors: bool = False


@dataclass(frozen=True, slots=True)
class LogFiles:
    """What lies in the log."""

    commits: tuple[int, ...]
    checkpoints: tuple[tuple[int, str], ...]
    """Version and name."""

    @property
    def newest(self) -> int:
        return max((*self.commits, *(version for version, _ in self.checkpoints)), default=-1)


def list_log(place: LakePlace) -> LogFiles:
    commits, checkpoints = [], []
    for one in place.list(LOG):
        if (match := _COMMIT.fullmatch(one.name)) is not None:
            commits.append(int(match[1]))
        elif (match := _CHECKPOINT.fullmatch(one.name)) is not None:
            checkpoints.append((int(match[1]), one.name))
    return LogFiles(tuple(sorted(commits)), tuple(sorted(checkpoints)))


def commit_name(version: int) -> str:
    return f"{LOG}/{version:020d}.json"


def read_commit(place: LakePlace, version: int) -> DeltaCommit | None:
    """None if there is none. Raises ArchiveDamaged for one that cannot be read."""
    name = commit_name(version)
    try:
        text = place.read(name)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ArchiveDamaged(f"{place}/{name} cannot be read: {error.strerror or error}") from None
    try:
        lines = [json.loads(line) for line in text.decode().splitlines() if line.strip()]
        if not lines:
            raise ValueError("it is empty")
        return decoded(version, lines)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArchiveDamaged(f"{place}/{name} is no commit: {error}", hint=VERIFY_HINT) from None


VERIFY_HINT: Final = "`bascule pipeline verify` tells what is wrong"


def read_checkpoint(place: LakePlace, version: int, name: str) -> DeltaCommit:
    """Raises ArchiveDamaged for one that cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with place.open(name) as file:
            table = pq.read_table(file)
        rows = [{kind: value for kind, value in row.items() if value is not None} for row in table.to_pylist()]
        if any("sidecar" in row for row in rows):
            raise ValueError("it has sidecars")
        return decoded(version, rows)
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError) as error:
        raise ArchiveDamaged(
            f"{place}/{name} cannot be read: {error}",
            hint="if the commits since the checkpoint before it are there, delete it: they say the same",
        ) from None


def decoded(version: int, actions: Iterable[dict[str, Any]]) -> DeltaCommit:
    """The actions of JSON lines, or of the rows of a checkpoint. Pure."""
    found = DeltaCommit(version)
    for action in actions:
        for kind, value in action.items():
            match kind:
                case "add":
                    found.added.append(_added(value))
                    found.deletion_vectors |= bool(value.get("deletionVector"))
                case "remove":
                    removed_at = int(value.get("deletionTimestamp") or 0)
                    is_change = bool(value.get("dataChange", True))
                    found.removed.append(RemovedFile(unquote(value["path"]), removed_at, is_change))
                case "txn":
                    found.transactions[value["appId"]] = int(value["version"])
                case "metaData":
                    found.metadata = value
                case "protocol":
                    found.protocol = value
                case "commitInfo":
                    found.info = value
    return found


def _added(value: dict[str, Any]) -> AddedFile:
    values = dict(value["partitionValues"])
    return AddedFile(
        unquote(value["path"]),
        int(value["size"]),
        tuple(sorted((name, text or "") for name, text in values.items())),
        int(value["modificationTime"]),
        value.get("stats") or "",
        bool(value.get("dataChange", True)),
    )
