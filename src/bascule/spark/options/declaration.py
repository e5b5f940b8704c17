"""How options of the Spark format are declared and read: typed, in one place, an unknown or wrong one refused with what is right.

An option is declared like a configuration key, next to the field that holds it. A section is a dataclass of them; `reads` says
which reads its options are for. Spark hands over names in lower case and values as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final, TypeVar

from bascule.client.connection.options import stream_name
from bascule.config.values.given import closest
from bascule.config.values.key import Key, key_of, section_of
from bascule.config.values.kinds import Kind, Unfit, split_list
from bascule.errors import InvalidOption

S = TypeVar("S")

BATCH: Final = "batch"
STREAMING: Final = "streaming"


@dataclass(frozen=True, slots=True)
class Section:
    """Options that belong together."""

    reads: ClassVar[frozenset[str]] = frozenset({BATCH, STREAMING})


@dataclass(frozen=True, slots=True)
class Words(Kind[tuple[str, ...]]):
    """Names with commas in between."""

    name = "list"

    def parse(self, text: str) -> tuple[str, ...]:
        words = split_list(text)
        if not words:
            raise Unfit("at least one name")
        return tuple(dict.fromkeys(words))

    def show(self, value: tuple[str, ...]) -> str:
        return ",".join(value)


@dataclass(frozen=True, slots=True)
class Pattern(Kind[str]):
    """A regular expression that the whole name has to match."""

    name = "regular expression"

    def parse(self, text: str) -> str:
        try:
            re.compile(text)
        except re.error as error:
            raise Unfit(f"a regular expression of Python: {error}") from None
        if not text:
            raise Unfit("a regular expression that is not empty")
        return text


class StreamName(Kind[str]):
    """A stream's name."""

    name = "stream"

    def parse(self, text: str) -> str:
        try:
            return stream_name(text)
        except InvalidOption as error:
            raise Unfit(error.hint or error.message) from None


def declared(section: type[Any]) -> Iterator[tuple[type[Any], Key]]:
    """Every option below a dataclass with the section it belongs to, in the order of declaration."""
    for _, key, inner in _fields(section):
        if key is not None:
            yield section, key
        elif inner is not None:
            yield from declared(inner)


_fields_of: Final[dict[type[Any], list[tuple[str, Key | None, type[Any] | None]]]] = {}


def _fields(section: type[Any]) -> list[tuple[str, Key | None, type[Any] | None]]:
    """The fields of a dataclass, each with its key or its section. Looked up once: every task reads options."""
    if section not in _fields_of:
        _fields_of[section] = [(item.name, key_of(item), section_of(item)) for item in fields(section)]
    return _fields_of[section]


def read_options(kind: type[S], given: Mapping[str, str], mode: str, foreign: Mapping[str, str]) -> S:
    """The options as `kind` declares them. `foreign` holds names of other connectors and what to write instead."""
    known = {key.name.lower(): (section, key) for section, key in declared(kind)}
    for name, value in given.items():
        section, key = known.get(name.lower()) or _unknown(name, known, foreign)
        if mode not in section.reads:
            (right,) = section.reads
            raise InvalidOption(
                f"option `{key.name}` is `{value}`, but this is a {mode} read",
                hint=f"it is for {right} reads: leave it out",
            )
    return read_section(kind, given)


def read_section(kind: type[S], given: Mapping[str, str]) -> S:
    """The options of one section, whatever else is given."""
    return _section(kind, {name.lower(): value for name, value in given.items()})


def _unknown(name: str, known: Mapping[str, tuple[type[Any], Key]], foreign: Mapping[str, str]) -> Any:
    lowered = name.lower()
    hint = foreign.get(lowered)
    if hint is None:
        close = closest(lowered, known)
        names = ", ".join(f"`{key.name}`" for _, key in known.values())
        hint = f"did you mean `{known[close][1].name}`?" if close is not None else f"there are {names}"
    raise InvalidOption(f"`{name}` is no option of format `bascule`", hint=hint)


def _section(kind: type[S], given: Mapping[str, str]) -> S:
    values: dict[str, Any] = {}
    for name, key, inner in _fields(kind):
        if inner is not None:
            values[name] = _section(inner, given)
        elif key is not None and key.name.lower() in given:
            values[name] = _value(key, given[key.name.lower()])
    return kind(**values)


def _value(key: Key, text: str) -> Any:
    try:
        return key.kind.parse(text.strip())
    except Unfit as unfit:
        raise wrong(key.name, "***" if key.is_secret else text, str(unfit)) from None


def wrong(name: str, value: object, right: str) -> InvalidOption:
    return InvalidOption(f"option `{name}` is `{value}`", hint=f"it must be {right}")
