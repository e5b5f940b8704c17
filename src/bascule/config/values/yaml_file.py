"""Reading a YAML file as a tree of texts with line numbers, without trusting it; and such a tree as dotted keys.

`streams: {retention.max: {age: 24h}}` and `streams.retention.max.age: 24h` are the same key. The tree is made from PyYAML's node graph
instead of its objects: that keeps the text as it was written (`0123` stays four characters), knows the line of every value,
constructs no object, and counts what aliases expand to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bascule import limits
from bascule.config.values.given import Given, closest, did_you_mean
from bascule.config.values.key import Key
from bascule.config.values.kinds import Names, NatsServers
from bascule.errors import InvalidConfig

if TYPE_CHECKING:
    import yaml

_YAML: Final = "tag:yaml.org,2002:"
_SCALARS: Final = frozenset(_YAML + tag for tag in ("str", "int", "float", "bool", "null", "timestamp", "value"))
_DEPTH_MAX: Final = 20
"""Levels of a file; an alias can lead back to where it is, so that there would be no end."""


@dataclass(frozen=True, slots=True)
class YamlNode:
    """One value of a file: a text as it was written, a list, keys with a value each, or nothing of these for `null`."""

    place: str
    """`file:line`"""
    text: str | None = None
    items: tuple[YamlNode, ...] | None = None
    entries: tuple[YamlEntry, ...] | None = None


@dataclass(frozen=True, slots=True)
class YamlEntry:
    """A key and its value; the same key may be there twice."""

    name: str
    place: str
    node: YamlNode


def read_tree(path: Path) -> YamlNode | None:
    """The values of a file; None for an empty one. Raises InvalidConfig for a file that cannot be read, or is not plain YAML."""
    root = _compose(path, _read_text(path))
    return None if root is None else _Tree(path).node(root, 0)


class _Tree:
    """One pass over PyYAML's nodes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._nodes = 0

    def node(self, found: yaml.Node, depth: int) -> YamlNode:
        place = self._place(found)
        self._nodes += 1
        if self._nodes > limits.CONFIG_NODES_MAX or depth > _DEPTH_MAX:
            raise InvalidConfig(
                f"`{place}`: the file has more than {limits.CONFIG_NODES_MAX} values after expanding aliases, or is nested too deeply"
            )
        shape: str = found.id  # type: ignore[attr-defined] # every node has it, only the stubs' base class has not
        if shape == "sequence":
            return YamlNode(place, items=tuple(self.node(item, depth + 1) for item in found.value))
        if shape == "mapping":
            return YamlNode(place, entries=tuple(self._entry(name, value, depth) for name, value in found.value))
        if found.tag not in _SCALARS:
            raise InvalidConfig(f"`{place}`: the YAML tag `{found.tag}` has no meaning here")
        return YamlNode(place) if found.tag == _YAML + "null" else YamlNode(place, text=str(found.value))

    def _entry(self, name: yaml.Node, value: yaml.Node, depth: int) -> YamlEntry:
        if name.id != "scalar" or name.tag == _YAML + "merge":  # type: ignore[attr-defined] # as above
            raise InvalidConfig(f"`{self._place(name)}`: a key is a word, not a list, a mapping or `<<`")
        return YamlEntry(str(name.value).strip(), self._place(name), self.node(value, depth + 1))

    def _place(self, node: yaml.Node) -> str:
        return f"{self._path}:{node.start_mark.line + 1}"


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(limits.CONFIG_FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidConfig(
            f"Cannot read the configuration file `{path}`: {reason}", hint="check the path and its permissions"
        ) from None
    if len(data) > limits.CONFIG_FILE_BYTES_MAX:
        raise InvalidConfig(
            f"`{path}` is larger than {limits.CONFIG_FILE_BYTES_MAX} bytes and cannot be a configuration file"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidConfig(
            f"`{path}` is not a text file: byte {error.start} is not UTF-8",
            hint="a configuration file is YAML in UTF-8",
        ) from None


def _compose(path: Path, text: str) -> yaml.Node | None:
    try:
        import yaml
    except ModuleNotFoundError:
        raise InvalidConfig(
            f"Cannot read `{path}`: PyYAML is not installed",
            hint="`pip install 'bascule[server]'` for servers, `pip install 'bascule[spark]'` for pipelines",
        ) from None
    try:
        root: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
        return root
    except RecursionError:
        raise InvalidConfig(f"`{path}` is nested too deeply to be a configuration file") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        raise InvalidConfig(f"`{place}` is not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidConfig(f"`{path}` is not YAML: {str(error).splitlines()[0]}") from None


# ── dotted keys ──────────────────────────────────────────────────────────────────────────────────


def read_file(path: Path, keys: Mapping[str, Key]) -> dict[str, Given]:
    """Every key the file sets. Raises InvalidConfig for a file that cannot be read, or has an unknown key."""
    root = read_tree(path)
    return {} if root is None else _Keys(keys).read(root)


class _Keys:
    """The keys of one file."""

    def __init__(self, keys: Mapping[str, Key]) -> None:
        self._keys = keys
        self._sections = {name[:i] for name in keys for i, letter in enumerate(name) if letter == "."}
        self._given: dict[str, Given] = {}

    def read(self, root: YamlNode) -> dict[str, Given]:
        if root.entries is None and (root.items is not None or root.text is not None):
            raise InvalidConfig(
                f"`{root.place}` holds a {'text' if root.items is None else 'list'} instead of keys",
                hint="write keys as `name: value`, for example `listen: 127.0.0.1:9292`",
            )
        self._read(root.entries or (), ())
        return self._given

    def _read(self, entries: tuple[YamlEntry, ...], prefix: tuple[str, ...]) -> None:
        for entry in entries:
            name = ".".join((*prefix, entry.name.lower()))
            if entry.node.entries is not None:
                self._refuse_unknown_section(name, entry.place)
                self._read(entry.node.entries, (name,))
            elif not self._is_empty_section(name, entry.node):
                self._value(name, entry)

    def _is_empty_section(self, name: str, node: YamlNode) -> bool:
        """`tls:` with every line below it commented out."""
        return name in self._sections and name not in self._keys and node.text is None and node.items is None

    def _refuse_unknown_section(self, name: str, place: str) -> None:
        if name in self._sections:
            return
        if name in self._keys:
            raise InvalidConfig(f"`{name}` at {place} takes a value, not more keys")
        raise self._unknown(name, place)

    def _unknown(self, name: str, place: str) -> InvalidConfig:
        hint = did_you_mean(closest(name, [*self._keys, *self._sections]))
        return InvalidConfig(
            f"Unknown key `{name}` at {place}", hint=hint or "run `bascule config reference` for the list of keys"
        )

    def _value(self, name: str, entry: YamlEntry) -> None:
        key = self._keys.get(name)
        if key is None:
            raise self._unknown(name, entry.place)
        before = self._given.get(name)
        if before is not None:
            raise InvalidConfig(
                f"`{name}` is set twice: at {before.source} and at {entry.place}", hint="remove one of them"
            )
        self._given[name] = Given(_text(key, entry.node), entry.place)


def _text(key: Key, node: YamlNode) -> str | tuple[str, ...]:
    if node.items is None:
        return _scalar(key, node)
    if not isinstance(key.kind, (Names, NatsServers)):
        raise InvalidConfig(f"`{key.name}` at {node.place} takes one value, not a list")
    for item in node.items:
        if item.items is not None or item.entries is not None:
            raise InvalidConfig(f"`{key.name}` at {item.place}: the list holds something else than texts")
    return tuple(_scalar(key, item) for item in node.items)


def _scalar(key: Key, node: YamlNode) -> str:
    if node.text is None:
        raise InvalidConfig(
            f"`{key.name}` at {node.place} has no value",
            hint=f"give it one ({key.kind.name}) or remove the line to get the default: {key.show_default()}",
        )
    return node.text if key.is_secret else node.text.strip()
