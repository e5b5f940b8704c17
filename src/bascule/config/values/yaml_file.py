"""Reads a YAML file into dotted keys with line numbers. The file is not trusted.

`streams: {retention.max: {age: 24h}}` and `streams.retention.max.age: 24h` are the same key. The reader walks PyYAML's node graph
and constructs no objects: this keeps the text as written (`0123` stays four characters) and the line of every value, and allows to
count the values that aliases expand to.
"""

from __future__ import annotations

from collections.abc import Mapping
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


def read_file(path: Path, keys: Mapping[str, Key]) -> dict[str, Given]:
    """Return the keys that the file sets. Raises InvalidConfig if the file cannot be read or has an unknown key."""
    root = compose(path)
    return {} if root is None else _Walk(path, keys).run(root)


def compose(path: Path) -> yaml.Node | None:
    """The nodes of a file, nothing constructed; None for an empty one. Raises InvalidConfig."""
    return _compose(path, _read_text(path))


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
            f"Cannot read `{path}`: PyYAML is not installed", hint="install the server: pip install 'bascule[server]'"
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


def shape(node: yaml.Node) -> str:
    """`scalar`, `sequence` or `mapping`; every concrete node says so, only the stubs' base class does not."""
    shape: str = node.id  # type: ignore[attr-defined]
    return shape


class _Walk:
    """One pass over a node graph."""

    def __init__(self, path: Path, keys: Mapping[str, Key]) -> None:
        self._path = path
        self._keys = keys
        self._sections = {name[:i] for name in keys for i, letter in enumerate(name) if letter == "."}
        self._given: dict[str, Given] = {}
        self._nodes = 0

    def run(self, root: yaml.Node) -> dict[str, Given]:
        if shape(root) == "scalar" and root.tag == _YAML + "null":
            return {}
        if shape(root) != "mapping":
            raise InvalidConfig(
                f"`{self._place(root)}` holds a {'list' if shape(root) == 'sequence' else 'text'} instead of keys",
                hint="write keys as `name: value`, for example `listen: 127.0.0.1:9292`",
            )
        self._mapping(root, ())
        return self._given

    def _place(self, node: yaml.Node) -> str:
        return f"{self._path}:{node.start_mark.line + 1}"

    def _count(self, node: yaml.Node) -> None:
        self._nodes += 1
        if self._nodes > limits.CONFIG_NODES_MAX:
            raise InvalidConfig(
                f"`{self._place(node)}`: more than {limits.CONFIG_NODES_MAX} values after expanding aliases"
            )

    def _mapping(self, node: yaml.Node, prefix: tuple[str, ...]) -> None:
        """Read a mapping. The recursion is bounded, because a name that is not a section is refused."""
        for name_node, value in node.value:
            self._count(value)
            name = ".".join((*prefix, self._name(name_node)))
            if shape(value) == "mapping":
                self._refuse_unknown_section(name, name_node)
                self._mapping(value, (name,))
            elif not self._is_empty_section(name, value):
                self._value(name, name_node, value)

    def _name(self, node: yaml.Node) -> str:
        if shape(node) != "scalar" or node.tag == _YAML + "merge":
            raise InvalidConfig(f"`{self._place(node)}`: a key is a word, not a list, a mapping or `<<`")
        return str(node.value).strip().lower()

    def _is_empty_section(self, name: str, value: yaml.Node) -> bool:
        """`tls:` with every line below it commented out."""
        return name in self._sections and name not in self._keys and value.tag == _YAML + "null"

    def _refuse_unknown_section(self, name: str, node: yaml.Node) -> None:
        if name in self._sections:
            return
        if name in self._keys:
            raise InvalidConfig(f"`{name}` at {self._place(node)} takes a value, not more keys")
        raise self._unknown(name, node)

    def _unknown(self, name: str, node: yaml.Node) -> InvalidConfig:
        hint = did_you_mean(closest(name, [*self._keys, *self._sections]))
        return InvalidConfig(
            f"Unknown key `{name}` at {self._place(node)}",
            hint=hint or "run `bascule config reference` for the list of keys",
        )

    def _value(self, name: str, name_node: yaml.Node, node: yaml.Node) -> None:
        key = self._keys.get(name)
        if key is None:
            raise self._unknown(name, name_node)
        before = self._given.get(name)
        if before is not None:
            raise InvalidConfig(
                f"`{name}` is set twice: at {before.source} and at {self._place(name_node)}", hint="remove one of them"
            )
        self._given[name] = Given(self._text(key, node), self._place(name_node))

    def _text(self, key: Key, node: yaml.Node) -> str | tuple[str, ...]:
        if shape(node) == "scalar":
            return self._scalar(key, node)
        if not isinstance(key.kind, (Names, NatsServers)):
            raise InvalidConfig(f"`{key.name}` at {self._place(node)} takes one value, not a list")
        parts = []
        for item in node.value:
            self._count(item)
            if shape(item) != "scalar":
                raise InvalidConfig(f"`{key.name}` at {self._place(item)}: the list holds something else than texts")
            parts.append(self._scalar(key, item))
        return tuple(parts)

    def _scalar(self, key: Key, node: yaml.Node) -> str:
        if node.tag not in _SCALARS:
            raise InvalidConfig(f"`{key.name}` at {self._place(node)}: the YAML tag `{node.tag}` has no meaning here")
        if node.tag == _YAML + "null":
            raise InvalidConfig(
                f"`{key.name}` at {self._place(node)} has no value",
                hint=f"give it one ({key.kind.name}) or remove the line to get the default: {key.show_default()}",
            )
        return str(node.value).strip() if not key.is_secret else str(node.value)
