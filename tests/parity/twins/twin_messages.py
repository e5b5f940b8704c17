"""The hot messages in plain Python, written from the wire format and the tables of the API: the kernels have to agree with it.

What a protobuf parser accepts is settled by google's own (`bascule.proto.api_pb2`); this twin has to agree with that as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from bascule.kernels.envelope.ack_object import Ack
from tests.parity.twins.twin_crc32c import crc32c
from tests.support.kernels.message_objects import Publish

MAGIC: Final = bytes.fromhex("b90e43b4")
GROUPS_MAX: Final = 100
HEADER_ENTRIES_MAX: Final = 4096
PUBLISH_TYPE: Final = 0
ACK_TYPE: Final = 1


class NotProtobuf(Exception):
    pass


# ── the wire format ──────────────────────────────────────────────────────────────────────────────


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@dataclass
class Wire:
    """Bytes that are taken from the front."""

    data: bytes

    def take(self, count: int) -> bytes:
        if count > len(self.data):
            raise NotProtobuf("the bytes end early")
        taken, self.data = self.data[:count], self.data[count:]
        return taken

    def varint(self, bytes_max: int) -> int:
        value = 0
        for index in range(bytes_max):
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return value
        raise NotProtobuf("a number does not end")

    def number(self) -> int:
        return self.varint(10) % 2**64

    def tag(self) -> tuple[int, int]:
        tag = self.varint(5)
        if tag >= 2**32:
            raise NotProtobuf("a tag has 32 bits")
        return tag >> 3, tag & 7

    def span(self) -> bytes:
        return self.take(self.varint(5))

    def skip(self, number: int, kind: int, depth: int) -> None:
        match kind:
            case 0:
                self.number()
            case 1:
                self.take(8)
            case 2:
                self.span()
            case 3:
                if depth == 0:
                    raise NotProtobuf("groups nest too deeply")
                self.skip_group(number, depth - 1)
            case 5:
                self.take(4)
            case _:
                raise NotProtobuf(f"no field has wire type {kind}")

    def skip_group(self, opened: int, depth: int) -> None:
        while True:
            number, kind = self.tag()
            if kind == 4:
                if number != opened:
                    raise NotProtobuf("another group ends")
                return
            self.skip(number, kind, depth)


@dataclass
class Fields:
    """The last value of every field; map entries one by one, entries with unknown fields left out."""

    values: dict[int, int | bytes] = field(default_factory=dict)
    entries: list[tuple[bytes, bytes]] = field(default_factory=list)
    has_unknown: bool = False

    def text(self, number: int) -> bytes:
        found = self.values.get(number, b"")
        assert isinstance(found, bytes)
        return found

    def signed(self, number: int, bits: int) -> int:
        found = self.values.get(number, 0)
        assert isinstance(found, int)
        size: int = 1 << bits
        low = found % size
        return low - size if low >= size // 2 else low


def parse(data: bytes, kinds: dict[int, str], depth: int = GROUPS_MAX) -> Fields:
    wire, found = Wire(data), Fields()
    while wire.data:
        number, kind = wire.tag()
        if number == 0 or kind == 4:
            raise NotProtobuf("no such field")
        known = kinds.get(number)
        if known == "number" and kind == 0:
            found.values[number] = wire.number()
        elif known in ("text", "bytes") and kind == 2:
            span = wire.span()
            if known == "text":
                must_be_utf8(span)
            found.values[number] = span
        elif known == "map" and kind == 2:
            entry = parse(wire.span(), {1: "text", 2: "bytes"}, depth - 1)
            if not entry.has_unknown:
                found.entries.append((entry.text(1), entry.text(2)))
        else:
            found.has_unknown = True
            wire.skip(number, kind, depth)
    return found


def must_be_utf8(text: bytes) -> None:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        raise NotProtobuf("a string is no UTF-8") from None


# ── the messages ─────────────────────────────────────────────────────────────────────────────────

REQUEST_KINDS: Final = {
    1: "bytes",
    2: "bytes",
    3: "text",
    4: "number",
    5: "map",
    6: "text",
    7: "text",
    8: "number",
    9: "number",
}
TO_SUBJECT_KINDS: Final = {1: "bytes", 2: "bytes", 3: "text", 4: "map", 5: "text", 6: "text", 7: "number"}
MESSAGE_KINDS: Final = {
    1: "number",
    2: "bytes",
    3: "bytes",
    4: "number",
    5: "text",
    6: "number",
    7: "text",
    8: "text",
    9: "map",
    10: "text",
    11: "text",
    12: "number",
}
ACK_KINDS: Final = {
    **dict.fromkeys((1, 2, 3, 5, 6), "text"),
    **dict.fromkeys((4, 7, 8, 9, 10, 1000), "number"),
}


def last_of_each(entries: list[tuple[bytes, bytes]]) -> tuple[tuple[bytes, bytes], ...] | None:
    last = {name: index for index, (name, _) in enumerate(entries)}
    return tuple(entry for index, entry in enumerate(entries) if last[entry[0]] == index)


def publish_request(data: bytes) -> Publish | None:
    try:
        found = parse(data, REQUEST_KINDS)
    except NotProtobuf:
        return None
    return Publish(
        key=found.text(1),
        value=found.text(2),
        stream=found.text(3),
        partition=found.signed(4, 32),
        subject=b"",
        headers=last_of_each(found.entries),
        ack_inbox=found.text(6),
        correlation_id=found.text(7),
        ack_policy=found.signed(8, 32),
        expected_offset=found.signed(9, 64),
    )


def publish_to_subject(data: bytes) -> Publish | None:
    try:
        found = parse(data, TO_SUBJECT_KINDS)
    except NotProtobuf:
        return None
    return Publish(
        key=found.text(1),
        value=found.text(2),
        stream=b"",
        partition=0,
        subject=found.text(3),
        headers=last_of_each(found.entries),
        ack_inbox=found.text(5),
        correlation_id=found.text(6),
        ack_policy=found.signed(7, 32),
        expected_offset=0,
    )


def envelope_payload(data: bytes, kind: int) -> bytes | None:
    if len(data) < 8 or data[:4] != MAGIC or data[4] != 0 or data[7] != kind:
        return None
    size, flags = data[5], data[6]
    if not 8 <= size <= len(data):
        return None
    if flags & 1 and (size != 12 or int.from_bytes(data[8:12], "big") != crc32c(data[12:])):
        return None
    return data[size:]


def publish_envelope(data: bytes) -> Publish | None:
    payload = envelope_payload(data, PUBLISH_TYPE)
    if payload is None:
        return None
    try:
        found = parse(payload, MESSAGE_KINDS)
    except NotProtobuf:
        return None
    return Publish(
        key=found.text(2),
        value=found.text(3),
        stream=found.text(5),
        partition=found.signed(6, 32),
        subject=b"",
        headers=last_of_each(found.entries),
        ack_inbox=found.text(10),
        correlation_id=found.text(11),
        ack_policy=found.signed(12, 32),
        expected_offset=found.signed(1, 64),
    )


def ack_envelope(data: bytes) -> Ack | None:
    payload = envelope_payload(data, ACK_TYPE)
    if payload is None:
        return None
    try:
        found = parse(payload, ACK_KINDS)
    except NotProtobuf:
        return None
    return Ack(
        stream=found.text(1),
        partition_subject=found.text(2),
        msg_subject=found.text(3),
        offset=found.signed(4, 64),
        ack_inbox=found.text(5),
        correlation_id=found.text(6),
        ack_policy=found.signed(7, 32),
        reception_timestamp=found.signed(8, 64),
        commit_timestamp=found.signed(9, 64),
        error=found.signed(10, 32),
        duplicate=found.signed(1000, 64) != 0,
    )


def record_headers(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    return b"".join(varint(len(text)) + text for pair in headers for text in pair)


def readable(text: bytes) -> str:
    """A text as it goes onto the wire: what is no UTF-8 becomes U+FFFD."""
    return text.decode("utf-8", "replace")
