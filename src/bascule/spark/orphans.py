"""Processes of Spark that nobody is left to end.

Java starts a Python of its own for the source of each streaming query, and tells it through a socket what it wants to know. A Java that
is killed closes the socket, but who waits for a broker does not look there, and a broker that is dead too is waited for a minute.
Tasks have no such trouble: their workers are ended by the daemon that forks them, which waits for nothing but Java.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Final

LOOK_SECONDS: Final = 1.0
PACKAGE: Final = "pyspark."

_watched: set[int] = set()
"""This process, once somebody watches. Not that of a child: threads do not survive a fork."""


def end_with_parent() -> bool:
    """End this process when its parent has ended, if it is one of Spark's: whether somebody watches from now on. The parent of any
    other, such as a driver, is nobody whose end means something."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None or not spec.name.startswith(PACKAGE):
        return False
    if os.getpid() not in _watched:
        _watched.add(os.getpid())
        threading.Thread(target=_watch, args=(os.getppid(),), name="bascule parent", daemon=True).start()
    return True


def _watch(parent: int) -> None:
    """By looking: the kernel would tell of the end of the parent's thread that started us, and Java's threads come and go."""
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    os._exit(0)  # whoever runs here waits for somebody else, and nobody waits for an answer
