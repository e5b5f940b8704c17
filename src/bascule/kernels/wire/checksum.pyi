"""CRC-32C (Castagnoli), the checksum of every file and of the NATS envelope."""

from typing_extensions import Buffer

def crc32c(data: Buffer, crc: int = 0) -> int:
    """CRC-32C of `data`; `crc` is the checksum of the bytes before it."""
