"""Small JSON files beside the data of a table: a file appears whole or not at all, and is never replaced."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bascule.errors import NO_ROOM, ArchiveConflict, ArchiveDamaged, DiskFull, StorageError

ROOM_HINT: Final = (
    "make room there, then start the job again: it continues where it stopped, and nothing is written twice"
)


def read_document(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises FileNotFoundError, or ArchiveDamaged when it is not a JSON object."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise ArchiveDamaged(f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise ArchiveDamaged(f"{path} is not a JSON object")
    return found


def write_document(path: Path, document: dict[str, Any]) -> None:
    """Write a document, whole and durable. Raises ArchiveConflict if the file exists."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            json.dump(document, file, separators=(",", ":"))
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    except FileExistsError:
        raise ArchiveConflict(
            f"{path} was written by another process", hint="only one pipeline may write a table"
        ) from None
    except OSError as error:
        raise refused(path.parent, path.name, error) from error
    finally:
        temporary.unlink(missing_ok=True)
    with writing(path.parent, path.name):
        sync_directory(path.parent)


def refused(folder: Path, name: str, error: OSError) -> StorageError:
    """The error for a write that the operating system refused."""
    if error.errno in NO_ROOM:
        return DiskFull(f"no room in {folder} for {name}: {error.strerror}", hint=ROOM_HINT)
    return StorageError(f"cannot write {name} in {folder}: {error.strerror or error}")


@contextlib.contextmanager
def writing(folder: Path, name: str) -> Iterator[None]:
    """Raises errors of the operating system as StorageError, which names the folder."""
    try:
        yield
    except OSError as error:
        raise refused(folder, name, error) from error


def sync_directory(path: Path) -> None:
    """Make files that were created, linked or removed in a folder durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
