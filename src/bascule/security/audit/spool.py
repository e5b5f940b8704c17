"""Records for the stream `__audit` that are perhaps not published yet: the file `audit.pending` in the data directory of a server.

    head      {"boot":…,"hash":…,"number":…,"server":…}     the record before the first line
    record    a line of the chain
    …

A record is synced to this file before it is published, and leaves it after its ack. A server that was killed publishes the rest again
after its start, and continues the chain after the last line: the chain has no gap and no fork, but the stream may have a record twice.
"""

from __future__ import annotations

import logging
from collections import deque
from pathlib import Path
from typing import Final

from bascule.security.audit.files import AuditFile, AuditHead
from bascule.security.audit.records import line_hash, parse_record

PENDING_FILE: Final = "audit.pending"
"""Name of the file in the data directory."""

SPENT_RECORDS_MAX: Final = 4096
"""Published records that stay in the file until it is replaced by a shorter one; it is also replaced when none is left."""

_logger = logging.getLogger(__name__)


class AuditSpool:
    def __init__(self, path: Path, server: str) -> None:
        """Raises OperatorError if the file cannot be opened."""
        self._path = path
        self._file = AuditFile(path, "the file of audit records to publish")
        self._server = server
        self._spent = 0
        """Published records that the file still has."""
        heads = _parse(path.read_bytes(), server)
        if heads is None:
            if self._file.tail():
                _logger.error("%s is damaged, or belongs to another server: a new chain of audit records begins", path)
            heads = [(b"", AuditHead(server, "", 0, ""))]
            heads[0][1].write(path)
            self._file.reopen()
        self._published = heads[0][1]
        """The last record that is published."""
        self.last = heads[-1][1]
        """The last record of the chain."""
        self._waiting = deque(heads[1:])

    def __len__(self) -> int:
        """Return the number of records that are not published."""
        return len(self._waiting)

    @property
    def first(self) -> bytes:
        """The oldest record that is not published."""
        return self._waiting[0][0]

    def append(self, lines: list[bytes]) -> None:
        """Add records that follow the last one, and sync them to disk. Raises OSError or OperatorError; then none of them is added."""
        if self._file.is_replaced:  # another program has removed the file, or the last `trim` failed
            self.trim()
        self._file.append(b"".join(line + b"\n" for line in lines))
        for line in lines:
            self.last = _head_of(line)
            self._waiting.append((line, self.last))

    def published(self) -> None:
        """Forget the first record: it is published. The file follows with `trim`."""
        self._published = self._waiting.popleft()[1]
        self._spent += 1

    @property
    def needs_trim(self) -> bool:
        return self._spent > 0 and (not self._waiting or self._spent >= SPENT_RECORDS_MAX)

    def trim(self) -> None:
        """Replace the file by one without the published records. Raises OSError, or OperatorError."""
        self._published.write(self._path, [line for line, _ in self._waiting])
        self._file.reopen()
        self._spent = 0

    def close(self) -> None:
        self._file.close()


def read_head(path: Path) -> AuditHead | None:
    """Return the last record that `audit.head` or `audit.pending` of a server names; None if the file is neither, or is missing."""
    try:
        heads = _parse(path.read_bytes())
    except OSError:
        return None
    return None if heads is None else heads[-1][1]


def _parse(data: bytes, server: str | None = None) -> list[tuple[bytes, AuditHead]] | None:
    """Return the head and the records, each with its place in the chain; None if they do not follow each other."""
    first, *lines = data.removesuffix(b"\n").split(b"\n")
    head = AuditHead.parse(first)
    if head is None or server not in (None, head.server):
        return None
    found = [(b"", head)]
    for line in lines:
        record = parse_record(line)
        if record is None or record["previous"] != found[-1][1].hash:
            return None
        found.append((line, _head_of(line)))
    return found


def _head_of(line: bytes) -> AuditHead:
    record = parse_record(line)
    assert record is not None
    return AuditHead(record["server"], record["boot"], record["number"], line_hash(line))
