"""Ends the Python process of a streaming query's source when its JVM has ended.

The JVM starts one Python process for the source of each streaming query and asks it through a socket. A JVM that is killed closes the
socket, but a process that waits for a broker does not read the socket, and waits up to a minute for a broker that is down.
Tasks do not need this: the daemon that forks their workers ends them, and the daemon waits for the JVM alone.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Final

LOOK_SECONDS: Final = 1.0
"""Interval at which the process checks that its parent is still there."""
PACKAGE: Final = "pyspark."

_watched: set[int] = set()
"""Ids of processes with a watching thread: a forked child has another id, because threads do not survive a fork."""


def end_with_parent() -> bool:
    """End this process when its parent ends, if Spark has started it; False for any other process, such as a driver."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None or not spec.name.startswith(PACKAGE):
        return False
    if os.getpid() not in _watched:
        _watched.add(os.getpid())
        threading.Thread(target=_watch, args=(os.getppid(),), name="bascule parent", daemon=True).start()
    return True


def _watch(parent: int) -> None:
    """Polls: the kernel's own signal reports the end of the parent's thread, and threads of a JVM come and go."""
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    os._exit(0)  # the main thread may be waiting for a broker, and its answer has no reader any more
