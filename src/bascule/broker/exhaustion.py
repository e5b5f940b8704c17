"""A broker that gets no memory ends at once, as if it were killed: other servers take over, and a supervisor starts it again.

An event that failed halfway for lack of memory leaves a partition that accepts messages and never acks one. No other part of the broker
would notice. The end is safe at any time: acked messages are in the log.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from typing import Any, Final

from bascule.errors import OperatorError
from bascule.exits import EXIT_CODES

_EXIT: Final = EXIT_CODES[OperatorError]
_LAST_WORDS: Final = (
    b"error: the broker gets no memory, or no thread, from the operating system, and ends\n"
    b"hint: give it more memory (ulimit -d, the limit of its cgroup), then start the server again\n"
)
_logger = logging.getLogger(__name__)


def end_when_exhausted(loop: asyncio.AbstractEventLoop) -> None:
    """End the process when a callback, a task or a thread fails because there is no memory."""
    loop.set_exception_handler(_in_loop)
    threading.excepthook = _in_thread


def _in_loop(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    _end_if_exhausted(context.get("exception"))
    loop.default_exception_handler(context)


def _in_thread(failure: threading.ExceptHookArgs) -> None:
    _end_if_exhausted(failure.exc_value)
    name = "a thread" if failure.thread is None else failure.thread.name
    _logger.error("%s failed", name, exc_info=failure.exc_value)


def _end_if_exhausted(error: BaseException | None) -> None:
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "start new thread" in str(error)):
        os.write(2, _LAST_WORDS)  # without a logger, which needs memory
        os._exit(_EXIT)
