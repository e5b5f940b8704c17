"""Small JSON files that appear whole or not at all, and are not replaced: what tables in a lake are made of besides their data."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from bascule.errors import ArchiveConflict, ArchiveDamaged, StorageError


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
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """What was made, linked or removed in a folder lasts from now on."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
