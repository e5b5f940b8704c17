"""Loads a configuration. Flags override the environment, the environment overrides the file, the file overrides defaults."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from bascule.config.checks import check
from bascule.config.sections.server import KEYS, ServerConfig
from bascule.config.values.given import Given, from_environ, from_flags
from bascule.config.values.key import Key, key_of, section_of
from bascule.config.values.kinds import Names, NatsServers, Unfit
from bascule.config.values.yaml_file import read_file
from bascule.errors import InvalidConfig

_NO_FLAGS: Final[Mapping[str, object]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Setting:
    """The value of one key after loading, and its source."""

    key: Key
    value: Any
    source: str

    @property
    def is_default(self) -> bool:
        return bool(self.value == self.key.default)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration and the source of each value."""

    config: ServerConfig
    settings: tuple[Setting, ...]
    warnings: tuple[str, ...] = ()
    """Values that are accepted, and mean something else than they do to Liftbridge."""


def load(
    config_file: Path | str | None = None,
    flags: Mapping[str, object] = _NO_FLAGS,
    environ: Mapping[str, str] | None = None,
) -> ServerConfig:
    """Return the configuration of a server. `flags` maps dotted keys to values; None means that a flag was not given.

    Raises InvalidConfig, which names the key, the value, its source and the valid values.
    """
    return load_with_sources(config_file, flags, environ).config


def load_with_sources(
    config_file: Path | str | None = None,
    flags: Mapping[str, object] = _NO_FLAGS,
    environ: Mapping[str, str] | None = None,
) -> Loaded:
    """Return the configuration as `load` does, with the value and the source of every key."""
    given: dict[str, Given] = {}
    if config_file is not None:
        given |= read_file(Path(config_file), KEYS)
    given |= from_environ(os.environ if environ is None else environ, KEYS)
    given |= from_flags(flags, KEYS)
    values = {name: _parse(KEYS[name], value) for name, value in given.items()}
    config: ServerConfig = _build(ServerConfig, values)

    def describe(name: str) -> str:
        shown = KEYS[name].show(values.get(name, KEYS[name].default))
        return f"= {shown}, from {given[name].source}" if name in given else f"= {shown}, the default"

    check(config, describe)
    settings = tuple(
        Setting(key, values.get(name, key.default), given[name].source if name in given else "default")
        for name, key in KEYS.items()
    )
    return Loaded(config, settings, tuple(_warnings(given)))


def _warnings(given: Mapping[str, Given]) -> Iterator[str]:
    for name, value in given.items():
        remark = KEYS[name].kind.remark(value.text)
        if remark is not None:
            yield f"`{name}` is `{_shorten(value.text)}` ({value.source}): {remark}"


def _parse(key: Key, given: Given) -> Any:
    try:
        if isinstance(given.value, tuple) and not isinstance(key.kind, (Names, NatsServers)):
            raise Unfit("one value, not a list")
        return key.kind.parse(given.text)
    except Unfit as unfit:
        raise InvalidConfig(
            f"`{key.name}` is `{_shorten(key.mask(given.text))}` ({given.source})", hint=f"it must be {unfit}"
        ) from None


def _shorten(text: str) -> str:
    printable = "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
    return printable if len(printable) <= 80 else printable[:77] + "…"


def _build(section: type[Any], values: Mapping[str, Any]) -> Any:
    """Return an instance of a section; keys that are not in `values` keep their defaults."""
    arguments: dict[str, Any] = {}
    for item in fields(section):
        key, inner = key_of(item), section_of(item)
        if key is not None and key.name in values:
            arguments[item.name] = values[key.name]
        elif inner is not None:
            arguments[item.name] = _build(inner, values)
    return section(**arguments)
