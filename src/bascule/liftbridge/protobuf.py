"""Fields of a protobuf message by number, without its schema: for the few messages that Liftbridge stores."""

from __future__ import annotations


class Fields:
    """Varints as int, length-delimited fields as bytes. Raises ValueError for bytes that are not a message."""

    def __init__(self, data: bytes) -> None:
        self._varints: dict[int, list[int]] = {}
        self._blobs: dict[int, list[bytes]] = {}
        position = 0
        while position < len(data):
            tag, position = _varint(data, position)
            number, kind = tag >> 3, tag & 7
            if kind == 0:
                value, position = _varint(data, position)
                self._varints.setdefault(number, []).append(value)
                continue
            if kind not in (1, 2, 5):
                raise ValueError(f"byte {position} has the unknown wire type {kind}")
            size = {1: 8, 5: 4}.get(kind, 0)
            if kind == 2:
                size, position = _varint(data, position)
            if size > len(data) - position:
                raise ValueError(f"field {number} has {size} bytes, but only {len(data) - position} follow")
            self._blobs.setdefault(number, []).append(data[position : position + size])
            position += size

    def has(self, number: int) -> bool:
        return number in self._varints or number in self._blobs

    def number(self, number: int) -> int:
        """A signed integer; 0 if it is absent."""
        value = self._varints.get(number, [0])[-1]
        return value - (1 << 64) if value >= 1 << 63 else value

    def blob(self, number: int) -> bytes:
        return self._blobs.get(number, [b""])[-1]

    def text(self, number: int) -> str:
        return self.blob(number).decode()

    def texts(self, number: int) -> list[str]:
        return [one.decode() for one in self._blobs.get(number, ())]

    def message(self, number: int) -> Fields:
        return Fields(self.blob(number))

    def messages(self, number: int) -> list[Fields]:
        return [Fields(one) for one in self._blobs.get(number, ())]

    def numbers(self, number: int) -> list[int]:
        """Repeated integers, packed or not."""
        found = list(self._varints.get(number, ()))
        for packed in self._blobs.get(number, ()):
            position = 0
            while position < len(packed):
                value, position = _varint(packed, position)
                found.append(value)
        return found


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise ValueError(f"the number at byte {position} does not end")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position
