"""Reads an archive of the former format: a log of commits in JSON, and states that sum them up.

<archive>/
  _bascule/archive.json                 {"format": 1, "streams": ["orders"], "created_ns": …}
  _bascule/commits/<number>.json        {"format": 1, "number": 7, "kind": "append", "added": [<file>, …], "removed": [], …}
  _bascule/state/<number>.json          {"format": 1, "number": 1200, "crc32c": …, "state": {"files": [<file>, …], …}}
  data/date=2026-11-15/….parquet
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from bascule.errors import ArchiveDamaged
from bascule.kernels.wire.checksum import crc32c
from bascule.lake.delta.documents import read_document
from bascule.lake.facts import ArchiveState, Began, Commit, Covered, DataFile, Lost

FORMAT: Final = 1
DESCRIPTION: Final = "_bascule/archive.json"
_COMMITS: Final = "_bascule/commits"
_STATES: Final = "_bascule/state"


def describe_former(folder: Path) -> dict[str, Any]:
    """`streams`, and what else it was made with. Raises ArchiveDamaged."""
    try:
        found = read_document(folder / DESCRIPTION)
    except FileNotFoundError:
        raise ArchiveDamaged(f"{folder} is no archive of the former format") from None
    _must_be_known(folder / DESCRIPTION, found)
    return found


def read_former(folder: Path) -> ArchiveState:
    """The sum of its commits. Raises ArchiveDamaged for one that is missing or cannot be read."""
    states = _numbered(folder / _STATES)
    state = ArchiveState() if not states else _read_state(states[-1])
    for path in _numbered(folder / _COMMITS):
        number = int(path.stem)
        if number > state.number + 1:
            raise ArchiveDamaged(f"{folder}: commit {state.number + 1} is missing, {path.name} is there")
        if number == state.number + 1:
            state.apply(_read_commit(path))
    return state


def _numbered(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.json") if path.stem.isdecimal())


def _must_be_known(path: Path, document: dict[str, Any]) -> None:
    if document.get("format") != FORMAT:
        raise ArchiveDamaged(
            f"{path} has format {document.get('format')!r}, the former format is {FORMAT}",
            hint="use the version that wrote it, or a later one",
        )


def _read_commit(path: Path) -> Commit:
    document = read_document(path)
    _must_be_known(path, document)
    try:
        known = {item.name for item in fields(Commit)}
        values = {name: value for name, value in document.items() if name in known}
        values["removed"] = tuple(document["removed"])
        for name, kind in (("added", DataFile), ("covered", Covered), ("lost", Lost), ("began", Began)):
            values[name] = tuple(kind(**one) for one in document.get(name, ()))
        return Commit(**values)
    except (KeyError, TypeError) as error:
        raise ArchiveDamaged(f"{path} is no commit: {error}") from None


def _read_state(path: Path) -> ArchiveState:
    document = read_document(path)
    _must_be_known(path, document)
    try:
        inner = document["state"]
        text = json.dumps(inner, separators=(",", ":"), sort_keys=True)
        if crc32c(text.encode()) != document["crc32c"]:
            raise ArchiveDamaged(f"{path} is not what was written")
        whole = Commit(
            inner["number"],
            "append",
            inner["last_commit_ns"],
            added=tuple(DataFile(**one) for one in inner["files"]),
            covered=tuple(Covered(stream, number, part, 0, end) for stream, number, part, end in inner["next_offsets"]),
            lost=tuple(Lost(**one) for one in inner.get("lost", ())),
            began=tuple(Began(*one) for one in inner.get("began", ())),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ArchiveDamaged(f"{path} is no state of an archive: {error}") from None
    found = ArchiveState()
    found.apply(whole)
    return found
