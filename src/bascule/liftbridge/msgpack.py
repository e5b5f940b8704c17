"""Decodes MessagePack, in which Liftbridge's Raft library stores log entries. Texts are bytes: an older form has one type for both."""

from __future__ import annotations

import struct
from typing import Any, Final

DEPTH_MAX: Final = 8
"""Levels of an entry; damaged bytes could nest without end."""

_SIZES: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_COUNTS: Final = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
_NUMBERS: Final = {
    0xCA: ">f",
    0xCB: ">d",
    0xCC: ">B",
    0xCD: ">H",
    0xCE: ">I",
    0xCF: ">Q",
    0xD0: ">b",
    0xD1: ">h",
    0xD2: ">i",
    0xD3: ">q",
}
_EXTENSIONS: Final = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_CONSTANTS: Final = {0xC0: None, 0xC2: False, 0xC3: True}


def unpack(data: bytes) -> Any:
    """Return the first value: dict, list, bytes, int, float, bool or None. Raises ValueError for anything else."""
    try:
        return _Unpacker(data).value(0)
    except (struct.error, IndexError):
        raise ValueError("the bytes end inside a value") from None


class _Unpacker:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def value(self, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise ValueError("values are nested too deeply")
        head = self._number(1)
        if head <= 0x7F or head >= 0xE0:
            return head if head <= 0x7F else head - 256
        if head <= 0x8F:
            return self._map(head & 0x0F, depth)
        if head <= 0x9F:
            return self._list(head & 0x0F, depth)
        if head <= 0xBF:
            return self._take(head & 0x1F)
        return self._other(head, depth)

    def _other(self, head: int, depth: int) -> Any:
        if head in _CONSTANTS:
            return _CONSTANTS[head]
        if head in _SIZES:
            return self._take(self._number(_SIZES[head]))
        if head in _NUMBERS:
            layout = struct.Struct(_NUMBERS[head])
            return layout.unpack(self._take(layout.size))[0]
        if head in _COUNTS:
            count = self._number(_COUNTS[head])
            return self._list(count, depth) if head <= 0xDD else self._map(count, depth)
        if head in _EXTENSIONS:
            return self._take(1 + _EXTENSIONS[head])
        if head in (0xC7, 0xC8, 0xC9):
            return self._take(1 + self._number(1 << (head - 0xC7)))
        raise ValueError(f"{head:#x} begins no value")

    def _map(self, count: int, depth: int) -> dict[Any, Any]:
        found = {}
        for _ in range(count):
            key = self.value(depth + 1)
            if not isinstance(key, (bytes, int)):
                raise ValueError("the key of a map is neither text nor number")
            found[key] = self.value(depth + 1)
        return found

    def _list(self, count: int, depth: int) -> list[Any]:
        return [self.value(depth + 1) for _ in range(count)]

    def _number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "big")

    def _take(self, size: int) -> bytes:
        if self._at + size > len(self._data):
            raise ValueError("the bytes end inside a value")
        self._at += size
        return self._data[self._at - size : self._at]
