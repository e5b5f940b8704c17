"""Whether publishers still wait for acks of a server that stops. They were told to go elsewhere; what they had sent is answered."""

from __future__ import annotations

import time
from typing import Final

from bascule.kernels.calls.publish import PublishGate

QUIET_SECONDS: Final = 0.05
"""Without a message for so long: what was on its way when publishers were told has arrived."""


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
