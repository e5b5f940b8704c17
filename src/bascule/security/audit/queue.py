"""Audit records that wait to be written. A call never waits for a writer: the queue is bounded, and drops records when it is full."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from bascule import limits
from bascule.security.audit.records import AuditEntry, lost_entry

_logger = logging.getLogger(__name__)


class AuditQueue:
    """Records for one writer, a thread or a task. Used from any thread.

    When the queue is full, it drops records. A record `Lost` takes their place and says how many they are: it goes into the queue
    before the next record that is not dropped.
    """

    def __init__(self, on_news: Callable[[], object] = lambda: None) -> None:
        """`on_news` is called, on any thread, after a record was added."""
        self.written = 0
        """Records that the writer has written."""
        self.lost = 0
        """Records that were dropped."""
        self._on_news = on_news
        self._changed = threading.Condition()
        self._waiting: deque[AuditEntry] = deque()
        self._unreported = 0
        """Dropped records that no record `Lost` has counted yet."""
        self._is_closed = False

    def add(self, entry: AuditEntry) -> None:
        with self._changed:
            if self._is_closed:
                return
            if len(self._waiting) >= limits.AUDIT_QUEUE_RECORDS_MAX:
                if not self._unreported:
                    _logger.warning("audit records are dropped: %d wait to be written", len(self._waiting))
                self._unreported += 1
                self.lost += 1
                return
            self._waiting.extend(self._report())
            self._waiting.append(entry)
            self._changed.notify()
        self._on_news()

    def take(self, count_max: int) -> list[AuditEntry]:
        """Remove and return the oldest records."""
        with self._changed:
            taken = [self._waiting.popleft() for _ in range(min(count_max, len(self._waiting)))]
            return taken if self._waiting else taken + self._report()

    def _report(self) -> list[AuditEntry]:
        """Return the record that counts the dropped ones, if there are any."""
        dropped, self._unreported = self._unreported, 0
        return [lost_entry(time.time_ns(), dropped)] if dropped else []

    def wait(self, seconds: float) -> bool:
        """Wait for a record, or for `close`. Returns whether the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed, timeout=seconds)
            return self._is_closed

    def wait_closed(self, seconds: float) -> bool:
        """Wait for `close`. Returns whether the queue is closed."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_closed, timeout=seconds)

    def close(self) -> None:
        """Accept no more records. Those that wait can still be taken."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
