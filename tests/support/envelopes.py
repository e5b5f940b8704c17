"""Envelopes as publishers write them and as they get them back, byte by byte from the description of the format."""

from __future__ import annotations

from typing import Any, Final

from tests.parity.twins.twin_crc32c import crc32c
from tests.support.api_client import pb, request_of

MAGIC: Final = bytes.fromhex("b90e43b4")
PUBLISH: Final = 0
ACK: Final = 1


def wrap(
    payload: bytes, *, kind: int = PUBLISH, checksum: bool = False, version: int = 0, crc: int | None = None
) -> bytes:
    """An envelope. `crc` is written in place of the right checksum."""
    if not checksum and crc is None:
        return MAGIC + bytes([version, 8, 0, kind]) + payload
    written = crc32c(payload) if crc is None else crc
    return MAGIC + bytes([version, 12, 1, kind]) + written.to_bytes(4, "big") + payload


def message(value: bytes = b"", *, checksum: bool = False, **fields: Any) -> bytes:
    """An envelope with a message to publish."""
    payload: bytes = request_of(pb.Message, {"value": value, **fields}).SerializeToString()
    return wrap(payload, checksum=checksum)


def unwrap(data: bytes, kind: int) -> bytes:
    assert data[:4] == MAGIC, data[:16]
    assert data[4:8] == bytes([0, 8, 0, kind]), data[:16]
    return data[8:]


def ack_in(data: bytes) -> Any:
    return pb.Ack.FromString(unwrap(data, ACK))
