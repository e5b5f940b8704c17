"""A pipeline's file as a tree of texts with their line numbers, and dataclasses filled from it.

Keys are declared next to the field that holds them, as configuration keys are. The error for a wrong value has the file, the line, the
value and what would be right; the error for an unknown key suggests the closest one.

`${NAME}` is replaced by a variable of the environment, `${NAME:-text}` by the text if it is not set, `$${` by the two characters.
Nothing else is substituted, and nothing in the name of a key.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

from bascule.config.values.given import closest, did_you_mean
from bascule.config.values.key import Key, key_of, section_of
from bascule.config.values.kinds import Kind, Unfit
from bascule.config.values.yaml_file import YamlNode, read_tree
from bascule.errors import InvalidConfig

T = TypeVar("T")
S = TypeVar("S", bound="KeyGroup")

_VARIABLE: Final = re.compile(r"\$(\$\{|\{([A-Za-z_][A-Za-z0-9_]*)(:-([^}]*))?\})")
_SHOWN_MAX: Final = 80


@dataclass(frozen=True, slots=True)
class DocumentNode:
    """One value of the file: a text, None, a list, or more keys."""

    value: str | tuple[DocumentNode, ...] | Mapping[str, DocumentNode] | None
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
    def read(self, node: DocumentNode) -> T:
        """The value. Raises Unfit."""

    def parse(self, text: str) -> T:
        return self.read(DocumentNode(text, "", Path()))


@dataclass(frozen=True, slots=True)
class KeyGroup:
    """A group of keys. `short` is the key that a bare value stands for; `required` are those that must be given."""

    short: ClassVar[str | None] = None
    required: ClassVar[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Variants:
    """A list, each item of which has one key that says what it is."""

    noun: str
    kinds: Mapping[str, type[KeyGroup]]


def variants(noun: str, kinds: Mapping[str, type[KeyGroup]]) -> Any:
    return field(default=(), metadata={"variants": Variants(noun, kinds)})


# ── reading the file ─────────────────────────────────────────────────────────────────────────────


def read_document(path: Path, environ: Mapping[str, str]) -> DocumentNode:
    """The whole file. Raises InvalidConfig for a file that cannot be read, is not YAML, or names a variable that is not set."""
    root = read_tree(path)
    if root is None:
        raise InvalidConfig(f"`{path}` is empty", hint="`bascule pipeline init` writes a file to begin with")
    return _node(root, root.place, path.resolve().parent, environ)


def _node(found: YamlNode, place: str, folder: Path, environ: Mapping[str, str]) -> DocumentNode:
    """A node with variables substituted. The place of a value is that of its key, if it has one."""
    value: str | tuple[DocumentNode, ...] | dict[str, DocumentNode] | None = None
    if found.items is not None:
        value = tuple(_node(item, item.place, folder, environ) for item in found.items)
    elif found.entries is not None:
        value = {}
        for entry in found.entries:
            if entry.name in value:
                raise InvalidConfig(
                    f"`{entry.name}` is set twice: at {value[entry.name].place} and at {entry.place}",
                    hint="remove one of them",
                )
            value[entry.name] = _node(entry.node, entry.place, folder, environ)
    elif found.text is not None:
        value = _substituted(found.text.strip(), found.place, environ)
    return DocumentNode(value, place, folder)


def _substituted(text: str, place: str, environ: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        if match[1] == "${":
            return "${"
        found = environ.get(match[2])
        if found is None and match[3] is None:
            raise InvalidConfig(
                f"`{place}` names the environment variable `{match[2]}`, which is not set",
                hint=f"set it, or write `${{{match[2]}:-a default}}`",
            )
        return str(match[4]) if found is None else found

    return _VARIABLE.sub(value, text)


# ── filling dataclasses ──────────────────────────────────────────────────────────────────────────


def fill(kind: type[S], node: DocumentNode, name: str) -> S:
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


def _entries_of(kind: type[KeyGroup], node: DocumentNode, name: str) -> Mapping[str, DocumentNode]:
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


def _is_map_of(kind: type[KeyGroup], entries: Mapping[str, DocumentNode]) -> bool:
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
    variants: Variants | None = None
    part: type[KeyGroup] = KeyGroup
    """Without keys of its own for a field that is none."""

    @property
    def is_key(self) -> bool:
        return self.key is not None

    @property
    def takes_map(self) -> bool:
        return self.key is not None and bool(getattr(self.key.kind, "takes_map", False))

    def value(self, node: DocumentNode, name: str) -> Any:
        if self.key is not None:
            return _parse(self.key, node, name)
        if self.variants is not None:
            return _items(self.variants, node, name)
        return fill(self.part, node, name)

    def describe(self) -> str:
        if self.key is not None:
            return f"{self.key.kind.name}: {self.key.meaning}"
        return "a list" if self.variants is not None else "keys of its own"


def slots(kind: type[KeyGroup]) -> Iterator[Slot]:
    for item in fields(kind):
        key = key_of(item)
        if key is not None:
            yield Slot(key.name, item.name, key=key)
        elif (part := item.metadata.get("part") or section_of(item)) is not None:
            yield Slot(item.name, item.name, part=part)
        elif "variants" in item.metadata:
            yield Slot(item.name, item.name, variants=item.metadata["variants"])


def _parse(key: Key, node: DocumentNode, name: str) -> Any:
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


def _items(choices: Variants, node: DocumentNode, name: str) -> tuple[KeyGroup, ...]:
    listed = ", ".join(f"`{each}`" for each in choices.kinds)
    if not isinstance(node.value, tuple):
        raise InvalidConfig(
            f"`{name}` at {node.place} is `{node.text}`",
            hint=f"it must be a list, with a {choices.noun} on each line: {listed}",
        )
    return tuple(_item(choices, item, f"{name}[{number}]", listed) for number, item in enumerate(node.value, start=1))


def _item(choices: Variants, node: DocumentNode, name: str, listed: str) -> KeyGroup:
    if isinstance(node.value, str) and node.value in choices.kinds:  # `- console`
        return fill(choices.kinds[node.value], DocumentNode(None, node.place, node.folder), f"{name}.{node.value}")
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


def _unknown(key: str, node: DocumentNode, name: str, known: Mapping[str, Slot]) -> InvalidConfig:
    hint = did_you_mean(closest(key, known)) or "there are " + ", ".join(f"`{each}`" for each in known)
    return InvalidConfig(f"Unknown key `{_dotted(name, key)}` at {node.place}", hint=hint)


def _dotted(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key
