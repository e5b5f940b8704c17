"""What leaves for publishers: google's protobuf reads what the kernel wrote."""

from __future__ import annotations

import random

from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from bascule.kernels.envelope.ack_object import Ack
from bascule.proto import api_pb2
from tests.parity.inputs.generate_messages import any_message
from tests.parity.inputs.strategies import RANDOMS, examples
from tests.parity.twins import twin_messages as twin
from tests.support.kernels import message_objects as kernel

INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.one_of(st.text(max_size=20), st.text(min_size=120, max_size=140)).map(str.encode)
ACKS = st.builds(
    Ack,
    stream=TEXT,
    partition_subject=TEXT,
    msg_subject=st.one_of(TEXT, st.binary(max_size=40)),
    offset=INT64,
    ack_inbox=TEXT,
    correlation_id=TEXT,
    ack_policy=st.sampled_from((0, 1, 2, 7, -1, 2**31 - 1)),
    reception_timestamp=INT64,
    commit_timestamp=INT64,
    error=st.sampled_from((0, 1, 2, 3, 4, 1000, 1003)),
    duplicate=st.booleans(),
)


def google_ack(ack: Ack) -> api_pb2.Ack:
    message = api_pb2.Ack(
        stream=ack.stream.decode(),
        partitionSubject=ack.partition_subject.decode(),
        msgSubject=twin.readable(ack.msg_subject),
        offset=ack.offset,
        ackInbox=ack.ack_inbox.decode(),
        correlationId=ack.correlation_id.decode(),
        receptionTimestamp=ack.reception_timestamp,
        commitTimestamp=ack.commit_timestamp,
        duplicate=ack.duplicate,
    )
    message.ackPolicy = ack.ack_policy  # type: ignore[assignment]
    message.ackError = ack.error  # type: ignore[assignment]
    return message


@examples(300)
@given(ACKS)
def test_ack_envelopes(ack: Ack) -> None:
    data = kernel.ack_envelope(ack)
    assert data[:8] == bytes.fromhex("b90e43b400080001")
    assert data[8:] == google_ack(ack).SerializeToString()
    readable = ack._replace(msg_subject=twin.readable(ack.msg_subject).encode())
    assert kernel.parse_ack_envelope(data) == twin.ack_envelope(data) == readable


@examples(200)
@given(ACKS)
def test_responses_to_publishers(ack: Ack) -> None:
    response = api_pb2.PublishResponse(ack=google_ack(ack))
    assert kernel.publish_response(ack, with_correlation_id=False) == response.SerializeToString()
    assert api_pb2.PublishToSubjectResponse(ack=google_ack(ack)).SerializeToString() == response.SerializeToString()
    response.correlationId = ack.correlation_id.decode()
    assert kernel.publish_response(ack) == response.SerializeToString()


@examples(100)
@given(st.integers(0, 7), TEXT, TEXT)
def test_errors_for_publishers(code: int, message: bytes, correlation_id: bytes) -> None:
    data = kernel.publish_error(code, message, correlation_id)
    response = api_pb2.PublishResponse.FromString(data)
    assert response.HasField("ack")
    assert response.ack == api_pb2.Ack()
    assert response.HasField("asyncError")
    assert (response.asyncError.code, response.asyncError.message.encode()) == (code, message)
    assert response.correlationId.encode() == correlation_id
    assert data == response.SerializeToString()


@examples(600)
@given(RANDOMS, TEXT)
def test_a_request_becomes_the_envelope_with_the_same_content(rng: random.Random, inbox: bytes) -> None:
    to_subject = rng.random() < 0.3
    data = any_message(rng, 4 if to_subject else 5)
    parse = kernel.parse_publish_to_subject if to_subject else kernel.parse_publish_request
    request = parse(data)
    envelope = kernel.publish_envelope(data, inbox, to_subject=to_subject)
    assert (envelope is None) == (request is None)
    if envelope is None or request is None:
        return
    assert envelope[:8] == bytes.fromhex("b90e43b400080000")
    stored = kernel.parse_publish_envelope(envelope)
    assert stored == twin.publish_envelope(envelope)
    assert stored == request._replace(stream=b"", partition=0, subject=b"", ack_inbox=inbox)
    try:
        message = api_pb2.Message.FromString(envelope[8:])
    except DecodeError:  # pragma: no cover
        raise AssertionError("google does not read what we wrote") from None
    assert (message.stream, message.partition, message.subject, message.timestamp) == ("", 0, "", 0)
