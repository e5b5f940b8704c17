"""Durations as Go writes them: `300ms`, `1m30s`, `1.5h`; a bare integer counts nanoseconds.

Inside Bascule a duration is an `int` of nanoseconds, never a float. It is below 2^63 ns (292 years), as in Go.
"""

from __future__ import annotations

import re
from typing import Final

MICROSECOND_NS: Final = 1_000
MILLISECOND_NS: Final = 1_000 * MICROSECOND_NS
SECOND_NS: Final = 1_000 * MILLISECOND_NS
MINUTE_NS: Final = 60 * SECOND_NS
HOUR_NS: Final = 60 * MINUTE_NS

DURATION_MAX_NS: Final = (1 << 63) - 1

# µ has two code points: the micro sign and the Greek letter.
_UNITS: Final = {
    "h": HOUR_NS,
    "m": MINUTE_NS,
    "s": SECOND_NS,
    "ms": MILLISECOND_NS,
    "us": MICROSECOND_NS,
    "\u00b5s": MICROSECOND_NS,
    "\u03bcs": MICROSECOND_NS,
    "ns": 1,
}
_WRITTEN: Final = ("h", "m", "s", "ms", "us", "ns")
_TERM: Final = re.compile(r"([0-9]*)(?:\.([0-9]*))?(h|ms|m|s|us|\u00b5s|\u03bcs|ns)")
_INTEGER: Final = re.compile(r"[0-9]+")

# int() of a very long text is slow.
_TEXT_MAX: Final = 100


def parse_duration(text: str) -> int:
    """Return the nanoseconds of a duration in Go's syntax. Raises ValueError for anything else."""
    digits = text.removeprefix("-") if text.startswith("-") else text.removeprefix("+")
    sign = -1 if text.startswith("-") else 1
    if len(digits) > _TEXT_MAX:
        raise ValueError("too long for a duration")
    magnitude = int(digits) if _INTEGER.fullmatch(digits) else _sum_of_terms(digits)
    if magnitude > DURATION_MAX_NS:
        raise ValueError("longer than 292 years")
    return sign * magnitude


def _sum_of_terms(text: str) -> int:
    total_ns = 0
    position = 0
    while position < len(text) or position == 0:
        term = _TERM.match(text, position)
        if term is None or not (term[1] or term[2]):
            raise ValueError("not a duration")
        total_ns += _term_ns(term[1], term[2] or "", _UNITS[term[3]])
        position = term.end()
    return total_ns


def _term_ns(whole: str, fraction: str, unit_ns: int) -> int:
    """Return the nanoseconds of one term, rounded down as in Go."""
    divisor: int = 10 ** len(fraction)
    return int(whole or "0") * unit_ns + int(fraction or "0") * unit_ns // divisor


def format_duration(duration_ns: int) -> str:
    """Return the shortest exact text in whole units: `168h`, `1m30s`, `1s500ms`, `0`."""
    if duration_ns == 0:
        return "0"
    rest_ns = abs(duration_ns)
    terms = []
    for unit in _WRITTEN:
        count, rest_ns = divmod(rest_ns, _UNITS[unit])
        if count:
            terms.append(f"{count}{unit}")
    return ("-" if duration_ns < 0 else "") + "".join(terms)
