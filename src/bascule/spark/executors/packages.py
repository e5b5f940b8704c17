"""The packages that `pip install "bascule[spark]"` installs, as the installed distributions declare them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Final

from bascule.errors import MissingExtra

OURS: Final = "bascule"
EXTRA: Final = "spark"
INSTALL: Final = '`pip install "bascule[spark]"`'


@dataclass(frozen=True, slots=True)
class WantedPackage:
    """A package with the versions that are right, as its requirement says."""

    name: str
    extras: frozenset[str]
    versions: str
    found: str | None
    """The installed version; None if there is none."""
    is_right: bool


def wanted(extra: str = EXTRA) -> list[WantedPackage]:
    """The packages that the extra of Bascule names itself, and that Bascule always needs."""
    from packaging.requirements import Requirement

    found = []
    for text in metadata.requires(OURS) or ():
        one = Requirement(text)
        if one.marker is None or one.marker.evaluate({"extra": extra}):
            version = _version(one.name)
            is_right = version is not None and one.specifier.contains(version, prereleases=True)
            found.append(WantedPackage(one.name, frozenset(one.extras), str(one.specifier), version, is_right))
    return found


def closure(
    extra: str, more: Collection[str] = (), leave_out: Collection[str] = ()
) -> dict[str, metadata.Distribution]:
    """The distributions that the extra needs, with `more` and all that they need, by their normalized names. What only a left out one
    needs is left out. Raises MissingExtra for one that is not installed.
    """
    from packaging.utils import canonicalize_name

    without = {canonicalize_name(name) for name in leave_out}
    found: dict[str, metadata.Distribution] = {}
    waiting = [(one.name, one.extras | {""}) for one in wanted(extra)] + [(name, frozenset({""})) for name in more]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, extras = waiting.pop()
        key = canonicalize_name(name)
        if key in without or (key, extras) in seen:
            continue
        seen.add((key, extras))
        try:
            found[key] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            raise MissingExtra(f"the package `{name}` is not installed", hint=INSTALL) from None
        waiting += _needed(found[key], extras)
    return dict(sorted(found.items()))


def _needed(distribution: metadata.Distribution, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    from packaging.requirements import Requirement

    for text in distribution.requires or ():
        one = Requirement(text)
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras):
            yield one.name, frozenset({"", *one.extras})


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
