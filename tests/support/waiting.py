"""Waiting for what will be true soon: asked again and again until a deadline, never slept through."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

PATIENCE_SECONDS: Final = 60.0
"""How long anything may take on a busy machine before it counts as never."""

_T = TypeVar("_T")


def eventually(look: Callable[[], _T | None], what: str, timeout: float = PATIENCE_SECONDS) -> _T:
    """The first true answer of `look`. `what` ends the sentence `it never came true that …`."""
    deadline = time.monotonic() + timeout
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"it never came true that {what} (waited {timeout:g} s, last answer {found!r})")
        time.sleep(0.01)
