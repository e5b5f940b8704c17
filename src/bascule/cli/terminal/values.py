"""Parses option values: durations, sizes, times, positions, headers. An error names the wrong value and the valid ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from bascule.errors import InvalidOption

T = TypeVar("T")

_NUMBER: Final = re.compile(r"[0-9]+(\.[0-9]+)?")
_OFFSET: Final = re.compile(r"-?[0-9]{1,19}")
_DAYS: Final = re.compile(r"([0-9]+)d(.*)")
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}

POSITIONS: Final = ("earliest", "latest", "new")
FROM_RIGHT: Final = (
    "`earliest`, `latest`, `new`, an offset such as `42`, the last ten as `-10`, a time such as `2026-03-01T12:00`, "
    "or how long ago as `15m`"
)
TO_RIGHT: Final = "`latest`, an offset such as `42`, a time such as `2026-03-01T12:00`, or how long ago as `15m`"
DURATION_RIGHT: Final = "a duration such as `500ms`, `90s`, `1h30m` or `7d`"


@dataclass(frozen=True, slots=True)
class LastMessages:
    """The last `count` messages of each partition."""

    count: int


Start = str | int | datetime | LastMessages


def wrong(option: str, value: object, right: str) -> InvalidOption:
    return InvalidOption(f"`{option}` is `{value}`", hint=f"it must be {right}")


def duration(option: str, text: str | None) -> timedelta | None:
    """Parse `500ms`, `90s`, `1h30m`, `7d`, `1d12h`; a bare number is in seconds."""
    if text is None:
        return None
    try:
        return timedelta(microseconds=_duration_ns(text) / 1000)
    except (ValueError, OverflowError):
        raise wrong(option, text, DURATION_RIGHT) from None


def seconds(option: str, text: str | None) -> float | None:
    """Parse a duration greater than zero; returns seconds."""
    found = duration(option, text)
    if found is None:
        return None
    if found <= timedelta(0):
        raise wrong(option, text, f"{DURATION_RIGHT}, greater than 0")
    return found.total_seconds()


def _duration_ns(text: str) -> int:
    # Imported here because the configuration is a large package that most commands do not need.
    from bascule.config.values.duration import parse_duration

    if _NUMBER.fullmatch(text):
        return int(float(text) * 1e9)
    days = _DAYS.fullmatch(text)
    found = (
        int(days[1]) * 86_400 * 10**9 + (parse_duration(days[2]) if days[2] else 0) if days else parse_duration(text)
    )
    if found < 0:
        raise ValueError("negative")
    return found


def size(option: str, text: str | None) -> int | None:
    """Parse `1048576`, `64KiB`, `1GB`; returns bytes."""
    if text is None:
        return None
    from bascule.config.values.size import parse_size

    try:
        found = parse_size(text)
    except ValueError:
        found = -1
    if found < 0:
        raise wrong(option, text, "a size such as `1048576`, `64KiB` or `10GB`")
    return found


def moment(option: str, text: str, right: str, now: datetime | None = None) -> datetime:
    """Parse a time, or a duration before now. A time without a time zone is local time."""
    if any(char.isalpha() for char in text) and text[0].isdigit() and "T" not in text and ":" not in text:
        try:
            return (now or datetime.now(UTC)) - timedelta(microseconds=_duration_ns(text) / 1000)
        except (ValueError, OverflowError):
            raise wrong(option, text, right) from None
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise wrong(option, text, right) from None


def start(option: str, text: str) -> Start:
    if text in POSITIONS:
        return text
    if _OFFSET.fullmatch(text):
        number = int(text)
        return LastMessages(-number) if text.startswith("-") else number
    return moment(option, text, FROM_RIGHT)


def stop(option: str, text: str | None) -> str | int | datetime | None:
    if text is None or text == "latest":
        return text
    if _OFFSET.fullmatch(text) and not text.startswith("-"):
        return int(text)
    return moment(option, text, TO_RIGHT)


def partitions(option: str, texts: Sequence[str]) -> list[int] | None:
    """Parse partition numbers; returns None for all partitions."""
    found: set[int] = set()
    for text in texts:
        for part in text.split(","):
            if part == "all":
                return None
            if not (part.isascii() and part.isdigit()) or int(part) >= 1 << 31:
                raise wrong(option, text, "`all`, or partition numbers such as `0` or `0,3`")
            found.add(int(part))
    return sorted(found) or None


def no_partition(number: int, right: str) -> InvalidOption:
    return InvalidOption(f"there is no partition {number}", hint=right)


def headers(option: str, texts: Sequence[str]) -> dict[str, bytes]:
    found = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise wrong(option, text, "`name=value`")
        found[name] = value.encode("utf-8", "surrogateescape")
    return found


def wanted_headers(option: str, texts: Sequence[str]) -> dict[str, bytes | None]:
    """Headers to look for: `name=value`, or `name` for any value."""
    found: dict[str, bytes | None] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not name:
            raise wrong(option, text, "`name` or `name=value`")
        found[name] = value.encode("utf-8", "surrogateescape") if separator else None
    return found


def choice(option: str, text: str, choices: Sequence[str]) -> str:
    if text not in choices:
        raise wrong(option, text, ", ".join(f"`{one}`" for one in choices[:-1]) + f" or `{choices[-1]}`")
    return text


def unescaped(text: str) -> str:
    r"""Replace the escapes `\n`, `\t`, `\r`, `\0` and `\\`, which shells do not interpret."""
    return re.sub(r"\\([ntr0\\])", lambda match: _ESCAPES[match[1]], text)


def optional(parse: Callable[[str, str], T], option: str, text: str | None) -> T | None:
    return None if text is None else parse(option, text)
