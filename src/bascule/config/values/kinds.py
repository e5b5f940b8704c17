"""The kinds of values. A kind parses a value from text, checks its range and formats it.

All sources (file, environment, flags) give text, so `"9292"`, `9292` and `BASCULE_PORT=9292` are the same value, and the password
`0123` keeps its zero. A kind raises `Unfit` with a description of valid values; the loader adds the key, the value and its source.
"""

from __future__ import annotations

import difflib
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Generic, TypeVar
from urllib.parse import urlsplit

from bascule import limits
from bascule.config.values import address, duration, size

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1


class Unfit(ValueError):
    """The value is not valid for its kind. The message completes the sentence "… must be"."""


class Kind(ABC, Generic[T]):
    """One kind of value. `name` is its name in the reference."""

    name: str

    @abstractmethod
    def parse(self, text: str) -> T:
        """Return the value of `text`, or raise `Unfit`."""

    def check(self, value: T) -> T:
        """Return the value, or raise `Unfit` if it is out of range."""
        return value

    def remark(self, text: str) -> str | None:
        """Return a warning about a valid text that means something else than it does to Liftbridge; None for most texts."""
        del text
        return None

    def show(self, value: T) -> str:
        """Return the value as it is written in a file."""
        return str(value)


@dataclass(frozen=True, slots=True)
class Boolean(Kind[bool]):
    """True or false, in every spelling YAML knows."""

    name = "true or false"

    def parse(self, text: str) -> bool:
        lowered = text.lower()
        if lowered in ("true", "yes", "on", "1"):
            return True
        if lowered in ("false", "no", "off", "0"):
            return False
        raise Unfit("`true` or `false`")

    def show(self, value: bool) -> str:
        return "true" if value else "false"


@dataclass(frozen=True, slots=True)
class Integer(Kind[int]):
    """A whole number."""

    minimum: int = 0
    maximum: int = INT32_MAX
    hole: int | None = None
    name = "integer"

    def parse(self, text: str) -> int:
        if re.fullmatch(r"[+-]?[0-9](_?[0-9]){0,29}", text) is None:
            raise Unfit(self._range)
        return self.check(int(text))

    def check(self, value: int) -> int:
        if not self.minimum <= value <= self.maximum or value == self.hole:
            raise Unfit(self._range)
        return value

    @property
    def _range(self) -> str:
        but = "" if self.hole is None else f", but not {self.hole}"
        return f"a whole number from {self.minimum} to {self.maximum}{but}"


@dataclass(frozen=True, slots=True)
class Size(Kind[int]):
    """Bytes."""

    minimum: int = 0
    maximum: int = INT64_MAX
    name = "size in bytes"

    def parse(self, text: str) -> int:
        try:
            value = size.parse_size(text)
        except ValueError:
            raise Unfit("a number of bytes such as `1048576`, `1MiB` or `1MB`") from None
        return self.check(value)

    def check(self, value: int) -> int:
        if not self.minimum <= value <= self.maximum:
            raise Unfit(f"from {size.format_size(self.minimum)} to {size.format_size(self.maximum)} bytes")
        return value

    def show(self, value: int) -> str:
        return size.format_size(value)


@dataclass(frozen=True, slots=True)
class Duration(Kind[int]):
    """Nanoseconds."""

    minimum_ns: int = 0
    floor_ns: int = 0
    """A shorter duration, except 0, is refused in the configuration. Clients may send one, as to Liftbridge: `raised` raises it."""
    name = "duration"

    def parse(self, text: str) -> int:
        try:
            value = duration.parse_duration(text)
        except ValueError:
            raise Unfit("a duration such as `300ms`, `1m30s` or `24h`; a bare number counts nanoseconds") from None
        if 0 < value < self.floor_ns:
            zero = "0, or " if self.minimum_ns == 0 else ""
            raise Unfit(f"{zero}a duration of at least {duration.format_duration(self.floor_ns)}")
        return self.check(value)

    def raised(self, value: int) -> int:
        """The duration, or the floor if it is shorter; 0 stays 0."""
        return max(value, self.floor_ns) if value > 0 else value

    def check(self, value: int) -> int:
        if value < self.minimum_ns:
            shortest = duration.format_duration(self.minimum_ns)
            raise Unfit("a duration of 0 or more" if self.minimum_ns == 0 else f"a duration of at least {shortest}")
        if value > duration.DURATION_MAX_NS:
            raise Unfit("a duration of at most 292 years")
        return value

    def show(self, value: int) -> str:
        return duration.format_duration(value)


@dataclass(frozen=True, slots=True)
class Choice(Kind[E]):
    """One of a few words."""

    options: type[E]

    @property
    def name(self) -> str:  # type: ignore[override]
        return " / ".join(self.options)

    def parse(self, text: str) -> E:
        try:
            return self.options(text.lower())
        except ValueError:
            close = difflib.get_close_matches(text.lower(), list(self.options), n=1)
            meant = f" — did you mean `{close[0]}`?" if close else ""
            raise Unfit("one of " + ", ".join(f"`{option}`" for option in self.options) + meant) from None

    def check(self, value: E) -> E:
        return self.parse(value)


@dataclass(frozen=True, slots=True)
class Text(Kind[str]):
    """Any text that is not empty."""

    name = "text"

    def parse(self, text: str) -> str:
        if not text or "\0" in text:
            raise Unfit("a text that is not empty; remove the key to leave it unset")
        return text


@dataclass(frozen=True, slots=True)
class Name(Kind[str]):
    """A word that is a directory name and a token of NATS subjects."""

    dots: bool = False
    """Accept dots, which host names have. They become dashes."""

    name = "name"

    def parse(self, text: str) -> str:
        longest = limits.NAME_CHARACTERS_MAX
        word = re.sub(r"\.(?!$)", "-", text) if self.dots else text
        if len(text) > longest or re.fullmatch(r"[^\s.*>/\\\x00-\x20\x7f]+", word) is None:
            if self.dots:
                raise Unfit(
                    f"1 to {longest} characters without spaces, slashes, `*` and `>`, and without a dot at its end"
                )
            raise Unfit(f"1 to {longest} characters without spaces, dots, slashes, `*` and `>`")
        return word

    def remark(self, text: str) -> str | None:
        if not self.dots or "." not in text:
            return None
        return f"a name is one token of NATS subjects: the server uses `{self.parse(text)}`"


@dataclass(frozen=True, slots=True)
class Names(Kind[tuple[str, ...]]):
    """A list of names, or one text that separates them by commas or spaces."""

    name = "list of names"

    def parse(self, text: str) -> tuple[str, ...]:
        return tuple(Name(dots=True).parse(part) for part in split_words(text))

    def remark(self, text: str) -> str | None:
        return (
            f"names are tokens of NATS subjects: the server uses `{self.show(self.parse(text))}`"
            if "." in text
            else None
        )

    def show(self, value: tuple[str, ...]) -> str:
        return ",".join(value)


@dataclass(frozen=True, slots=True)
class Users(Kind[tuple[str, ...]]):
    """A list of users or roles, or one comma-separated text."""

    name = "list of users"

    def parse(self, text: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._user(part) for part in split_list(text)))

    def _user(self, text: str) -> str:
        is_short = 0 < len(text.removeprefix("role:").encode()) <= limits.USER_NAME_BYTES_MAX
        if not is_short or not text.isprintable() or '"' in text or text == "*":
            raise Unfit(
                f"names of users, or `role:<name>`, of 1 to {limits.USER_NAME_BYTES_MAX} bytes, without quotes; not `*`"
            )
        return text

    def show(self, value: tuple[str, ...]) -> str:
        return ",".join(value)


@dataclass(frozen=True, slots=True)
class FilePath(Kind[Path]):
    """A path; a leading `~` is the home directory, a relative path starts at the working directory."""

    name = "path"

    def parse(self, text: str) -> Path:
        if not text or "\0" in text:
            raise Unfit("a path; remove the key to leave it unset")
        try:
            return Path(text).expanduser()
        except RuntimeError:
            raise Unfit("a path whose `~` names a home directory on this machine") from None


@dataclass(frozen=True, slots=True)
class HostPort(Kind[address.Address]):
    """Where to listen. A port alone is one on loopback, the default."""

    name = "host:port"

    def parse(self, text: str) -> address.Address:
        try:
            return address.parse_address(f"{address.LOOPBACK}:{text}" if text.isdecimal() else text)
        except ValueError:
            raise Unfit("`host:port` such as `127.0.0.1:9292` or `[::1]:9292`, with a port from 0 to 65535") from None

    def remark(self, text: str) -> str | None:
        if not text.isdecimal():
            return None
        return f"it names no host: the server binds to {self.parse(text)}; `0.0.0.0:{text}` binds all interfaces"


@dataclass(frozen=True, slots=True)
class Host(Kind[str]):
    """A host that clients can connect to; with `may_be_wildcard` also all interfaces, which `is_advertised` warns of."""

    may_be_wildcard: bool = False
    is_advertised: bool = False
    name = "host"

    def parse(self, text: str) -> str:
        try:
            host = address.parse_host(text)
        except ValueError:
            raise Unfit("a host name or an IP address, without a port") from None
        if address.is_wildcard(host) and not self.may_be_wildcard:
            raise Unfit("an address that clients can connect to; to bind all interfaces set `listen: 0.0.0.0:9292`")
        return host

    def remark(self, text: str) -> str | None:
        if not self.is_advertised or not address.is_wildcard(self.parse(text)):
            return None
        return (
            "clients cannot connect to it: the server advertises the machine's name; set `listen: 0.0.0.0:9292`, and `host` to the "
            "name that clients use"
        )


@dataclass(frozen=True, slots=True)
class NatsServers(Kind[tuple[str, ...]]):
    """URLs of NATS servers, as a list or one text that separates them by commas or spaces."""

    name = "list of URLs"

    def parse(self, text: str) -> tuple[str, ...]:
        urls = [_nats_url(part) for part in split_words(text)]
        if not urls:
            raise Unfit("at least one URL such as `nats://127.0.0.1:4222`")
        return tuple(dict.fromkeys(urls))

    def show(self, value: tuple[str, ...]) -> str:
        return ",".join(value)


def split_list(text: str) -> list[str]:
    """Return the parts of a comma-separated text without surrounding spaces and without empty parts."""
    return [part.strip() for part in text.split(",") if part.strip()]


def split_words(text: str) -> list[str]:
    """Return the parts of a text that separates them by commas or spaces, as Liftbridge's files do."""
    return text.replace(",", " ").split()


def _nats_url(text: str) -> str:
    url = text if "://" in text else f"nats://{text}"
    try:
        parts = urlsplit(url)
        usable = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable or parts.scheme not in ("nats", "tls", "ws", "wss") or re.search(r"[\s\x00-\x1f]", url):
        raise Unfit("URLs such as `nats://127.0.0.1:4222`; the schemes are `nats`, `tls`, `ws` and `wss`")
    return url
