"""Writes audit records to a file, on a thread. While the file cannot be written, the thread retries and the queue fills."""

from __future__ import annotations

import logging
import secrets
import threading
from pathlib import Path
from typing import Final

from bascule.errors import OperatorError
from bascule.security.audit.files import HEAD_FILE, AuditFile, AuditHead, last_hash
from bascule.security.audit.log import AuditLog
from bascule.security.audit.queue import AuditQueue
from bascule.security.audit.records import AuditChain, AuditEntry

BATCH_RECORDS_MAX: Final = 64
"""Records that are written and synced at once: their bytes stay below `files.TAIL_BYTES`."""

RETRY_SECONDS: Final = 1.0
"""Interval between attempts to write the audit log after a failure."""

CLOSE_SECONDS: Final = 5.0
"""Time that a server that stops gives its audit log to write the records that wait."""

_logger = logging.getLogger(__name__)


class AuditFileWriter:
    """Takes records from the queue of the log for its file."""

    def __init__(
        self, path: Path, data_directory: Path, server: str, key: bytes | None, log: AuditLog, queue: AuditQueue
    ) -> None:
        """Raises OperatorError if the file cannot be used."""
        self._log = log
        self._queue = queue
        self._reopening = False
        self._failing = False
        self._file = AuditFile(path)
        self._head_path = data_directory / HEAD_FILE
        self._server = server
        self._boot = secrets.token_hex(8)
        previous = last_hash(self._file.tail(), server, AuditHead.read(self._head_path))
        self._chain = AuditChain(server, self._boot, previous, key)
        if self._file.torn_bytes:
            _logger.warning("%s ended within a record: %d bytes were removed", path, self._file.torn_bytes)
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    def use_key(self, key: bytes | None) -> None:
        """Sign with this key from now on: the cluster secret has changed."""
        self._chain.key = key

    def reopen(self) -> None:
        """Open the file again before the next record, after a rotation."""
        self._reopening = True

    def close(self) -> None:
        """Write the records that wait, for at most `CLOSE_SECONDS`, and stop."""
        self._log.summarize(at_once=True)
        self._queue.close()
        self._thread.join(CLOSE_SECONDS)

    # ── on the thread ────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        while True:
            is_last = self._queue.wait(RETRY_SECONDS)
            self._log.summarize()
            entries = self._queue.take(BATCH_RECORDS_MAX)
            if entries and not self._written(entries):
                break
            if is_last and not entries:
                break
        self._file.close()

    def _written(self, entries: list[AuditEntry]) -> bool:
        """Write records, and retry until it succeeds. Returns False if the server stops meanwhile."""
        data = b"".join(self._chain.seal(entry) + b"\n" for entry in entries)
        while not self._append(data):
            if self._queue.wait_closed(RETRY_SECONDS):
                if not self._append(data):
                    return False
                break
        self._queue.written += len(entries)
        try:
            AuditHead(self._server, self._boot, self._chain.number, self._chain.previous).write(self._head_path)
        except OSError as error:
            _logger.warning("%s cannot be written: %s", self._head_path, error.strerror)
        return True

    def _append(self, data: bytes) -> bool:
        try:
            if self._reopening:
                self._reopening = False
                self._file.reopen()
        except OperatorError as error:
            _logger.error("the audit log goes on with its present file: %s", error.message)
        try:
            self._file.append(data)
        except OSError as error:
            if not self._failing:
                _logger.error("the audit log %s cannot be written, retrying: %s", self._file.path, error.strerror)
            self._failing = True
            return False
        if self._failing:
            _logger.info("the audit log is written again")
        self._failing = False
        return True
