"""The log of a server: one line per message, on standard error.

2026-11-15T11:33:20.418Z INFO  broker: serving on 127.0.0.1:9292
"""

from __future__ import annotations

import logging
import sys
import time

from bascule.config.sections.node import Level, Logging

_LEVELS = {
    Level.DEBUG: logging.DEBUG,
    Level.INFO: logging.INFO,
    Level.WARN: logging.WARNING,
    Level.ERROR: logging.ERROR,
}
_NAMES = {logging.WARNING: "WARN", logging.CRITICAL: "FATAL"}
_PACKAGE = "bascule"


class LineFormatter(logging.Formatter):
    """Time in UTC, level, component, message; a traceback only for a bug."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        part = record.name.removeprefix(f"{_PACKAGE}.").removeprefix("broker.")
        text = record.getMessage().replace("\n", " · ")
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return f"{moment}.{int(record.msecs):03d}Z {_NAMES.get(record.levelno, record.levelname):<5} {part}: {text}"


def set_up_logging(settings: Logging) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    package = logging.getLogger(_PACKAGE)
    package.handlers = [handler]
    package.propagate = False
    package.setLevel(_LEVELS[settings.level])
    # asyncio logs exceptions that no code handled.
    for name in ("asyncio", "nats"):
        logging.getLogger(name).handlers = [handler]
        logging.getLogger(name).propagate = False
        logging.getLogger(name).setLevel(logging.WARNING)
