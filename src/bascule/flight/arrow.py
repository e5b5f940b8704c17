"""The one place that imports pyarrow, so that whoever lacks it is told what to install."""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from typing import Any

from bascule.errors import MissingExtra


def is_installed() -> bool:
    """Asks the file system only: importing takes a quarter of a second and tens of megabytes."""
    try:
        return importlib.util.find_spec("pyarrow") is not None
    except ImportError:
        return False


def require() -> Any:
    """pyarrow itself."""
    return _load("pyarrow")


def require_flight() -> Any:
    """pyarrow.flight."""
    return _load("pyarrow.flight")


@cache  # asked for with every batch, several times
def _load(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra(
            f"tables need pyarrow, which cannot be imported: {error}", hint='pip install "bascule[spark]"'
        ) from None
