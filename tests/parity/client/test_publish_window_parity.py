"""What goes to and fro when a client publishes: the kernel, google's protobuf and the twin read and write the same."""

from __future__ import annotations

import random
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from typing_extensions import Buffer

from bascule.kernels.window import window as kernel
from bascule.proto import api_pb2
from tests.parity.inputs.generate_messages import any_envelope, any_message, damaged, entry, fields, span, tag, text
from tests.parity.inputs.strategies import RANDOMS, examples
from tests.parity.twins import twin_client as twin
from tests.parity.twins.twin_messages import ACK_TYPE, envelope_payload
from tests.support.kernels.message_objects import parse_publish_envelope

HEADERS: dict[str, bytes] = {"a": b"1", "": b"", "größe": b"\xff\x00", "n" * 200: b"v" * 300}
OFFSETS = (-1, 0, 1, 127, 128, 2**63 - 1)


def fields_of(ack: kernel.Ack | None) -> twin.Acked | None:
    if ack is None:
        return None
    return twin.Acked(
        ack.stream,
        ack.partition_subject,
        ack.message_subject,
        ack.offset,
        ack.ack_inbox,
        ack.correlation_id,
        ack.ack_policy,
        ack.reception_timestamp,
        ack.commit_timestamp,
        ack.error,
    )


def google_ack(ack: Any) -> twin.Acked:
    return twin.Acked(
        ack.stream,
        ack.partitionSubject,
        ack.msgSubject,
        ack.offset,
        ack.ackInbox,
        ack.correlationId,
        ack.ackPolicy,
        ack.receptionTimestamp,
        ack.commitTimestamp,
        ack.ackError,
    )


def google_response(data: bytes) -> twin.Response | None:
    try:
        found: Any = api_pb2.PublishResponse.FromString(data)
    except DecodeError:
        return None
    return twin.Response(
        google_ack(found.ack) if found.HasField("ack") else None,
        (found.asyncError.code, found.asyncError.message) if found.HasField("asyncError") else None,
        found.correlationId,
    )


def response(data: Buffer) -> twin.Response | None:
    try:
        ack, error, correlation_id = kernel.decode_publish_response(data)
    except ValueError:
        return None
    return twin.Response(fields_of(ack), error, correlation_id)


def any_response(rng: random.Random) -> bytes:
    parts = []
    for _ in range(rng.choice((1, 1, 2, 3, 4))):
        which = rng.random()
        if which < 0.5:
            parts.append(tag(rng, 1, 2) + span(rng, fields(rng, 0, rng.choice((0, 1, 3, 6)))))
        elif which < 0.7:
            parts.append(tag(rng, 2, 2) + span(rng, entry(rng) if rng.random() < 0.3 else fields(rng, 0, 2)))
        elif which < 0.9:
            parts.append(tag(rng, 3, 2) + span(rng, text(rng)))
        else:
            parts.append(fields(rng, 0, 1))
    data = b"".join(parts)
    return damaged(rng, data) if rng.random() < 0.2 else data


@examples(1500)
@given(RANDOMS)
def test_responses(rng: random.Random) -> None:
    data = any_response(rng)
    assert response(data) == twin.publish_response(data) == google_response(data)


@examples(700)
@given(RANDOMS)
def test_acks(rng: random.Random) -> None:
    data = any_message(rng, 0)
    try:
        ours = fields_of(kernel.decode_ack(data))
    except ValueError:
        ours = None
    try:
        theirs = google_ack(api_pb2.Ack.FromString(data))
    except DecodeError:
        theirs = None
    assert ours == twin.acked(data) == theirs


@examples(300)
@given(RANDOMS)
def test_ack_envelopes(rng: random.Random) -> None:
    data = any_envelope(rng, ACK_TYPE)
    payload = envelope_payload(data, ACK_TYPE)
    assert fields_of(kernel.decode_ack_envelope(data)) == (None if payload is None else twin.acked(payload))


def some_headers(rng: random.Random) -> dict[str, bytes]:
    return {name: HEADERS[name] for name in rng.sample(sorted(HEADERS), rng.randrange(len(HEADERS) + 1))}


@examples(500)
@given(RANDOMS)
def test_publish_requests_are_written_as_protobuf_writes_them(rng: random.Random) -> None:
    stream, partition, policy = (
        rng.choice(("", "s", "größe")),
        rng.choice((0, 1, 2**31 - 1, -1)),
        rng.choice((0, 1, 2, 7)),
    )
    value, key = rng.randbytes(rng.choice((0, 1, 200, 70_000))), rng.choice((b"", b"k", b"k" * 300))
    correlation_id, offset, headers = rng.choice((b"", b"0", b"123456")), rng.choice(OFFSETS), some_headers(rng)
    inbox = rng.choice((b"", b"in.box"))
    target = kernel.PublishTarget(stream, partition, policy)
    ours = kernel.encode_publish_request(target, value, key or None, headers, correlation_id, offset, inbox)
    wanted = twin.publish_request(stream, partition, policy, value, key, headers, correlation_id, offset)
    assert len(ours) == sum(map(len, wanted.values())) + len(twin.bytes_field(6, inbox))
    found = api_pb2.PublishRequest.FromString(ours)
    assert found == api_pb2.PublishRequest.FromString(b"".join(wanted.values()) + twin.bytes_field(6, inbox))
    assert (found.stream, found.partition, found.ackPolicy, found.expectedOffset) == (stream, partition, policy, offset)
    assert (found.value, found.key, dict(found.headers)) == (value, key, headers)
    to_subject = kernel.encode_publish_to_subject(stream, value, key, headers, correlation_id, inbox, policy)
    assert api_pb2.PublishToSubjectRequest.FromString(to_subject) == api_pb2.PublishToSubjectRequest(
        subject=stream,
        value=value,
        key=key,
        headers=headers,
        correlationId=correlation_id.decode(),
        ackInbox=inbox.decode(),
        ackPolicy=policy,  # type: ignore[arg-type]
    )


@examples(300)
@given(RANDOMS)
def test_envelopes_are_read_as_they_were_written(rng: random.Random) -> None:
    value, key, headers = rng.randbytes(rng.choice((0, 1, 200))), rng.choice((b"", b"k")), some_headers(rng)
    offset, policy = rng.choice(OFFSETS), rng.choice((0, 1, 2))
    data = kernel.encode_publish_envelope(value, key, headers, b"12", offset, b"in.box", policy)
    found = parse_publish_envelope(data)
    assert found is not None
    assert (found.value, found.key, found.correlation_id, found.ack_inbox) == (value, key, b"12", b"in.box")
    assert (found.expected_offset, found.ack_policy) == (offset, policy)
    assert dict(found.headers or ()) == {name.encode(): content for name, content in headers.items()}


@pytest.mark.parametrize("headers", [{1: b""}, {"a": "text"}, {"a": None}])
def test_headers_are_names_and_bytes(headers: Any) -> None:
    with pytest.raises(TypeError):
        kernel.encode_publish_envelope(b"", None, headers)


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(UnicodeEncodeError):
        kernel.encode_publish_envelope(b"", None, {"\ud800": b""})
    with pytest.raises(UnicodeEncodeError):
        kernel.PublishTarget("\ud800")
