"""The file of the audit log, and the small file beside the data that remembers its end."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bascule.errors import OperatorError
from bascule.security.audit.records import line_hash, parse_record

HEAD_FILE: Final = "audit.head"
"""Name of the file in the data directory that has the hash of the last record of the file."""
TAIL_BYTES: Final = 2 << 20
"""Bytes at the end of the file that are searched for the last record of this server at the start; one batch is smaller."""


class AuditFile:
    """Appends lines, all of them or none, and syncs them to disk."""

    def __init__(self, path: Path, what: str = "`security.audit.file`") -> None:
        """Raises OperatorError if the file, which the error calls `what`, cannot be opened, or another process writes it."""
        self.path = path
        self._what = what
        self._handle = _open(path, what)
        self._size = os.fstat(self._handle).st_size
        """Bytes of complete lines."""
        self._is_torn = False
        """Whether an append has failed, and may have left a part of its data."""
        self.torn_bytes = self._cut_torn_line()

    def _cut_torn_line(self) -> int:
        """Remove the part of a line that a crash has left at the end. Returns its bytes."""
        tail = self.tail()
        torn = len(tail) - (tail.rfind(b"\n") + 1)
        if torn:
            self._size -= torn
            os.ftruncate(self._handle, self._size)
        return torn

    def tail(self) -> bytes:
        return os.pread(self._handle, TAIL_BYTES, max(0, self._size - TAIL_BYTES))

    def append(self, data: bytes) -> None:
        """Raises OSError; the file then has nothing of the data after the next successful call."""
        size = os.fstat(self._handle).st_size
        if self._is_torn and size > self._size:
            os.ftruncate(self._handle, self._size)
        elif not self._is_torn:
            self._size = size  # another program may have cut the file
        self._is_torn = True
        left = memoryview(data)
        while left:
            left = left[os.write(self._handle, left) :]
        os.fsync(self._handle)
        self._size += len(data)
        self._is_torn = False

    @property
    def is_replaced(self) -> bool:
        """Whether the path names another file now, or none."""
        try:
            return not os.path.samestat(self.path.stat(), os.fstat(self._handle))
        except OSError:
            return True

    def reopen(self) -> None:
        """Open the path again if it names another file now, after a rotation. Raises OperatorError and keeps the present file."""
        if not self.is_replaced:
            return
        opened = _open(self.path, self._what)
        os.close(self._handle)
        self._handle, self._size, self._is_torn = opened, os.fstat(opened).st_size, False
        self._cut_torn_line()

    def close(self) -> None:
        os.close(self._handle)


def _open(path: Path, what: str) -> int:
    try:
        # O_NONBLOCK: a named pipe without a reader must not block the start.
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o600)
    except OSError as error:
        raise _unusable(path, what, f"it cannot be opened: {error.strerror}") from None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise _unusable(path, what, "it is not a regular file")
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise _unusable(path, what, "another process writes it") from None
    except OperatorError:
        os.close(handle)
        raise
    return handle


def _unusable(path: Path, what: str, reason: str) -> OperatorError:
    return OperatorError(
        f"{what}, {path}, cannot be used: {reason}",
        hint="give each server a file of its own, in a directory that exists and that the server's user can write",
    )


@dataclass(frozen=True, slots=True)
class AuditHead:
    """The last record that a server has written."""

    server: str
    boot: str
    number: int
    hash: str

    def write(self, path: Path, lines: Iterable[bytes] = ()) -> None:
        """Replace the file; `lines` follow the head. Raises OSError."""
        temporary = path.with_name(f"{path.name}.new")
        document = {"server": self.server, "boot": self.boot, "number": self.number, "hash": self.hash}
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(json.dumps(document).encode() + b"\n")
            file.writelines(line + b"\n" for line in lines)
            file.flush()
            os.fsync(handle)
        temporary.replace(path)

    @classmethod
    def read(cls, path: Path) -> AuditHead | None:
        """Return None if there is none, or if it is damaged."""
        try:
            return cls.parse(path.read_bytes())
        except OSError:
            return None

    @classmethod
    def parse(cls, data: bytes) -> AuditHead | None:
        """Return None if the data are damaged."""
        try:
            found = json.loads(data)
            return cls(str(found["server"]), str(found["boot"]), int(found["number"]), str(found["hash"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            return None


def last_hash(tail: bytes, server: str, head: AuditHead | None) -> str:
    """Return the hash of the last record that the server has written before; empty if none is known.

    It is the last one in the file, unless the file lacks the record that the head names: then records were removed, or the file was
    rotated, and the chain goes on from the head. A crash between the two writes leaves the head older than the file.
    """
    own = []
    for line in tail.split(b"\n"):
        record = parse_record(line)
        if record is not None and record["server"] == server:
            own.append(line_hash(line))
    if head is None or head.server != server:
        return own[-1] if own else ""
    return own[-1] if head.hash in own else head.hash
