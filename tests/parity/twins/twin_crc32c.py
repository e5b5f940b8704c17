"""CRC-32C (Castagnoli), one byte at a time: the definition, not an optimisation."""

from __future__ import annotations

from typing import Final

from typing_extensions import Buffer

POLYNOMIAL: Final = 0x82F63B78
"""0x1EDC6F41 with its bits reversed, as the checksum consumes the lowest bit first."""


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE: Final = tuple(_entry(byte) for byte in range(256))


def crc32c(data: Buffer, crc: int = 0) -> int:
    crc ^= 0xFFFFFFFF
    for byte in memoryview(data).cast("B"):
        crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF
