"""Renders messages as raw bytes, JSON lines, hex dumps, a template, or readable lines.

JSON loses nothing: UTF-8 is printed as text, other bytes in base64 as `key_base64`, `value_base64`, `headers_base64`. `bascule publish
--input json` reads the output of `bascule subscribe --format json`.
"""

from __future__ import annotations

import base64
import string
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, Protocol

from bascule.cli.terminal.output import json_line, printable, text_of
from bascule.cli.terminal.values import unescaped, wrong
from bascule.config.values.shown import iso_ns
from bascule.errors import InvalidOption

if TYPE_CHECKING:
    from bascule.client.messages import Message

    Render = Callable[[Message], bytes]

FORMATS: Final = ("pretty", "raw", "json", "hex")
HEX_COLUMNS: Final = 16

FIELDS: Final = ("offset", "partition", "stream", "subject", "reply", "key", "value", "timestamp", "time", "headers")
"""Fields of a template. A single header is `{headers[name]}`."""

NO_VALUE: Final = "(no value)"
"""In readable lines: the message is a tombstone."""


class Messages(Protocol):
    """Messages that are rendered together: a batch, or a part of one."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Message]: ...
    def values(self) -> list[bytes | None]: ...


def document(message: Message) -> dict[str, object]:
    """A message as a JSON object."""
    found: dict[str, object] = {
        "stream": message.stream,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp,
        "time": iso_ns(message.timestamp),
        "subject": message.subject,
    }
    if message.reply:
        found["reply"] = message.reply
    _put(found, "key", message.key)
    if message.value is None:
        found["value"] = None
    _put(found, "value", message.value)
    texts, binary = {}, {}
    for name, value in message.headers.items():
        try:
            texts[name] = value.decode()
        except UnicodeDecodeError:
            binary[name] = base64.b64encode(value).decode()
    if texts:
        found["headers"] = texts
    if binary:
        found["headers_base64"] = binary
    return found


def _put(found: dict[str, object], name: str, value: bytes | None) -> None:
    if value is None:
        return
    try:
        found[name] = value.decode()
    except UnicodeDecodeError:
        found[f"{name}_base64"] = base64.b64encode(value).decode()


# ── formats ──────────────────────────────────────────────────────────────────────────────────────


def renderer(form: str, template: str | None, *, colour: bool, partitions: bool) -> Callable[[Messages], bytes]:
    """The function that renders a batch as bytes for stdout."""
    if template is not None:
        return _each(_template(template))
    if form == "raw":
        return _raw
    if form == "json":
        return _each(lambda message: json_line(document(message)).encode("utf-8", "surrogateescape") + b"\n")
    if form == "hex":
        return _each(lambda message: _hex(message).encode())
    return _each(lambda message: pretty(message, colour=colour, partitions=partitions).encode())


def _each(render: Render) -> Callable[[Messages], bytes]:
    return lambda batch: b"".join(map(render, batch))


def _raw(batch: Messages) -> bytes:
    return b"\n".join([value or b"" for value in batch.values()]) + b"\n" if len(batch) else b""


def _hex(message: Message) -> str:
    head = f"# partition {message.partition} offset {message.offset} {iso_ns(message.timestamp)}"
    if message.key is not None:
        head += f" key {message.key.hex()}"
    if message.value is None:
        head += f" {NO_VALUE}"
    return "\n".join([head, *_dump(message.value or b"")]) + "\n"


def _dump(data: bytes) -> Iterable[str]:
    for start in range(0, len(data), HEX_COLUMNS):
        row = data[start : start + HEX_COLUMNS]
        seen = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"{start:08x}  {row[:8].hex(' '):<23}  {row[8:].hex(' '):<23}  |{seen}|"


def pretty(message: Message, *, colour: bool, partitions: bool) -> str:
    """A readable line: position, time, key, value, headers. Control characters are escaped."""
    place = f"{message.partition}/{message.offset}" if partitions else str(message.offset)
    time = iso_ns(message.timestamp)[:23] + "Z"
    parts = [_paint(place, "36", colour), _paint(time, "2", colour)]
    if message.key is not None:
        parts.append(_paint(printable(text_of(message.key)), "33", colour))
    parts.append(NO_VALUE if message.value is None else printable(text_of(message.value)))
    found = message.headers
    if found:
        shown = " ".join(f"{printable(name)}={printable(text_of(value))}" for name, value in found.items())
        parts.append(_paint(shown, "2", colour))
    return "  ".join(parts) + "\n"


def _paint(text: str, code: str, colour: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if colour else text


# ── templates ────────────────────────────────────────────────────────────────────────────────────


def _template(text: str) -> Render:
    """Compile a template such as `{offset} {key}: {value}\\n`. Only plain fields are allowed: no attributes, conversions or formats."""
    right = "text with fields such as `{offset}`: " + ", ".join(f"`{one}`" for one in FIELDS) + ", `headers[name]`"
    steps: list[tuple[bytes, str]] = []
    try:
        parsed = list(string.Formatter().parse(unescaped(text)))
    except ValueError as error:
        raise InvalidOption(f"`--template` is `{text}`: {error}", hint=f"it must be {right}") from None
    for literal, field, spec, conversion in parsed:
        if spec or conversion or (field is not None and not _is_field(field)):
            raise wrong("--template", text, right)
        steps.append((literal.encode("utf-8", "surrogateescape"), field or ""))
    return lambda message: b"".join(literal + (_field(message, name) if name else b"") for literal, name in steps)


def _is_field(field: str) -> bool:
    return field in FIELDS or (field.startswith("headers[") and field.endswith("]") and len(field) > len("headers[]"))


def _field(message: Message, name: str) -> bytes:
    match name:
        case "value":
            return message.value or b""
        case "key":
            return message.key or b""
        case "time":
            return iso_ns(message.timestamp).encode()
        case "headers":
            shown = {key: text_of(value) for key, value in message.headers.items()}
            return json_line(shown).encode()
        case _ if name.startswith("headers["):
            return message.headers.get(name[len("headers[") : -1], b"")
        case _:
            return str(getattr(message, name)).encode()
