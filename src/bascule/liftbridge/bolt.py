"""Reads a BoltDB file, which Liftbridge's Raft library uses. It changes nothing. Integers are little-endian.

    page     id u64 · flags u16 · count u16 · overflow u32, then by flags:
    4 meta   magic u32 ED0CDAED · version u32, 2 · page size u32 · flags u32 · root page u64 · sequence u64 ·
             freelist u64 · pages u64 · transaction u64 · FNV-1a u64 of the fields before it
    1 branch pos u32 · key size u32 · page u64, repeated          `pos` counts from the start of its element
    2 leaf   flags u32 · pos u32 · key size u32 · value size u32, repeated; flag 1: the value is a bucket
    bucket   root page u64 · sequence u64; with root 0 a page follows inline

Pages 0 and 1 are metas; the valid one with the higher transaction counts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

_META: Final = struct.Struct("<IIIIQQQQQQ")
_PAGE: Final = struct.Struct("<QHHI")
_BRANCH: Final = struct.Struct("<IIQ")
_LEAF: Final = struct.Struct("<IIII")
_BUCKET: Final = struct.Struct("<QQ")
MAGIC: Final = 0xED0CDAED
VERSION: Final = 2
BRANCH: Final = 1
LEAF: Final = 2


class BoltFile:
    """Raises ValueError for bytes that are not a database."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        metas = [meta for start in self._meta_starts() if (meta := self._meta(start)) is not None]
        if not metas:
            raise ValueError("it has no valid meta page")
        _, self._page_bytes, self._root = max(metas)

    def _meta_starts(self) -> Iterator[int]:
        yield 0
        # The page size is in the first meta page, or is the one where a second meta page is found.
        yield from (1 << shift for shift in range(9, 17))

    def _meta(self, start: int) -> tuple[int, int, int] | None:
        """Transaction, page size and root page."""
        if start + _PAGE.size + _META.size > len(self._data):
            return None
        at = start + _PAGE.size
        magic, version, page_bytes, _flags, root, _sequence, _free, _pages, transaction, checksum = _META.unpack_from(
            self._data, at
        )
        is_whole = checksum == fnv1a(self._data[at : at + _META.size - 8])
        is_fitting = start in (0, page_bytes) and page_bytes >= 512
        return (
            (transaction, page_bytes, root)
            if (magic, version) == (MAGIC, VERSION) and is_whole and is_fitting
            else None
        )

    def bucket(self, name: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys and values of a bucket at the root in the order of the keys; nothing if there is no such bucket."""
        try:
            for key, value, is_bucket in self._walk(self._root, set()):
                if key == name and is_bucket:
                    root, _ = _BUCKET.unpack_from(value)
                    inside = self._walk(root, set()) if root else self._elements(value, _BUCKET.size, set())
                    yield from ((one, content) for one, content, is_inner in inside if not is_inner)
        except struct.error:
            raise ValueError("a page ends inside of an element") from None

    def _walk(self, page: int, seen: set[int]) -> Iterator[tuple[bytes, bytes, bool]]:
        start = page * self._page_bytes
        if page in seen or start + _PAGE.size > len(self._data):
            raise ValueError(f"page {page} is outside of the file, or has two places in the tree")
        seen.add(page)
        found, _flags, _count, overflow = _PAGE.unpack_from(self._data, start)
        if found != page:
            raise ValueError(f"page {page} says that it is page {found}")
        yield from self._elements(self._data[start : start + (overflow + 1) * self._page_bytes], 0, seen)

    def _elements(self, data: bytes, start: int, seen: set[int]) -> Iterator[tuple[bytes, bytes, bool]]:
        _, flags, count, _ = _PAGE.unpack_from(data, start)
        first = start + _PAGE.size
        if flags == LEAF:
            for at in range(first, first + count * _LEAF.size, _LEAF.size):
                kind, pos, key_bytes, value_bytes = _LEAF.unpack_from(data, at)
                key, value = at + pos, at + pos + key_bytes
                if value + value_bytes > len(data):
                    raise ValueError("an element is longer than its page")
                yield data[key:value], data[value : value + value_bytes], bool(kind & 1)
        elif flags == BRANCH:
            for at in range(first, first + count * _BRANCH.size, _BRANCH.size):
                yield from self._walk(_BRANCH.unpack_from(data, at)[2], seen)
        else:
            raise ValueError(f"a page of the tree has the flags {flags:#x}")


def fnv1a(data: bytes) -> int:
    """FNV-1a of 64 bits."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value
