"""The audit log of a running server: makes records of calls and events, and puts them into the queues of the writers.

A server may have two writers: one of a file, and one of the stream `__audit`. Each has its own queue and its own chain of hashes, so a
full disk makes no gap in the stream, and a cluster without a leader makes none in the file.
"""

from __future__ import annotations

import threading
import time

from bascule.security.attempts import network_of
from bascule.security.audit.queue import AuditQueue
from bascule.security.audit.records import DETAIL_CHARACTERS_MAX, AuditEntry, clipped
from bascule.security.audit.refusals import WINDOW_SECONDS, RefusalBound


class AuditLog:
    """Used from any thread."""

    def __init__(self, file: AuditQueue | None = None, stream: AuditQueue | None = None) -> None:
        """Without a queue the log is off."""
        self.file = file
        self.stream = stream
        self.is_on = file is not None or stream is not None
        self._bound = RefusalBound()
        self._lock = threading.Lock()
        """Guards the bound."""

    def event(self, action: str, result: str = "OK", detail: str = "") -> None:
        """Record something that no client has done: a start, a stop, a reload."""
        self._note(None, action, "*", result, detail, is_bounded=False)

    @staticmethod
    def event_of(queue: AuditQueue, action: str) -> None:
        """Record an event for one writer alone."""
        queue.add(AuditEntry(time.time_ns(), "", "", action, "*", "OK"))

    def refused(self, peer: object, resource: str, action: str) -> None:
        """Record a call that the policy does not allow."""
        self._note(peer, action, resource, "PERMISSION_DENIED", "", is_bounded=True)

    def unauthenticated(self, peer: object, action: str, text: str) -> None:
        """Record a call without valid credentials."""
        self._note(peer, action, "*", "UNAUTHENTICATED", text, is_bounded=True)

    def called(self, peer: object, action: str, resource: str, result: str, detail: str) -> None:
        """Record a call that changes something. One that failed is bounded like a refusal: it may be cheap."""
        self._note(peer, action, resource, result, detail, is_bounded=result != "OK")

    def summarize(self, *, at_once: bool = False) -> None:
        """Count the refused calls of a window that is over, in a record for each client. The writers call this about once a second."""
        with self._lock:
            found = self._bound.summaries(time.monotonic(), at_once=at_once)
        for (principal, network), count in found:
            text = f"{count} more calls were refused or failed within {WINDOW_SECONDS:g} s"
            self._add(AuditEntry(time.time_ns(), principal, network, "RefusedCalls", "*", "SUMMARY", text))

    def _note(self, peer: object, action: str, resource: str, result: str, detail: str, *, is_bounded: bool) -> None:
        if not self.is_on:
            return
        principal, address = getattr(peer, "common_name", None) or "", getattr(peer, "address", "")
        if is_bounded:
            client = (clipped(principal), "") if principal else ("", network_of(address))
            with self._lock:
                if not self._bound.admits(client, time.monotonic()):
                    return
        # Clipped here as well: a queue bounds the number of records, and this bounds the bytes.
        texts = (clipped(principal), clipped(address), clipped(action), clipped(resource), result)
        self._add(AuditEntry(time.time_ns(), *texts, clipped(detail, DETAIL_CHARACTERS_MAX)))

    def _add(self, entry: AuditEntry) -> None:
        for queue in (self.file, self.stream):
            if queue is not None:
                queue.add(entry)
