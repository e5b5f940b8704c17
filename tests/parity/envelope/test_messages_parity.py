"""What publishers send: the kernel, google's protobuf and the twin accept the same bytes and read the same things from them."""

from __future__ import annotations

import random
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given

from bascule.proto import api_pb2
from tests.parity.inputs.generate_messages import any_envelope, any_message
from tests.parity.inputs.strategies import RANDOMS, examples
from tests.parity.twins import twin_messages as twin
from tests.support.kernels import message_objects as kernel


def google(kind: Any, data: bytes) -> Any | None:
    try:
        return kind.FromString(data)
    except DecodeError:
        return None


def publish_of(message: Any) -> tuple[Any, ...]:
    """A google object as the kernel's tuple, headers in any order."""
    get = {descriptor.name for descriptor in message.DESCRIPTOR.fields}
    offset = message.expectedOffset if "expectedOffset" in get else message.offset if "offset" in get else 0
    return (
        message.key,
        message.value,
        message.stream.encode() if "stream" in get else b"",
        message.partition if "partition" in get else 0,
        message.subject.encode() if "stream" not in get else b"",
        {name.encode(): value for name, value in message.headers.items()},
        message.ackInbox.encode(),
        message.correlationId.encode(),
        message.ackPolicy,
        offset,
    )


def as_map(publish: kernel.Publish) -> tuple[Any, ...]:
    assert publish.headers is not None
    return (*publish[:5], dict(publish.headers), *publish[6:])


def agree(ours: kernel.Publish | None, theirs: kernel.Publish | None, message: Any | None) -> None:
    assert ours == theirs
    assert (ours is None) == (message is None)
    if ours is not None:
        assert as_map(ours) == publish_of(message)


@examples(1500)
@given(RANDOMS)
def test_publish_requests(rng: random.Random) -> None:
    data = any_message(rng, 5)
    message = google(api_pb2.PublishRequest, data)
    agree(kernel.parse_publish_request(data), twin.publish_request(data), message)


@examples(700)
@given(RANDOMS)
def test_publish_to_subject_requests(rng: random.Random) -> None:
    data = any_message(rng, 4)
    message = google(api_pb2.PublishToSubjectRequest, data)
    agree(kernel.parse_publish_to_subject(data), twin.publish_to_subject(data), message)


@examples(1000)
@given(RANDOMS)
def test_publish_envelopes(rng: random.Random) -> None:
    data = any_envelope(rng)
    payload = twin.envelope_payload(data, twin.PUBLISH_TYPE)
    message = None if payload is None else google(api_pb2.Message, payload)
    ours = kernel.parse_publish_envelope(data)
    agree(ours, twin.publish_envelope(data), message)
    if ours is not None:
        assert ours.headers is not None
        assert kernel.record_headers(data) == (len(ours.headers), twin.record_headers(ours.headers))


@examples(500)
@given(RANDOMS)
def test_ack_envelopes(rng: random.Random) -> None:
    data = any_envelope(rng, twin.ACK_TYPE)
    ours = kernel.parse_ack_envelope(data)
    assert ours == twin.ack_envelope(data)
    payload = twin.envelope_payload(data, twin.ACK_TYPE)
    message = None if payload is None else google(api_pb2.Ack, payload)
    assert (ours is None) == (message is None)
    if ours is not None and message is not None:
        assert ours == (
            message.stream.encode(),
            message.partitionSubject.encode(),
            message.msgSubject.encode(),
            message.offset,
            message.ackInbox.encode(),
            message.correlationId.encode(),
            message.ackPolicy,
            message.receptionTimestamp,
            message.commitTimestamp,
            message.ackError,
            message.duplicate,
        )


# ── one by one: what is easy to get wrong ────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "data", "is_good"),
    [
        ("nothing", "", True),
        ("a known field with another wire type", "0805", True),
        ("a number as bytes", "220105", True),
        ("field number 0", "0005", False),
        ("wire type 6", "0e05", False),
        ("wire type 7", "0f05", False),
        ("an unknown group", "a306a406", True),
        ("a group that another number ends", "a306ac06", False),
        ("a group that does not end", "a3060a0141", False),
        ("the end of no group", "a406", False),
        ("a known field as a group", "0b0c", True),
        ("field number 0 in a group", "a3060001a406", True),
        ("100 groups", "a306" * 100 + "a406" * 100, True),
        ("101 groups", "a306" * 101 + "a406" * 101, False),
        ("a million groups", "a306" * 1_000_000, False),
        ("ten bytes of a number with too many bits", "20" + "ff" * 9 + "7f", True),
        ("eleven bytes of a number", "20" + "80" * 10 + "01", False),
        ("a tag in five bytes", "a08080800007", True),
        ("a tag in six bytes", "a0808080800007", False),
        ("a tag of 33 bits", "a08080801007", False),
        ("a length in five bytes", "0a818080800007", True),
        ("a length in six bytes", "0a81808080800007", False),
        ("a length beyond the end", "0a0501", False),
        ("a cut off fixed64", "a106010203", False),
        ("a string that is no UTF-8", "1a01ff", False),
        ("a surrogate", "1a03eda080", False),
        ("a bad string that a good one replaces", "1a01ff1a0141", False),
        ("a NUL in a string", "1a0100", True),
        ("an empty map entry", "2a00", True),
        ("a map entry with a bad name", "2a030a01ff", False),
        ("a map entry with a bad name that a good one replaces", "2a060a01ff0a0141", False),
        ("a map entry with an unknown field", "2a020842", True),
        ("a map entry with the end of a group", "2a010c", False),
        ("an unknown policy", "4007", True),
        ("a negative policy", "40" + "ff" * 9 + "01", True),
        ("a partition of more than 32 bits", "20ffffffff1f", True),
    ],
)
def test_known_corners(name: str, data: str, is_good: bool) -> None:
    request = bytes.fromhex(data)
    message = google(api_pb2.PublishRequest, request)
    ours = kernel.parse_publish_request(request)
    assert (ours is not None) == is_good, name
    if len(request) < 1000:  # the twin recurses
        agree(ours, twin.publish_request(request), message)


def test_an_envelope_of_eight_bytes_is_an_empty_message() -> None:
    found = kernel.parse_publish_envelope(twin.MAGIC + bytes((0, 8, 0, 0)))
    assert found is not None
    assert (found.key, found.value, found.headers, found.expected_offset) == (b"", b"", (), 0)


@pytest.mark.parametrize("size", [0, 7, 13, 200, 255])
def test_a_header_size_that_cannot_be_is_no_envelope(size: int) -> None:
    assert kernel.parse_publish_envelope(twin.MAGIC + bytes((0, size, 0, 0)) + b"1234") is None


@pytest.mark.parametrize("count", [1, 2, 12, 13, 100, 4096])
def test_of_many_headers_of_one_name_the_last_stays(count: int) -> None:
    entries = [(b"n%d" % (index % 7), b"%d" % index) for index in range(count)]
    payload = b"".join(
        b"\x4a" + twin.varint(len(name) + len(value) + 4) + b"\x0a%c%b\x12%c%b" % (len(name), name, len(value), value)
        for name, value in entries
    )
    found = kernel.parse_publish_envelope(twin.MAGIC + bytes((0, 8, 0, 0)) + payload)
    assert found is not None
    assert found.headers == twin.last_of_each(entries)


def test_more_headers_than_the_kernel_looks_at_are_said_to_be_too_many() -> None:
    envelope = twin.MAGIC + bytes((0, 8, 0, 0)) + b"\x4a\x00" * 4097
    found = kernel.parse_publish_envelope(envelope)
    assert found is not None
    assert found.headers is None
    assert kernel.record_headers(envelope) is None
