"""What a client reads and writes, in plain Python, from the tables of the API: the kernels have to agree with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from tests.parity.twins.twin_messages import (
    ACK_KINDS,
    MAGIC,
    MESSAGE_KINDS,
    Fields,
    NotProtobuf,
    Wire,
    must_be_utf8,
    parse,
    varint,
)

TOMBSTONE: Final = "bascule-tombstone"


class Received(NamedTuple):
    """A message as a subscriber sees it."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    stream: str
    partition: int
    subject: str
    reply: str
    headers: dict[str, bytes]


class Acked(NamedTuple):
    stream: str
    partition_subject: str
    message_subject: str
    offset: int
    ack_inbox: str
    correlation_id: str
    ack_policy: int
    reception_timestamp: int
    commit_timestamp: int
    error: int


class Response(NamedTuple):
    ack: Acked | None
    error: tuple[int, str] | None
    correlation_id: str


def message(data: bytes) -> Received | None:
    try:
        found = parse(data, MESSAGE_KINDS)
    except NotProtobuf:
        return None
    headers = {name.decode(): value for name, value in found.entries}
    return Received(
        offset=found.signed(1, 64),
        key=found.text(2) or None,
        value=value_of(found.text(3), headers),
        timestamp=found.signed(4, 64),
        stream=found.text(5).decode(),
        partition=found.signed(6, 32),
        subject=found.text(7).decode(),
        reply=found.text(8).decode(),
        headers=publishers(headers, found.text(3)),
    )


def value_of(value: bytes, headers: Mapping[str, bytes]) -> bytes | None:
    return None if not value and TOMBSTONE in headers else value


def publishers(headers: Mapping[str, bytes], value: bytes) -> dict[str, bytes]:
    """Without the headers that servers add."""
    added = ("subject", "reply") if value else ("subject", "reply", TOMBSTONE)
    return {name: one for name, one in headers.items() if name not in added}


def acked(data: bytes) -> Acked | None:
    try:
        return acked_of(parse(data, ACK_KINDS))
    except NotProtobuf:
        return None


def acked_of(found: Fields) -> Acked:
    return Acked(
        stream=found.text(1).decode(),
        partition_subject=found.text(2).decode(),
        message_subject=found.text(3).decode(),
        offset=found.signed(4, 64),
        ack_inbox=found.text(5).decode(),
        correlation_id=found.text(6).decode(),
        ack_policy=found.signed(7, 32),
        reception_timestamp=found.signed(8, 64),
        commit_timestamp=found.signed(9, 64),
        error=found.signed(10, 32),
    )


ERROR_KINDS: Final = {1: "number", 2: "text"}


def publish_response(data: bytes) -> Response | None:
    """A message within a message that comes twice is the two merged: here their bytes one behind the other."""
    wire = Wire(data)
    ack: bytes | None = None
    error: bytes | None = None
    correlation_id = b""
    try:
        while wire.data:
            number, kind = wire.tag()
            if number == 0 or kind == 4:
                raise NotProtobuf("no such field")
            if kind == 2 and number in (1, 2, 3):
                span = wire.span()
                if number == 1:
                    parse(span, ACK_KINDS, 99)
                    ack = (ack or b"") + span
                elif number == 2:
                    parse(span, ERROR_KINDS, 99)
                    error = (error or b"") + span
                else:
                    must_be_utf8(span)
                    correlation_id = span
            else:
                wire.skip(number, kind, 100)
    except NotProtobuf:
        return None
    said = None if error is None else parse(error, ERROR_KINDS, 99)
    return Response(
        None if ack is None else acked_of(parse(ack, ACK_KINDS, 99)),
        None if said is None else (said.signed(1, 32), said.text(2).decode()),
        correlation_id.decode(),
    )


def number_field(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value) if value else b""


def bytes_field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value if value else b""


def headers_field(number: int, headers: Mapping[str, bytes]) -> bytes:
    return b"".join(
        varint(number << 3 | 2) + varint(len(entry)) + entry
        for name, value in headers.items()
        for entry in [b"\x0a" + varint(len(name.encode())) + name.encode() + b"\x12" + varint(len(value)) + value]
    )


def publish_request(
    stream: str,
    partition: int,
    ack_policy: int,
    value: bytes,
    key: bytes,
    headers: Mapping[str, bytes],
    correlation_id: bytes,
    expected_offset: int,
) -> dict[int, bytes]:
    """The fields by their number: a writer may put them in any order."""
    return {
        1: bytes_field(1, key),
        2: bytes_field(2, value),
        3: bytes_field(3, stream.encode()),
        4: number_field(4, partition),
        5: headers_field(5, headers),
        7: bytes_field(7, correlation_id),
        8: number_field(8, ack_policy),
        9: number_field(9, expected_offset),
    }


def ack_envelope_of(payload: bytes) -> bytes:
    return MAGIC + bytes((0, 8, 0, 1)) + payload
