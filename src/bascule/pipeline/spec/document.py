"""A pipeline's file as a tree of texts that know where they stand, and dataclasses filled from it.

What can be written is declared next to the field that holds it, as configuration keys are. A value that does not fit is refused with
the file, the line, the value and what would be right; a key that there is not, with the one that was probably meant.

`${NAME}` stands for a variable of the environment, `${NAME:-text}` for the text if it is not set, `$${` for the two characters. Nothing
else is substituted, and never within the name of a key.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from bascule import limits
from bascule.config.values.given import closest, did_you_mean
from bascule.config.values.key import Key, key_of, section_of
from bascule.config.values.kinds import Kind, Unfit
from bascule.config.values.yaml_file import compose, shape
from bascule.errors import InvalidConfig

if TYPE_CHECKING:
    import yaml

T = TypeVar("T")
S = TypeVar("S", bound="Part")

_YAML: Final = "tag:yaml.org,2002:"
_VARIABLE: Final = re.compile(r"\$(\$\{|\{([A-Za-z_][A-Za-z0-9_]*)(:-([^}]*))?\})")
_SHOWN_MAX: Final = 80
_DEPTH_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Node:
    """One value of the file: a text, None, a list, or more keys."""

    value: str | tuple[Node, ...] | Mapping[str, Node] | None
    place: str
    folder: Path
    """Of the file: paths in it begin there."""

    @property
    def text(self) -> str:
        """For messages."""
        shown = self.value if isinstance(self.value, str) else self._words()
        printable = "".join(letter if letter.isprintable() else "\ufffd" for letter in shown)
        return printable if len(printable) <= _SHOWN_MAX else printable[: _SHOWN_MAX - 1] + "…"

    def _words(self) -> str:
        if self.value is None:
            return ""
        return "{" + ", ".join(self.value) + "}" if isinstance(self.value, Mapping) else "a list"


class NodeKind(Kind[T]):
    """A kind whose values may be lists or keys."""

    @abstractmethod
    def read(self, node: Node) -> T:
        """The value. Raises Unfit."""

    def parse(self, text: str) -> T:
        return self.read(Node(text, "", Path()))


@dataclass(frozen=True, slots=True)
class Part:
    """A group of keys. `short` is the key that a bare value stands for; `required` are those that must be given."""

    short: ClassVar[str | None] = None
    required: ClassVar[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Variants:
    """A list, each item of which has one key that says what it is."""

    noun: str
    kinds: Mapping[str, type[Part]]


def variants(noun: str, kinds: Mapping[str, type[Part]]) -> Any:
    return field(default=(), metadata={"variants": Variants(noun, kinds)})


# ── reading the file ─────────────────────────────────────────────────────────────────────────────


def read_document(path: Path, environ: Mapping[str, str]) -> Node:
    """The whole file. Raises InvalidConfig for what cannot be read, is no YAML, or names a variable that is not set."""
    root = compose(path)
    if root is None:
        raise InvalidConfig(f"`{path}` is empty", hint="`bascule pipeline init` writes one to begin with")
    return _Reading(path, environ).node(root, 0)


class _Reading:
    def __init__(self, path: Path, environ: Mapping[str, str]) -> None:
        self._path = path
        self._folder = path.resolve().parent
        self._environ = environ
        self._count = 0

    def node(self, found: yaml.Node, depth: int) -> Node:
        place = f"{self._path}:{found.start_mark.line + 1}"
        self._count += 1
        if self._count > limits.CONFIG_NODES_MAX or depth > _DEPTH_MAX:  # aliases may lead in circles
            raise InvalidConfig(f"`{place}`: too many values, or nested too deeply")
        return Node(self._value(found, place, depth), place, self._folder)

    def _value(self, found: yaml.Node, place: str, depth: int) -> Any:
        if shape(found) == "sequence":
            return tuple(self.node(item, depth + 1) for item in found.value)
        if shape(found) == "mapping":
            return self._entries(found, place, depth)
        if not found.tag.startswith(_YAML):
            raise InvalidConfig(f"`{place}`: the YAML tag `{found.tag}` has no meaning here")
        return None if found.tag == _YAML + "null" else self._substituted(str(found.value).strip(), place)

    def _entries(self, found: yaml.Node, place: str, depth: int) -> dict[str, Node]:
        entries: dict[str, Node] = {}
        for name, value in found.value:
            if shape(name) != "scalar" or name.tag == _YAML + "merge":
                raise InvalidConfig(f"`{place}`: a key is a word, not a list, a mapping or `<<`")
            text, where = str(name.value).strip(), f"{self._path}:{name.start_mark.line + 1}"
            if text in entries:
                raise InvalidConfig(
                    f"`{text}` is set twice: at {entries[text].place} and at {where}", hint="remove one of them"
                )
            node = self.node(value, depth + 1)
            entries[text] = Node(node.value, where, node.folder)
        return entries

    def _substituted(self, text: str, place: str) -> str:
        def value(match: re.Match[str]) -> str:
            if match[1] == "${":
                return "${"
            found = self._environ.get(match[2])
            if found is None and match[3] is None:
                raise InvalidConfig(
                    f"`{place}` names the environment variable `{match[2]}`, which is not set",
                    hint=f"set it, or write `${{{match[2]}:-a default}}`",
                )
            return str(match[4]) if found is None else found

        return _VARIABLE.sub(value, text)


# ── filling dataclasses ──────────────────────────────────────────────────────────────────────────


def fill(kind: type[S], node: Node, name: str) -> S:
    """A part from its node. `name` is what it is called in the file: `source`, `steps[2].expect`."""
    entries = _entries_of(kind, node, name)
    known = {each.name: each for each in slots(kind)}
    for key, value in entries.items():
        if key not in known:
            raise _unknown(key, value, name, known)
    values: dict[str, Any] = {}
    for slot in known.values():
        given = entries.get(slot.name)
        if given is not None and not (given.value is None and not slot.is_key):
            values[slot.field] = slot.value(given, _dotted(name, slot.name))
    for key in sorted(kind.required - entries.keys()):
        raise InvalidConfig(f"`{_dotted(name, key)}` is missing at {node.place}", hint=f"it is {known[key].describe()}")
    return kind(**values)


def _entries_of(kind: type[Part], node: Node, name: str) -> Mapping[str, Node]:
    if isinstance(node.value, Mapping) and not (kind.short and _is_map_of(kind, node.value)):
        return node.value
    if node.value is None:
        return {}
    if kind.short is None:
        raise InvalidConfig(
            f"`{name or 'the file'}` at {node.place} is `{node.text}`",
            hint="it must be keys, each with a value: " + ", ".join(f"`{each.name}`" for each in slots(kind)),
        )
    return {kind.short: node}


def _is_map_of(kind: type[Part], entries: Mapping[str, Node]) -> bool:
    """`select: {id: value.id}`: keys that are not ours, for a part whose bare value may be keys."""
    names = {each.name: each for each in slots(kind)}
    short = names[kind.short or ""]
    return short.takes_map and not entries.keys() <= names.keys()


@dataclass(frozen=True, slots=True)
class Slot:
    """A field of a part: a key, a part, or a list of variants."""

    name: str
    field: str
    key: Key | None = None
    part: type[Part] | None = None
    variants: Variants | None = None

    @property
    def is_key(self) -> bool:
        return self.key is not None

    @property
    def takes_map(self) -> bool:
        return self.key is not None and bool(getattr(self.key.kind, "takes_map", False))

    def value(self, node: Node, name: str) -> Any:
        if self.key is not None:
            return _parse(self.key, node, name)
        if self.part is not None:
            return fill(self.part, node, name)
        assert self.variants is not None
        return _items(self.variants, node, name)

    def describe(self) -> str:
        if self.key is not None:
            return f"{self.key.kind.name}: {self.key.meaning}"
        return "a list" if self.variants is not None else "keys of its own"


def slots(kind: type[Part]) -> Iterator[Slot]:
    for item in fields(kind):
        key = key_of(item)
        if key is not None:
            yield Slot(key.name, item.name, key=key)
        elif section_of(item) is not None or "part" in item.metadata:
            yield Slot(item.name, item.name, part=item.metadata.get("part") or section_of(item))
        elif "variants" in item.metadata:
            yield Slot(item.name, item.name, variants=item.metadata["variants"])


def _parse(key: Key, node: Node, name: str) -> Any:
    try:
        if isinstance(key.kind, NodeKind):
            return key.kind.read(node)
        if node.value is None:
            raise Unfit(f"a value ({key.kind.name}); remove the line to get the default: {key.show_default()}")
        if not isinstance(node.value, str):
            raise Unfit(f"one value ({key.kind.name})")
        return key.kind.parse(node.value)
    except Unfit as unfit:
        shown = "***" if key.is_secret else key.mask(node.text)
        raise InvalidConfig(f"`{name}` at {node.place} is `{shown}`", hint=f"it must be {unfit}") from None


def _items(choices: Variants, node: Node, name: str) -> tuple[Part, ...]:
    listed = ", ".join(f"`{each}`" for each in choices.kinds)
    if not isinstance(node.value, tuple):
        raise InvalidConfig(
            f"`{name}` at {node.place} is `{node.text}`",
            hint=f"it must be a list, with a {choices.noun} on each line: {listed}",
        )
    return tuple(_item(choices, item, f"{name}[{number}]", listed) for number, item in enumerate(node.value, start=1))


def _item(choices: Variants, node: Node, name: str, listed: str) -> Part:
    if isinstance(node.value, str) and node.value in choices.kinds:  # `- console`
        return fill(choices.kinds[node.value], Node(None, node.place, node.folder), f"{name}.{node.value}")
    if isinstance(node.value, str) and (close := closest(node.value, choices.kinds)) is not None:
        raise InvalidConfig(f"`{node.value}` at {node.place} is no {choices.noun}", hint=did_you_mean(close))
    if not isinstance(node.value, Mapping) or len(node.value) != 1:
        raise InvalidConfig(
            f"`{name}` at {node.place} is `{node.text}`", hint=f"it must be one {choices.noun} with its value: {listed}"
        )
    ((word, value),) = node.value.items()
    if word not in choices.kinds:
        hint = did_you_mean(closest(word, choices.kinds)) or f"there are {listed}"
        raise InvalidConfig(f"`{word}` at {value.place} is no {choices.noun}", hint=hint)
    return fill(choices.kinds[word], value, f"{name}.{word}")


def _unknown(key: str, node: Node, name: str, known: Mapping[str, Slot]) -> InvalidConfig:
    hint = did_you_mean(closest(key, known)) or "there are " + ", ".join(f"`{each}`" for each in known)
    return InvalidConfig(f"Unknown key `{_dotted(name, key)}` at {node.place}", hint=hint)


def _dotted(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key
