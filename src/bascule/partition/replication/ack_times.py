"""Histograms of the time between receiving a message and sending its ack.

A batch counts once for each kind of ack, with the time of its first message: measuring every message would cost more than its ack.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from bascule.log.disk.histogram import Histogram
from bascule.proto.api_pb2 import LEADER


class AckTimes:
    """For the event loop alone."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.leader = Histogram()
        self.all = Histogram()

    def note(self, policy: int, received_at: float) -> None:
        (self.leader if policy == LEADER else self.all).observe(self._clock() - received_at)
