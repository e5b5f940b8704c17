"""How a configuration key is declared: once, next to the field that holds it.

    port: int | None = setting("port", Integer(maximum=65535), None, meaning="…", consequence="…", advice="…")

The loader, the reference page, the sample file and the command line all read these declarations; there is no second list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Final, TypeVar, overload

from bascule.config.values.kinds import Kind

T = TypeVar("T")

ENVIRONMENT_PREFIXES: Final = ("BASCULE_", "LIFTBRIDGE_")
"""Ours wins when both are set."""

_CREDENTIALS: Final = re.compile(r"//[^/@,]*@")


@dataclass(frozen=True, slots=True)
class Key:
    """One key: its dotted name, what it takes, and what the reader of the reference needs to know."""

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
        """Name of our environment variable."""
        return ENVIRONMENT_PREFIXES[0] + self.variable

    @property
    def variable(self) -> str:
        """Name of the environment variable without its prefix."""
        return self.name.upper().replace(".", "_")

    def show(self, value: Any) -> str:
        """The value fit for a screen: secrets and credentials hidden, `–` for a key that is not set."""
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

    `meaning` says what it is, `consequence` what follows from it, `advice` when to change it. `default_text` stands in for a
    default that depends on something else; `example` fills the sample file where there is no default.
    """
    declared = Key(name, kind, default, meaning, consequence, advice, default_text, example, flags, is_secret)
    return field(default=default, repr=not is_secret, metadata={"key": declared})


def key_of(item: Field[Any]) -> Key | None:
    """The key a dataclass field was declared with, if it was."""
    found: Key | None = item.metadata.get("key")
    return found


def section_of(item: Field[Any]) -> type[Any] | None:
    """The dataclass of a field that holds a section rather than a key."""
    return None if item.default_factory is MISSING else item.default_factory  # type: ignore[return-value]


def keys_of(section: type[Any]) -> Iterator[Key]:
    """Every key below this dataclass, in the order of declaration."""
    for item in fields(section):
        declared, inner = key_of(item), section_of(item)
        if declared is not None:
            yield declared
        elif inner is not None:
            yield from keys_of(inner)
