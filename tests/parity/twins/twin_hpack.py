"""Header compression in plain Python, from the text of RFC 7541. Code and static table are those of the `hpack` package."""

from __future__ import annotations

from typing import Final

from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.table import HeaderTable

Field = tuple[bytes, bytes]

STATIC: Final[list[Field]] = [(name, value) for name, value in HeaderTable.STATIC_TABLE]
CODES: Final = {
    format(code, f"0{length}b"): symbol
    for symbol, (code, length) in enumerate(zip(REQUEST_CODES, REQUEST_CODES_LENGTH, strict=True))
}
END_OF_STRING: Final = 256
INTEGER_MAX: Final = 1 << 28


class Malformed(Exception):
    """The bytes are no header block."""


def huffman(data: bytes) -> bytes:
    out, bits = bytearray(), ""
    for bit in "".join(format(byte, "08b") for byte in data):
        bits += bit
        if bits in CODES:
            if CODES[bits] == END_OF_STRING:
                raise Malformed("§5.2: EOS inside of a string")
            out.append(CODES[bits])
            bits = ""
    if len(bits) > 7 or "0" in bits:
        raise Malformed("§5.2: padding is not the beginning of EOS")
    return bytes(out)


class Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def more(self) -> bool:
        return self.at < len(self.data)

    def byte(self) -> int:
        if not self.more():
            raise Malformed("the block ends")
        self.at += 1
        return self.data[self.at - 1]

    def integer(self, bits: int) -> int:
        """§5.1, with at most five bytes after the prefix and no number beyond INTEGER_MAX."""
        most = (1 << bits) - 1
        value = self.byte() & most
        if value < most:
            return value
        for position in range(5):
            byte = self.byte()
            value += (byte & 127) << 7 * position
            if value > INTEGER_MAX:
                raise Malformed("too large")
            if byte < 128:
                return value
        raise Malformed("too long")

    def string(self) -> bytes:
        coded = self.more() and self.data[self.at] >= 128
        size = self.integer(7)
        text = self.data[self.at : self.at + size]
        if len(text) < size:
            raise Malformed("the block ends within a string")
        self.at += size
        return huffman(text) if coded else text


def size_of(field: Field) -> int:
    return len(field[0]) + len(field[1]) + 32


class Decoder:
    def __init__(self, table_bytes_max: int = 4096, list_bytes_max: int = 65536) -> None:
        self.table: list[Field] = []
        self.limit = self.table_bytes_max = table_bytes_max
        self.list_bytes_max = list_bytes_max

    def decode(self, block: bytes) -> tuple[list[Field], bool]:
        reader, fields = Reader(block), list[Field]()
        while reader.more():
            first = reader.data[reader.at]
            if 0x20 <= first < 0x40:
                size = reader.integer(5)
                if fields or size > self.limit:
                    raise Malformed("§4.2: a size update")
                self.table_bytes_max = size
                self.shrink()
                continue
            if first >= 0x80:
                field = self.entry(reader.integer(7))
            else:
                index = reader.integer(6 if first >= 0x40 else 4)
                name = self.entry(index)[0] if index else reader.string()
                field = (name, reader.string())
                if first >= 0x40:
                    self.table.insert(0, field)
                    self.shrink()
            fields.append(field)
        kept, total = list[Field](), 0
        for field in fields:
            total += size_of(field)
            if total > self.list_bytes_max:
                return kept, False
            kept.append(field)
        return kept, True

    def entry(self, index: int) -> Field:
        if not 1 <= index <= len(STATIC) + len(self.table):
            raise Malformed("§2.3.3: an index outside of the tables")
        return (STATIC + self.table)[index - 1]

    def shrink(self) -> None:
        while sum(map(size_of, self.table)) > self.table_bytes_max:
            self.table.pop()
