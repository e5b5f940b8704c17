"""Values of a pipeline's file that are more than a word: folders, lists of expressions, keys of one's own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from bascule.config.values.kinds import Unfit
from bascule.errors import InvalidOption
from bascule.lake.delta.place import LakePlace
from bascule.pipeline.spec.document import DocumentNode, NodeKind
from bascule.spark.options.declaration import StreamName

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_IDENTIFIER: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_LAKE_RIGHT: Final = "a folder such as `/lake/orders`, or a path such as `s3://bucket/orders`"
_FOLDER_RIGHT: Final = "a folder that the driver and all executors have, such as `/lake/orders`"


@dataclass(frozen=True, slots=True)
class StreamNames(NodeKind[tuple[str, ...]]):
    """A list of streams, or one text with commas."""

    name = "list of streams"

    def read(self, node: DocumentNode) -> tuple[str, ...]:
        if isinstance(node.value, str):
            words = [word.strip() for word in node.value.split(",") if word.strip()]
        else:
            words = list(_texts(node, "stream"))
        if not words:
            raise Unfit("a list of streams")
        return tuple(dict.fromkeys(StreamName().parse(word) for word in words))

    def show(self, value: tuple[str, ...]) -> str:
        return ",".join(value)


@dataclass(frozen=True, slots=True)
class Folder(NodeKind[str]):
    """A folder; one that is no absolute path begins where the file lies."""

    name = "path"

    def read(self, node: DocumentNode) -> str:
        if not isinstance(node.value, str) or not node.value or "\0" in node.value:
            raise Unfit(_FOLDER_RIGHT)
        scheme = _SCHEME.match(node.value)
        if scheme is not None and scheme[1] != "file":
            raise Unfit(f"{_FOLDER_RIGHT}: `{scheme[1]}` has no rename that takes place at once or not at all")
        return str(node.folder / node.value.removeprefix("file://"))


@dataclass(frozen=True, slots=True)
class LakePath(NodeKind[str]):
    """A folder, or a path in an object store."""

    name = "path"

    def read(self, node: DocumentNode) -> str:
        if not isinstance(node.value, str) or "\0" in node.value:
            raise Unfit(_LAKE_RIGHT)
        try:
            place = LakePlace.of(node.value)
        except InvalidOption as error:
            raise Unfit(f"{_LAKE_RIGHT}: {error.message}") from None
        return place.uri if place.local is None else str(node.folder / place.uri)


@dataclass(frozen=True, slots=True)
class TablePath(NodeKind[str]):
    """A file or folder that is read: relative to the pipeline's file, or a URL that Spark can open."""

    name = "path"

    def read(self, node: DocumentNode) -> str:
        if not isinstance(node.value, str) or not node.value or "\0" in node.value:
            raise Unfit("a path such as `/data/customers.csv`")
        if _SCHEME.match(node.value):
            return node.value.removeprefix("file://")
        return str(node.folder / node.value)


@dataclass(frozen=True, slots=True)
class Identifier(NodeKind[str]):
    """A name that SQL takes without quotes."""

    name = "name"

    def read(self, node: DocumentNode) -> str:
        if not isinstance(node.value, str) or not _IDENTIFIER.fullmatch(node.value):
            raise Unfit("a name of letters, digits and `_` that does not begin with a digit or `_`")
        return node.value


@dataclass(frozen=True, slots=True)
class CronTimes(NodeKind[str]):
    """Times as in a crontab."""

    name = "times as in a crontab"

    def read(self, node: DocumentNode) -> str:
        from cronsim import CronSim, CronSimError

        text = node.value if isinstance(node.value, str) else ""
        try:
            next(CronSim(text, datetime.now(UTC)))
        except (CronSimError, StopIteration):
            raise Unfit(
                "five fields as in a crontab (minute, hour, day, month, weekday), such as `*/15 * * * *`"
            ) from None
        return text


@dataclass(frozen=True, slots=True)
class FunctionName(NodeKind[str]):
    """A function of Python as `module:function`."""

    name = "module:function"

    def read(self, node: DocumentNode) -> str:
        module, _, function = node.value.partition(":") if isinstance(node.value, str) else ("", "", "")
        if not all(part.isidentifier() for part in (*module.split("."), function)):
            raise Unfit("a module and a function, such as `shop.risk:score`")
        return f"{module}:{function}"


@dataclass(frozen=True, slots=True)
class Expressions(NodeKind[tuple[str, ...]]):
    """Expressions of SQL: a list, or a single one."""

    name = "list of SQL expressions"

    def read(self, node: DocumentNode) -> tuple[str, ...]:
        found = (node.value,) if isinstance(node.value, str) else _texts(node, "expression")
        if not found or not all(found):
            raise Unfit("a list of SQL expressions, such as `[value.id, value.at]`")
        return tuple(found)

    def show(self, value: tuple[str, ...]) -> str:
        return ", ".join(value)


@dataclass(frozen=True, slots=True)
class SelectedColumns(NodeKind[tuple[str, ...]]):
    """Expressions of SQL, as a list or by the names that they get."""

    name = "list of SQL expressions, or names with one each"
    takes_map = True

    def read(self, node: DocumentNode) -> tuple[str, ...]:
        if not isinstance(node.value, Mapping):
            return Expressions().read(node)
        for name, value in node.value.items():
            if not isinstance(value.value, str) or not value.value or "`" in name:
                raise Unfit(f"an SQL expression for each name; `{name}` has `{value.text}`")
        return tuple(f"{value.value} AS `{name}`" for name, value in node.value.items())

    def show(self, value: tuple[str, ...]) -> str:
        return ", ".join(value)


@dataclass(frozen=True, slots=True)
class TextMap(NodeKind[Mapping[str, str]]):
    """Names with a text each; values that are no text are written as YAML has them."""

    name = "names with a value each"
    takes_map = True

    def read(self, node: DocumentNode) -> Mapping[str, str]:
        if not isinstance(node.value, Mapping):
            raise Unfit("names with a value each")
        for name, value in node.value.items():
            if not isinstance(value.value, str):
                raise Unfit(f"one value for each name; `{name}` has `{value.text}`")
        return {name: str(value.value) for name, value in node.value.items()}

    def show(self, value: Mapping[str, str]) -> str:
        return ", ".join(f"{name}: {text}" for name, text in value.items())


def _texts(node: DocumentNode, noun: str) -> tuple[str, ...]:
    if not isinstance(node.value, tuple):
        raise Unfit(f"a list, one {noun} on each line")
    for item in node.value:
        if not isinstance(item.value, str):
            raise Unfit(f"a list with one {noun} on each line; `{item.text}` at {item.place} is none")
    return tuple(str(item.value) for item in node.value)
