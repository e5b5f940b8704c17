"""The log of a server: one line per message, on standard error.

2026-11-15T11:33:20.418Z INFO  broker: serving on 127.0.0.1:9292
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
from pathlib import Path
from typing import Final

from bascule.config.sections.node import Level, Logging

TEXT_CHARACTERS_MAX: Final = 8_192
"""Length of one line; a client's text could be megabytes long."""

_LEVELS = {
    Level.DEBUG: logging.DEBUG,
    Level.INFO: logging.INFO,
    Level.WARN: logging.WARNING,
    Level.ERROR: logging.ERROR,
}
_NAMES = {logging.WARNING: "WARN", logging.CRITICAL: "FATAL"}
_PACKAGE = "bascule"


class LineFormatter(logging.Formatter):
    """Time in UTC, level, component, message; for a bug also a traceback, in the same line. No character of a client's text ends the
    line or controls a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        part = record.name.removeprefix(f"{_PACKAGE}.").removeprefix("broker.")
        text = record.getMessage().replace("\n", " · ")
        if record.exc_info and record.exc_info[1] is not None:
            text += f" · {_condensed(record.exc_info[1])}"
        return f"{moment}.{int(record.msecs):03d}Z {_NAMES.get(record.levelno, record.levelname):<5} {part}: {escaped(text)}"


def escaped(text: str) -> str:
    """The text with escapes for characters that cannot be printed. Long texts are cut."""
    if len(text) > TEXT_CHARACTERS_MAX:
        text = f"{text[:TEXT_CHARACTERS_MAX]} … ({len(text)} characters)"
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def _escape(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")


def _condensed(error: BaseException) -> str:
    """`Traceback: ValueError('x') at broker/a.py:12 in f < broker/b.py:7 in g`, the innermost call first."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{'/'.join(Path(one.filename).parts[-2:])}:{one.lineno} in {one.name}" for one in reversed(frames)]
    return f"Traceback: {error!r} at {' < '.join(places) or 'an unknown place'}"


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
