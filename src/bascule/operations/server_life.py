"""The state of this server as a whole: when it started, whether it drains, and how an operation stops it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class ServerLife:
    stop: Callable[[], None]
    """Has this server drain and stop, as SIGTERM does."""
    is_draining: bool = False
    started: float = field(default_factory=time.monotonic)
    """On the monotonic clock."""
