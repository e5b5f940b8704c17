"""Declares a configuration key next to the field that holds its value.

    port: int | None = setting("port", Integer(maximum=65535), None, meaning="…", consequence="…", advice="…")

The loader, the reference page, the sample file and the command line all use these declarations; there is no second list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Final, TypeVar, overload

from bascule.config.values.kinds import Kind

T = TypeVar("T")

ENVIRONMENT_PREFIXES: Final = ("BASCULE_", "LIFTBRIDGE_")
"""The first one wins if both are set."""

_CREDENTIALS: Final = re.compile(r"//[^/@,]*@")


@dataclass(frozen=True, slots=True)
class Key:
    """One key: its dotted name, the kind of its value, and its description for the reference."""

    name: str
    kind: Kind[Any]
    default: Any
    meaning: str
    consequence: str
    advice: str
    default_text: str | None
    example: str | None
    flags: tuple[str, ...]
    is_secret: bool

    @property
    def environment(self) -> str:
        """The name of the environment variable with the prefix `BASCULE_`."""
        return ENVIRONMENT_PREFIXES[0] + self.variable

    @property
    def variable(self) -> str:
        """The name of the environment variable without its prefix."""
        return self.name.upper().replace(".", "_")

    def show(self, value: Any) -> str:
        """Return the value for display: secrets and credentials are masked, and `–` means not set."""
        if value is None:
            return "–"
        return self.mask(self.kind.show(value))

    def mask(self, text: str) -> str:
        return "***" if self.is_secret else _CREDENTIALS.sub("//***@", text)

    def show_default(self) -> str:
        return self.default_text if self.default_text is not None else self.show(self.default)


@overload
def setting(
    name: str,
    kind: Kind[T],
    default: None,
    *,
    meaning: str,
    consequence: str = "",
    advice: str = "",
    default_text: str | None = None,
    example: str | None = None,
    flags: tuple[str, ...] = (),
    is_secret: bool = False,
) -> T | None: ...


@overload
def setting(
    name: str,
    kind: Kind[T],
    default: T,
    *,
    meaning: str,
    consequence: str = "",
    advice: str = "",
    default_text: str | None = None,
    example: str | None = None,
    flags: tuple[str, ...] = (),
    is_secret: bool = False,
) -> T: ...


def setting(
    name: str,
    kind: Kind[Any],
    default: Any,
    *,
    meaning: str,
    consequence: str = "",
    advice: str = "",
    default_text: str | None = None,
    example: str | None = None,
    flags: tuple[str, ...] = (),
    is_secret: bool = False,
) -> Any:
    """Declare a dataclass field that is a configuration key.

    `meaning` says what it is, `consequence` what follows from it, `advice` when to change it. `default_text` describes a default
    that depends on other values; `example` is for the sample file if there is no default.
    """
    declared = Key(name, kind, default, meaning, consequence, advice, default_text, example, flags, is_secret)
    return field(default=default, repr=not is_secret, metadata={"key": declared})


def key_of(item: Field[Any]) -> Key | None:
    """Return the key of a dataclass field, or None."""
    found: Key | None = item.metadata.get("key")
    return found


def section_of(item: Field[Any]) -> type[Any] | None:
    """Return the dataclass of a field that holds a section, or None."""
    return None if item.default_factory is MISSING else item.default_factory  # type: ignore[return-value]


def keys_of(section: type[Any]) -> Iterator[Key]:
    """Yield the keys of this dataclass and its sections in the order of declaration."""
    for item in fields(section):
        declared, inner = key_of(item), section_of(item)
        if declared is not None:
            yield declared
        elif inner is not None:
            yield from keys_of(inner)
