"""Whether publishers still wait for acks of a stopping server: messages that they sent before it asked them to reconnect are acked."""

from __future__ import annotations

import time
from typing import Final

from bascule.kernels.calls.publish import PublishGate

QUIET_SECONDS: Final = 0.05
"""Time without a new message after which all messages sent before the request to reconnect have arrived."""


class PublishersAtWork:
    def __init__(self, gate: PublishGate) -> None:
        self._gate = gate
        self._published = gate.published
        self._busy_at = time.monotonic()

    def __call__(self) -> bool:
        if not self._gate.receivers:
            return False
        now = time.monotonic()
        if self._gate.unanswered or self._gate.published != self._published:
            self._published = self._gate.published
            self._busy_at = now
        return now - self._busy_at < QUIET_SECONDS
