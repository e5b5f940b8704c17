"""Sizes in bytes: a plain number, or a number with a unit. `1KB` is 1000 bytes, `1KiB` is 1024."""

from __future__ import annotations

import re
from typing import Final

_UNITS: Final = {
    "": 1,
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
    "tib": 1024**4,
}
_WRITTEN: Final = (("TiB", 1024**4), ("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024))
_SIZE: Final = re.compile(r"([+-]?[0-9]{1,30})\s*([a-z]{0,3})", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes of `1048576`, `1MiB` or `1 mib`. Raises ValueError for anything else."""
    match = _SIZE.fullmatch(text)
    unit = None if match is None else _UNITS.get(match[2].lower())
    if match is None or unit is None:
        raise ValueError("not a size")
    return int(match[1]) * unit


def format_size(size_bytes: int) -> str:
    """The largest binary unit that divides the size exactly, else plain bytes."""
    for unit, unit_bytes in _WRITTEN:
        if size_bytes and size_bytes % unit_bytes == 0:
            return f"{size_bytes // unit_bytes}{unit}"
    return str(size_bytes)
