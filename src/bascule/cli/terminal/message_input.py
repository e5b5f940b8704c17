"""Parses messages to publish from arguments, a pipe or a file: one per line, one JSON object per line, or the whole input as one.

    {"value": "lamp", "key": "customer-7", "headers": {"trace": "4711"}, "partition": 0}

`value` may be any JSON: a string is sent as its text, null as no value (a tombstone), everything else as JSON. `value_base64`,
`key_base64` and `headers_base64` carry bytes. Fields that `bascule subscribe --format json` adds (`offset`, `time`, …) are ignored: a
stream can be copied through a pipe.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bascule.errors import InvalidOption

PIECE_BYTES: Final = 256 << 10
INPUTS: Final = ("lines", "json", "whole")
_READ: Final = ("value", "value_base64", "key", "key_base64", "headers", "headers_base64", "partition")
_IGNORED: Final = ("stream", "offset", "timestamp", "time", "subject", "reply")
RIGHT: Final = 'write one JSON object per line, such as {"key": "a", "value": "lamp", "headers": {"trace": "1"}}'


@dataclass(frozen=True, slots=True)
class InputMessage:
    """A message to publish."""

    value: bytes | None
    key: bytes | None = None
    headers: dict[str, bytes] = field(default_factory=dict)
    partition: int | None = None


def from_arguments(texts: Iterable[str]) -> Iterator[InputMessage]:
    # Python decodes an argument that is not UTF-8 with surrogates; this restores its bytes.
    return (InputMessage(text.encode("utf-8", "surrogateescape")) for text in texts)


@contextmanager
def opened(path: Path | None) -> Iterator[int]:
    """The file descriptor of `path`, or of stdin for None and `-`."""
    if path is None or str(path) == "-":
        yield sys.stdin.fileno()
        return
    with path.open("rb", buffering=0) as file:
        yield file.fileno()


def read(descriptor: int, form: str, name: str) -> Iterator[list[InputMessage]]:
    """Yield messages as their input arrives: from a slow pipe line by line, from a file in large pieces."""
    if form == "whole":
        yield [InputMessage(b"".join(_pieces(descriptor)))]
        return
    number = 0
    for lines in _lines(descriptor):
        found = []
        for line in lines:
            number += 1
            line = line.removesuffix(b"\r")
            if form == "lines":
                found.append(InputMessage(line))
            elif line.strip():
                found.append(parse(line, f"line {number} of {name}"))
        yield found


def _pieces(descriptor: int) -> Iterator[bytes]:
    # Not through sys.stdin: a thread that waits for input would hold its lock and keep the interpreter from exiting.
    while piece := os.read(descriptor, PIECE_BYTES):
        yield piece


def _lines(descriptor: int) -> Iterator[list[bytes]]:
    rest: list[bytes] = []
    for piece in _pieces(descriptor):
        head, separator, tail = piece.rpartition(b"\n")
        if not separator:
            rest.append(piece)
            continue
        yield (b"".join(rest) + head).split(b"\n")
        rest = [tail] if tail else []
    if rest:
        yield [b"".join(rest)]


def parse(line: bytes, place: str) -> InputMessage:
    try:
        document = json.loads(line)
    except (ValueError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidOption(f"{place} is not valid JSON: {error}", hint=RIGHT) from None
    if not isinstance(document, dict):
        raise InvalidOption(f"{place} is not a JSON object", hint=RIGHT)
    strange = sorted(document.keys() - {*_READ, *_IGNORED})
    if strange:
        raise InvalidOption(f"{place} has the unknown field `{strange[0]}`", hint=RIGHT)
    headers = {str(name): _bytes(value, place) for name, value in _map(document, "headers", place).items()}
    headers |= {
        name: _unbase64(value, "headers_base64", place)
        for name, value in _map(document, "headers_base64", place).items()
    }
    partition = document.get("partition")
    if partition is not None and (isinstance(partition, bool) or not isinstance(partition, int) or partition < 0):
        raise InvalidOption(f"`partition` of {place} is `{partition}`", hint="it must be an integer, 0 or greater")
    return InputMessage(_content(document, "value", place), _content(document, "key", place), headers, partition)


def _content(document: dict[str, Any], name: str, place: str) -> bytes | None:
    if document.get(f"{name}_base64") is not None:
        return _unbase64(document[f"{name}_base64"], f"{name}_base64", place)
    value = document.get(name)
    return None if value is None else _bytes(value, place)


def _bytes(value: object, place: str) -> bytes:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidOption(
            f"{place} contains an unpaired surrogate", hint="give bytes in base64, as `value_base64`"
        ) from None


def _map(document: dict[str, Any], name: str, place: str) -> dict[str, Any]:
    found = document.get(name) or {}
    if not isinstance(found, dict):
        raise InvalidOption(f"`{name}` of {place} is not a JSON object", hint=RIGHT)
    return found


def _unbase64(value: object, name: str, place: str) -> bytes:
    try:
        if not isinstance(value, str):
            raise ValueError("not a string")
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidOption(f"`{name}` of {place} is not valid base64", hint=RIGHT) from None
