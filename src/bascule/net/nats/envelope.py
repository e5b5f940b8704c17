"""The envelope around every message that brokers and clients exchange over NATS.

    0             4     5        6     7      8           12
    ┌─────────────┬─────┬────────┬─────┬──────┬───────────┬─────────
    │ B9 0E 43 B4 │ ver │ header │flags│ type │ crc (opt.)│ payload
    └─────────────┴─────┴────────┴─────┴──────┴───────────┴─────────

`header` is where the payload begins: 8, or 12 when bit 0 of `flags` says that a CRC-32C of the payload is there. Big-endian.
Writers leave the checksum out, as every known client does; readers take both.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from bascule.errors import RejectedEnvelope
from bascule.kernels.wire.checksum import crc32c

MAGIC: Final = b"\xb9\x0e\x43\xb4"
VERSION: Final = 0
HEADER_BYTES: Final = 8
HEADER_BYTES_WITH_CRC: Final = 12
_HAS_CRC: Final = 0x01
_REPLICATION_HEADER: Final = struct.Struct(">Qq")

_M = TypeVar("_M", bound=Message)


class MessageType(IntEnum):
    PUBLISH = 0
    ACK = 1
    REPLICATION_REQUEST = 2
    REPLICATION_RESPONSE = 3
    RAFT_JOIN_REQUEST = 4
    RAFT_JOIN_RESPONSE = 5
    LEADER_EPOCH_OFFSET_REQUEST = 6
    LEADER_EPOCH_OFFSET_RESPONSE = 7
    PROPAGATED_REQUEST = 8
    PROPAGATED_RESPONSE = 9
    SERVER_INFO_REQUEST = 10
    SERVER_INFO_RESPONSE = 11
    PARTITION_STATUS_REQUEST = 12
    PARTITION_STATUS_RESPONSE = 13
    PARTITION_NOTIFICATION = 14


def encode(kind: MessageType, payload: bytes, *, checksum: bool = False) -> bytes:
    if not checksum:
        return MAGIC + bytes((VERSION, HEADER_BYTES, 0, kind)) + payload
    head = MAGIC + bytes((VERSION, HEADER_BYTES_WITH_CRC, _HAS_CRC, kind))
    return head + crc32c(payload).to_bytes(4, "big") + payload


def decode(data: bytes | memoryview, kind: MessageType) -> bytes:
    """Return the payload of an envelope of this type. Raises RejectedEnvelope with the reason for anything else."""
    if len(data) < HEADER_BYTES:
        raise RejectedEnvelope(f"{len(data)} bytes are too few for an envelope: it has at least {HEADER_BYTES}")
    if data[:4] != MAGIC:
        raise RejectedEnvelope(f"{bytes(data[:4]).hex()} is not the magic number of an envelope, {MAGIC.hex()}")
    version, header_bytes, flags, found = data[4:8]
    if version != VERSION:
        raise RejectedEnvelope(f"envelope version {version} is not {VERSION}, the only one there is")
    if found != kind:
        raise RejectedEnvelope(f"message type {found} is not {kind.value} ({kind.name})")
    if not HEADER_BYTES <= header_bytes <= len(data):
        raise RejectedEnvelope(f"header length {header_bytes} does not fit an envelope of {len(data)} bytes")
    payload = bytes(data[header_bytes:])
    if flags & _HAS_CRC:
        _check_crc(data, header_bytes, payload)
    return payload


def pack_message(kind: MessageType, message: Message) -> bytes:
    return encode(kind, message.SerializeToString())


def unpack_message(message: type[_M], data: bytes | memoryview, kind: MessageType) -> _M:
    """The protobuf message in an envelope of this type. Raises RejectedEnvelope for anything else."""
    try:
        return message.FromString(decode(data, kind))
    except DecodeError:
        raise RejectedEnvelope(f"the payload is not a valid {message.DESCRIPTOR.name}") from None


def _check_crc(data: bytes | memoryview, header_bytes: int, payload: bytes) -> None:
    if header_bytes != HEADER_BYTES_WITH_CRC:
        raise RejectedEnvelope(f"header length {header_bytes} leaves no room for the checksum: it must be 12")
    told, computed = int.from_bytes(data[8:12], "big"), crc32c(payload)
    if told != computed:
        raise RejectedEnvelope(f"the payload's checksum is {computed:08x}, the envelope says {told:08x}")


@dataclass(frozen=True, slots=True)
class ReplicationResponse:
    """A leader's answer to a follower. It has no data when the follower is caught up."""

    leader_epoch: int
    high_watermark: int
    batches: bytes


def encode_replication_response(response: ReplicationResponse) -> bytes:
    head = _REPLICATION_HEADER.pack(response.leader_epoch, response.high_watermark)
    return encode(MessageType.REPLICATION_RESPONSE, head + response.batches)


def decode_replication_response(data: bytes | memoryview) -> ReplicationResponse:
    payload = decode(data, MessageType.REPLICATION_RESPONSE)
    if len(payload) < _REPLICATION_HEADER.size:
        raise RejectedEnvelope(
            f"a replication response of {len(payload)} bytes is too short: it has at least {_REPLICATION_HEADER.size}"
        )
    leader_epoch, high_watermark = _REPLICATION_HEADER.unpack_from(payload)
    return ReplicationResponse(leader_epoch, high_watermark, payload[_REPLICATION_HEADER.size :])
