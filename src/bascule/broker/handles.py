"""File handles of the process: the limit is raised at start, and connections leave enough of them for logs.

A connection needs one handle. Without a reserve, a client that opens connections would keep partitions from starting.
"""

from __future__ import annotations

import logging
import resource
from typing import Final

from bascule import limits

CONNECTIONS_MIN: Final = 64
"""Connections that are accepted even if the process may open few files."""

_logger = logging.getLogger(__name__)


def raise_handle_limit() -> int:
    """Raise the soft limit of open files to the hard limit, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return limits.HANDLES_MAX
    wanted = limits.HANDLES_MAX if hard == resource.RLIM_INFINITY else min(hard, limits.HANDLES_MAX)
    if wanted > soft:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (OSError, ValueError) as error:
            _logger.warning("cannot raise the limit of %d open files to %d: %s", soft, wanted, error)
    return soft


def connections_for(handles: int, wanted: int) -> int:
    """Return how many of the wanted client connections a process with this limit of open files accepts."""
    allowed = min(wanted, max(CONNECTIONS_MIN, handles - limits.HANDLES_RESERVED))
    if allowed < wanted:
        _logger.warning(
            "the process may open %d files, so it accepts %d client connections instead of %d; raise `ulimit -n`",
            handles,
            allowed,
            wanted,
        )
    return allowed
