"""Values before they are parsed: the text, and its source."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bascule.config.values.key import ENVIRONMENT_PREFIXES, Key
from bascule.errors import InvalidConfig

NOT_KEYS: Final = frozenset({"ENCRYPTION_KEY", "ENCRYPTION_PREVIOUS_KEYS"})
"""Variables with the prefix `BASCULE_` that are not configuration keys: secrets that must not be in a file."""

# Kubernetes sets these in every pod of a namespace with a Service named `bascule` or `liftbridge`.
_SERVICE_LINK: Final = re.compile(r"([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_.*)?)")
_SERVICE_LINK_URL: Final = re.compile(r"(tcp|udp|sctp)://.*")


@dataclass(frozen=True, slots=True)
class Given:
    """A value from a file, the environment or a flag. A list is a tuple of texts."""

    value: str | tuple[str, ...]
    source: str

    @property
    def text(self) -> str:
        return self.value if isinstance(self.value, str) else ",".join(self.value)


def from_environ(environ: Mapping[str, str], keys: Mapping[str, Key]) -> dict[str, Given]:
    """Return the keys that the environment sets, with the prefix of Bascule or Liftbridge, and with dots or underscores. An empty
    variable counts as unset."""
    given = {}
    for key in keys.values():
        for variable in _variables(key):
            value = environ.get(variable, "").strip()
            if value and not (key.name == "port" and _SERVICE_LINK_URL.fullmatch(value)):
                given[key.name] = Given(value, f"environment variable {variable}")
                break
    _refuse_misspelt_variables(environ, keys)
    return given


def _variables(key: Key) -> Iterator[str]:
    """The names of a key's variable, the one that counts first: `BASCULE_LOGGING_LEVEL`, `BASCULE_LOGGING.LEVEL`, and Liftbridge's."""
    for prefix in ENVIRONMENT_PREFIXES:
        yield from dict.fromkeys((prefix + key.variable, prefix + key.name.upper()))


def _refuse_misspelt_variables(environ: Mapping[str, str], keys: Mapping[str, Key]) -> None:
    known = {key.variable for key in keys.values()} | NOT_KEYS
    sections = {key.variable.partition("_")[0] for key in keys.values()}
    for name in sorted(environ):
        rest = name.removeprefix(ENVIRONMENT_PREFIXES[0]).replace(".", "_")
        if not name.startswith(ENVIRONMENT_PREFIXES[0]) or rest in known or _SERVICE_LINK.fullmatch(rest):
            continue
        close = closest(rest, known)
        if close is not None or rest.partition("_")[0] in sections:
            raise InvalidConfig(
                f"Environment variable `{name}` is not a configuration key",
                hint=did_you_mean(close and ENVIRONMENT_PREFIXES[0] + close)
                or "run `bascule config reference` for the list of keys, or unset the variable",
            )


def from_flags(flags: Mapping[str, object], keys: Mapping[str, Key]) -> dict[str, Given]:
    """Return the flags by key name. None or an empty list means that the flag was not given."""
    given = {}
    for name, value in flags.items():
        key = keys.get(name)
        if key is None:
            raise InvalidConfig(f"Flag for unknown key `{name}`", hint=did_you_mean(closest(name, keys)))
        if value is not None and value != () and value != []:
            given[name] = Given(_flag_value(value), f"flag {key.flags[0]}" if key.flags else f"flag for `{name}`")
    return given


def _flag_value(value: object) -> str | tuple[str, ...]:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, Path)):
        return str(value)
    if isinstance(value, Sequence) and all(isinstance(part, str) for part in value):
        return tuple(str(part) for part in value)
    raise TypeError(f"a flag's value is text, a number, a path or a list of texts, not {type(value).__name__}")


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to `name`, if one is similar enough."""
    # Keys share long prefixes, so the cutoff is high.
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.75)
    return matches[0] if matches else None


def did_you_mean(name: str | None) -> str | None:
    return None if name is None else f"did you mean `{name}`?"
