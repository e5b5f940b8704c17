"""Small JSON files that appear whole or not at all, and are not replaced: what tables in a lake are made of besides their data."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bascule.errors import NO_ROOM, ArchiveConflict, ArchiveDamaged, DiskFull, StorageError

ROOM_HINT: Final = "make room there, then start it again: it goes on where it was, and nothing is written twice"


def read_document(path: Path) -> dict[str, Any]:
    """Raises FileNotFoundError when it is not there, ArchiveDamaged when it is no object of JSON."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise ArchiveDamaged(f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise ArchiveDamaged(f"{path} holds no object")
    return found


def write_document(path: Path, document: dict[str, Any]) -> None:
    """Whole, durable, and only if it is not there: else ArchiveConflict."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            json.dump(document, file, separators=(",", ":"))
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    except FileExistsError:
        raise ArchiveConflict(f"{path} was written by somebody else", hint="one pipeline writes a table") from None
    except OSError as error:
        raise refused(path.parent, path.name, error) from error
    finally:
        temporary.unlink(missing_ok=True)
    with writing(path.parent, path.name):
        sync_directory(path.parent)


def refused(folder: Path, name: str, error: OSError) -> StorageError:
    """What an operating system that will not write means for us."""
    if error.errno in NO_ROOM:
        return DiskFull(f"no room in {folder} for {name}: {error.strerror}", hint=ROOM_HINT)
    return StorageError(f"cannot write {name} in {folder}: {error.strerror or error}")


@contextlib.contextmanager
def writing(folder: Path, name: str) -> Iterator[None]:
    """Errors of the operating system leave it as ours, which name the folder."""
    try:
        yield
    except OSError as error:
        raise refused(folder, name, error) from error


def sync_directory(path: Path) -> None:
    """What was made, linked or removed in a folder lasts from now on."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
