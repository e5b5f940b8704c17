"""Encodes and decodes the control messages of the API from one table of field numbers. Kernels do the frequent ones.

    wire.encode("SetCursorRequest", stream="orders", cursorId="billing", offset=41)
    wire.decode("FetchCursorResponse", answer)["offset"]

A message is a dict by field name. Absent fields have their default, as in proto3: zero, empty, or None for a message.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from bascule.client.connection.cluster_table import CLUSTER_TABLE
from bascule.errors import OperatorError

Fields = dict[str, Any]

_NULLABLE_SETTINGS: Final = (
    "6 retentionMaxBytes NullableInt64, 7 retentionMaxMessages NullableInt64, 8 retentionMaxAge NullableInt64, "
    "9 cleanerInterval NullableInt64, 10 segmentMaxBytes NullableInt64, 11 segmentMaxAge NullableInt64, "
    "12 compactMaxGoroutines NullableInt32, 13 compactEnabled NullableBool, 14 autoPauseTime NullableInt64, "
    "15 autoPauseDisableIfSubscribers NullableBool, 16 minIsr NullableInt32, "
    "17 optimisticConcurrencyControl NullableBool, 18 encryption NullableBool, "
    "1000 sync NullableString, 1001 syncInterval NullableInt64, 1002 compression NullableString, "
    "1003 compactMinLag NullableInt64, 1004 compactTombstoneRetention NullableInt64"
)

TABLE: Final = {
    "NullableInt64": "1 value int64",
    "NullableInt32": "1 value int32",
    "NullableBool": "1 value bool",
    "NullableString": "1 value string",
    "CreateStreamRequest": (
        "1 subject string, 2 name string, 3 group string, 4 replicationFactor int32, 5 partitions int32, "
        + _NULLABLE_SETTINGS
    ),
    "DeleteStreamRequest": "1 name string",
    "PauseStreamRequest": "1 name string, 2 partitions *int32, 3 resumeAll bool",
    "SetStreamReadonlyRequest": "1 name string, 2 partitions *int32, 3 readonly bool",
    "Consumer": "1 groupId string, 2 groupEpoch uint64, 3 consumerId string",
    "SubscribeRequest": (
        "1 stream string, 2 partition int32, 3 startPosition int32, 4 startOffset int64, 5 startTimestamp int64, "
        "6 readISRReplica bool, 7 resume bool, 8 stopPosition int32, 9 stopOffset int64, 10 stopTimestamp int64, "
        "11 consumer Consumer, 12 reverse bool, 1000 streamId uint64"
    ),
    "FetchMetadataRequest": "1 streams *string, 2 groups *string, 1000 includeSettings bool, 1001 includeMembers bool",
    "FetchMetadataResponse": (
        "1 brokers *Broker, 2 streamMetadata *StreamMetadata, 3 groupMetadata *ConsumerGroupMetadata"
    ),
    "FetchPartitionMetadataRequest": "1 stream string, 2 partition int32",
    "FetchPartitionMetadataResponse": "1 metadata PartitionMetadata",
    "PublishRequest": (
        "1 key bytes, 2 value bytes, 3 stream string, 4 partition int32, 5 headers *HeadersEntry, 6 ackInbox string, "
        "7 correlationId string, 8 ackPolicy int32, 9 expectedOffset int64"
    ),
    "PublishResponse": "1 ack Ack, 2 asyncError PublishAsyncError, 3 correlationId string",
    "PublishAsyncError": "1 code int32, 2 message string",
    "PublishToSubjectRequest": (
        "1 key bytes, 2 value bytes, 3 subject string, 4 headers *HeadersEntry, 5 ackInbox string, "
        "6 correlationId string, 7 ackPolicy int32"
    ),
    "PublishToSubjectResponse": "1 ack Ack",
    "HeadersEntry": "1 key string, 2 value bytes",
    "SetCursorRequest": (
        "1 stream string, 2 partition int32, 3 cursorId string, 4 offset int64, 1000 expected NullableInt64, "
        "1001 streamId uint64, 1002 delete bool"
    ),
    "FetchCursorRequest": "1 stream string, 2 partition int32, 3 cursorId string",
    "FetchCursorResponse": "1 offset int64, 1000 streamId uint64",
    "JoinConsumerGroupRequest": "1 groupId string, 2 consumerId string, 3 streams *string",
    "JoinConsumerGroupResponse": (
        "1 coordinator string, 2 epoch uint64, 3 consumerTimeout int64, 4 coordinatorTimeout int64"
    ),
    "LeaveConsumerGroupRequest": "1 groupId string, 2 consumerId string",
    "FetchConsumerGroupAssignmentsRequest": "1 groupId string, 2 consumerId string, 3 epoch uint64",
    "PartitionAssignment": "1 stream string, 2 partitions *int32",
    "FetchConsumerGroupAssignmentsResponse": "1 epoch uint64, 2 assignments *PartitionAssignment",
    "ReportConsumerGroupCoordinatorRequest": "1 groupId string, 2 consumerId string, 3 coordinator string, 4 epoch uint64",
    "Broker": "1 id string, 2 host string, 3 port int32, 4 partitionCount int32, 5 leaderCount int32, 1000 flightPort int32, "
    "1001 answersPings bool",
    "StreamMetadata": (
        "1 name string, 2 subject string, 3 error int32, 4 partitions *PartitionsEntry, 5 creationTimestamp int64, "
        "1000 settings StreamSettings, 1001 id uint64"
    ),
    "StreamSettings": (
        "1 retentionMaxBytes int64, 2 retentionMaxMessages int64, 3 retentionMaxAge int64, 4 cleanerInterval int64, "
        "5 segmentMaxBytes int64, 6 segmentMaxAge int64, 7 compactEnabled bool, 8 compactMinLag int64, "
        "9 compactTombstoneRetention int64, 10 autoPauseTime int64, 11 autoPauseDisableIfSubscribers bool, 12 minIsr int32, "
        "13 optimisticConcurrencyControl bool, 14 encryption bool, 15 compression string, 16 sync string, "
        "17 syncInterval int64"
    ),
    "PartitionsEntry": "1 key int32, 2 value PartitionMetadata",
    "ConsumerGroupMetadata": (
        "1 groupId string, 2 error int32, 3 coordinator string, 4 epoch uint64, 1000 members *GroupMemberMetadata"
    ),
    "GroupMemberMetadata": "1 consumerId string, 2 streams *string, 3 assignments *PartitionAssignment",
    "PartitionEventTimestamps": "1 firstTimestamp int64, 2 latestTimestamp int64",
    "PartitionMetadata": (
        "1 id int32, 2 leader string, 3 replicas *string, 4 isr *string, 5 highWatermark int64, 6 newestOffset int64, "
        "7 paused bool, 8 readonly bool, 9 messagesReceivedTimestamps PartitionEventTimestamps, "
        "10 pauseTimestamps PartitionEventTimestamps, 11 readonlyTimestamps PartitionEventTimestamps"
    ),
    "Message": (
        "1 offset int64, 2 key bytes, 3 value bytes, 4 timestamp int64, 5 stream string, 6 partition int32, "
        "7 subject string, 8 replySubject string, 9 headers *HeadersEntry, 10 ackInbox string, "
        "11 correlationId string, 12 ackPolicy int32"
    ),
    "Ack": (
        "1 stream string, 2 partitionSubject string, 3 msgSubject string, 4 offset int64, 5 ackInbox string, "
        "6 correlationId string, 7 ackPolicy int32, 8 receptionTimestamp int64, 9 commitTimestamp int64, 10 ackError int32, "
        "1000 duplicate bool"
    ),
}
"""`*` marks repeated fields. Enums are int32; a map is its repeated entries."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Field(NamedTuple):
    number: int
    name: str
    kind: str
    repeated: bool

    @property
    def is_number(self) -> bool:
        return self.kind in _FROM_VARINT


def _signed(bits: int) -> Callable[[int], int]:
    sign, mask = 1 << (bits - 1), (1 << bits) - 1
    return lambda number: ((number & mask) ^ sign) - sign


_FROM_VARINT: Final[dict[str, Callable[[int], Any]]] = {
    "int32": _signed(32),
    "int64": _signed(64),
    "uint64": int,
    "bool": bool,
}
_DEFAULTS: Final[dict[str, Any]] = {
    "int32": 0,
    "int64": 0,
    "uint64": 0,
    "bool": False,
    "string": "",
    "bytes": b"",
    "double": 0.0,
}


def _parse(declared: str) -> tuple[Field, ...]:
    fields = []
    for text in filter(None, declared.split(", ")):
        number, name, kind = text.split()
        fields.append(Field(int(number), name, kind.lstrip("*"), kind.startswith("*")))
    return tuple(fields)


_FIELDS: Final = {message: _parse(declared) for message, declared in {**TABLE, **CLUSTER_TABLE}.items()}
_BY_NUMBER: Final = {message: {field.number: field for field in fields} for message, fields in _FIELDS.items()}


# ── encoding ─────────────────────────────────────────────────────────────────────────────────────


def encode(message: str, /, **values: Any) -> bytes:
    """The bytes of a message. The caller has checked the values."""
    unknown = values.keys() - {field.name for field in _FIELDS[message]}
    assert not unknown, f"{message} has no {unknown}"
    out = bytearray()
    for field in _FIELDS[message]:
        value = values.get(field.name)
        if field.repeated:
            _put_repeated(out, field, value or ())
        elif value is not None and (field.kind in _FIELDS or value != _DEFAULTS[field.kind]):
            _put(out, field, value)
    return bytes(out)


def headers_field(headers: dict[str, bytes] | None) -> list[Fields]:
    """A map as its entries."""
    return [{"key": name, "value": value} for name, value in (headers or {}).items()]


def _put_repeated(out: bytearray, field: Field, values: Any) -> None:
    if not values:
        return
    if field.is_number:
        packed = b"".join(varint(int(value)) for value in values)
        out += _delimited(field.number, packed)
        return
    for value in values:
        _put(out, field, value)


def _put(out: bytearray, field: Field, value: Any) -> None:
    if field.is_number:
        out += varint(field.number << 3 | _VARINT) + varint(int(value))
    elif field.kind == "string":
        out += _delimited(field.number, value.encode())
    elif field.kind == "bytes":
        out += _delimited(field.number, bytes(value))
    else:
        out += _delimited(field.number, encode(field.kind, **value))


def _delimited(number: int, data: bytes) -> bytes:
    return varint(number << 3 | _BYTES) + varint(len(data)) + data


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


# ── decoding ─────────────────────────────────────────────────────────────────────────────────────


def decode(message: str, data: bytes) -> Fields:
    """The fields of a message. Raises OperatorError for bytes that are not such a message."""
    try:
        return _decode(message, data)
    except (ValueError, IndexError):
        raise OperatorError(
            f"{len(data)} bytes were received that are no {message}",
            hint="check that a broker, and no proxy that changes its answers, is at this address",
        ) from None


def headers_of(entries: list[Fields]) -> dict[str, bytes]:
    """Entries as a map; the last one of a name counts."""
    return {entry["key"]: entry["value"] for entry in entries}


def _decode(message: str, data: bytes) -> Fields:
    found: Fields = {field.name: _default(field) for field in _FIELDS[message]}
    by_number = _BY_NUMBER[message]
    for number, wire_type, value in _read(data):
        field = by_number.get(number)
        if field is None:
            continue
        if field.kind == "double" and wire_type == _FIXED64:
            _take(found, field, struct.unpack("<d", value)[0])
            continue
        if field.is_number and wire_type == _VARINT:
            numbers = [value]
        elif field.is_number and field.repeated and wire_type == _BYTES:
            numbers = list(_varints(value))
        elif field.is_number or field.kind == "double" or wire_type != _BYTES:
            continue  # another type than ours: an unknown field, to protobuf
        else:
            _take(found, field, _from_bytes(field, value))
            continue
        for one in numbers:
            _take(found, field, _FROM_VARINT[field.kind](one))
    return found


def _default(field: Field) -> Any:
    return [] if field.repeated else _DEFAULTS.get(field.kind)


def _take(found: Fields, field: Field, value: Any) -> None:
    if field.repeated:
        found[field.name].append(value)
    else:
        found[field.name] = value


def _from_bytes(field: Field, value: bytes) -> Any:
    if field.kind == "string":
        return value.decode()
    if field.kind == "bytes":
        return value
    return _decode(field.kind, value)


def _read(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """Field number, wire type and value of each field."""
    position = 0
    while position < len(data):
        tag, position = _varint_at(data, position)
        number, wire_type = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise ValueError("field number")
        if wire_type == _VARINT:
            value, position = _varint_at(data, position)
            yield number, wire_type, value
            continue
        if wire_type == _BYTES:
            size, position = _varint_at(data, position)
        elif wire_type in (_FIXED64, _FIXED32):
            size = 8 if wire_type == _FIXED64 else 4
        else:
            raise ValueError("wire type")
        if size > len(data) - position:
            raise ValueError("cut off")
        yield number, wire_type, data[position : position + size]
        position += size


def _varints(data: bytes) -> Iterator[int]:
    position = 0
    while position < len(data):
        number, position = _varint_at(data, position)
        yield number


def _varint_at(data: bytes, position: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & ((1 << 64) - 1), position
    raise ValueError("varint")
