"""The audit log of a running server. A call never waits for it: records go through a bounded queue to a thread that writes them.

When the queue is full, records are dropped. A dropped record keeps its number, and a record `Lost` says how many were dropped, so the
gap is visible. While the file cannot be written, the thread retries and the queue fills.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from pathlib import Path
from typing import Final

from bascule import limits
from bascule.errors import OperatorError
from bascule.security.attempts import network_of
from bascule.security.audit.files import HEAD_FILE, AuditFile, AuditHead, last_hash
from bascule.security.audit.records import DETAIL_CHARACTERS_MAX, LOST, AuditChain, AuditEntry, clipped
from bascule.security.audit.refusals import WINDOW_SECONDS, RefusalBound

BATCH_RECORDS_MAX: Final = 64
"""Records that are written and synced at once: their bytes stay below `files.TAIL_BYTES`."""

RETRY_SECONDS: Final = 1.0
"""Interval between attempts to write the audit log after a failure."""

CLOSE_SECONDS: Final = 5.0
"""Time that a server that stops gives its audit log to write what waits."""

_logger = logging.getLogger(__name__)


class AuditLog:
    """Used from any thread."""

    def __init__(self, path: Path | None, data_directory: Path, server: str, key: bytes | None) -> None:
        """Without a path the log is off. Raises OperatorError if the file cannot be used."""
        self.is_on = path is not None
        self.written = 0
        """Records on disk."""
        self.lost = 0
        """Records that were dropped."""
        self._changed = threading.Condition()
        self._queue: list[AuditEntry] = []
        self._number = 0
        self._unreported = 0
        """Dropped records that no record `Lost` has counted yet."""
        self._bound = RefusalBound()
        self._closing = False
        self._reopening = False
        self._failing = False
        self._thread: threading.Thread | None = None
        if path is None:
            return
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

    # ── from calls ───────────────────────────────────────────────────────────────────────────────

    def event(self, action: str, result: str = "OK", detail: str = "") -> None:
        """Record something that no client has done: a start, a stop, a reload."""
        self._note(None, action, "*", result, detail, is_bounded=False)

    def refused(self, peer: object, resource: str, action: str) -> None:
        """Record a call that the policy does not allow."""
        self._note(peer, action, resource, "PERMISSION_DENIED", "", is_bounded=True)

    def unauthenticated(self, peer: object, action: str, text: str) -> None:
        """Record a call without valid credentials."""
        self._note(peer, action, "*", "UNAUTHENTICATED", text, is_bounded=True)

    def called(self, peer: object, action: str, resource: str, result: str, detail: str) -> None:
        """Record a call that changes something. One that failed is bounded like a refusal: it may be cheap."""
        self._note(peer, action, resource, result, detail, is_bounded=result != "OK")

    def _note(self, peer: object, action: str, resource: str, result: str, detail: str, *, is_bounded: bool) -> None:
        if not self.is_on:
            return
        principal, address = getattr(peer, "common_name", None) or "", getattr(peer, "address", "")
        with self._changed:
            if is_bounded:
                client = (clipped(principal), "") if principal else ("", network_of(address))
                if not self._bound.admits(client, time.monotonic()):
                    return
            self._add(principal, address, action, resource, result, detail)

    def _add(self, principal: str, address: str, action: str, resource: str, result: str, detail: str = "") -> None:
        """Number a record and put it into the queue; drop it when that is full. The lock is held."""
        self._number += 1
        if len(self._queue) >= limits.AUDIT_QUEUE_RECORDS_MAX:
            if not self._unreported:
                _logger.warning("audit records are dropped: %d wait to be written", len(self._queue))
            self._unreported += 1
            self.lost += 1
            return
        # Clipped here as well: the queue bounds the number of records, and this bounds the bytes.
        texts = (clipped(principal), clipped(address), clipped(action), clipped(resource), result)
        detail = clipped(detail, DETAIL_CHARACTERS_MAX)
        self._queue.append(AuditEntry(self._number, time.time_ns(), *texts, detail))
        self._changed.notify()

    # ── from the server ──────────────────────────────────────────────────────────────────────────

    def use_key(self, key: bytes | None) -> None:
        """Sign with this key from now on: the cluster secret has changed."""
        if self.is_on:
            self._chain.key = key

    def reopen(self) -> None:
        """Open the file again before the next record, after a rotation."""
        self._reopening = True

    def close(self) -> None:
        """Write what waits, for at most `CLOSE_SECONDS`, and stop."""
        if self._thread is None:
            return
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(CLOSE_SECONDS)

    # ── on the thread ────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing, timeout=RETRY_SECONDS)
                is_last = self._closing
                entries = self._taken(is_last)
            if entries and not self._written(entries):
                break
            if is_last and not self._queue:
                break
        self._file.close()

    def _taken(self, is_last: bool) -> list[AuditEntry]:
        """Return the records to write, with those that count others. The lock is held."""
        entries, self._queue = self._queue[:BATCH_RECORDS_MAX], self._queue[BATCH_RECORDS_MAX:]
        if self._queue:
            return entries
        if self._unreported:
            self._number += 1
            text = f"{self._unreported} records were dropped before this one"
            entries.append(AuditEntry(self._number, time.time_ns(), "", "", LOST, "*", "LOST", text))
            self._unreported = 0
        for (principal, network), count in self._bound.summaries(time.monotonic(), at_once=is_last):
            self._number += 1
            text = f"{count} more calls were refused or failed within {WINDOW_SECONDS:g} s"
            entries.append(
                AuditEntry(self._number, time.time_ns(), principal, network, "RefusedCalls", "*", "SUMMARY", text)
            )
        return entries

    def _written(self, entries: list[AuditEntry]) -> bool:
        """Write records, and retry until it succeeds. Returns False if the server stops meanwhile."""
        data = b"".join(self._chain.seal(entry) + b"\n" for entry in entries)
        while not self._append(data):
            with self._changed:
                is_last = self._changed.wait_for(lambda: self._closing, timeout=RETRY_SECONDS)
            if is_last:
                if not self._append(data):
                    return False
                break
        self.written += len(entries)
        try:
            AuditHead(self._server, self._boot, entries[-1].number, self._chain.previous).write(self._head_path)
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
