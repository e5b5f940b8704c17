"""Formats numbers and times for display. `duration` and `size` parse such texts."""

from __future__ import annotations

from datetime import UTC, datetime


def iso(value: datetime | None) -> str:
    """ISO-8601 in UTC; "" for None."""
    return "" if value is None else value.astimezone(UTC).isoformat().replace("+00:00", "Z")


def iso_ns(timestamp_ns: int) -> str:
    """Nanoseconds since 1970 as ISO-8601 with nine digits; "" for a time that Python cannot represent."""
    whole, fraction = divmod(timestamp_ns, 10**9)
    try:
        return f"{datetime.fromtimestamp(whole, UTC):%Y-%m-%dT%H:%M:%S}.{fraction:09d}Z"
    except (ValueError, OverflowError, OSError):
        return ""


def plural(count: int, noun: str) -> str:
    """`1 message`, `2,000 messages`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def rate(per_second: float) -> str:
    """`12`, `3.4k`, `1.2M`."""
    for unit, scale in (("M", 1e6), ("k", 1e3)):
        if per_second >= scale:
            return f"{per_second / scale:.1f}{unit}"
    return f"{per_second:.0f}"


def size(count_bytes: float) -> str:
    """`999 B`, `1.5 kB`, `2.0 GB`: units of 1000."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count_bytes >= scale:
            return f"{count_bytes / scale:.1f} {unit}"
    return f"{count_bytes:.0f} B"


def bytes_per_second(per_second: float) -> str:
    """`999 B/s`, `1.5 kB/s`."""
    return f"{size(per_second)}/s"


def milliseconds(value_seconds: float) -> str:
    """`1.234 ms`, `12.3 ms`."""
    value = value_seconds * 1000
    return f"{value:.3f} ms" if value < 10 else f"{value:.1f} ms"
