"""The envelope: what every broker and client writes, and what must be refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.errors import RejectedEnvelope
from bascule.net.nats.envelope import (
    MessageType,
    ReplicationResponse,
    decode,
    decode_replication_response,
    encode,
    encode_replication_response,
)


@given(st.sampled_from(MessageType), st.binary(max_size=200), st.booleans())
def test_every_type_is_itself_again(kind: MessageType, payload: bytes, checksum: bool) -> None:
    assert decode(encode(kind, payload, checksum=checksum), kind) == payload


def test_the_header_is_written_as_clients_know_it() -> None:
    assert encode(MessageType.REPLICATION_RESPONSE, b"") == bytes.fromhex("b90e43b400080003")


def test_eight_bytes_are_an_empty_message() -> None:
    assert decode(bytes.fromhex("b90e43b400080000"), MessageType.PUBLISH) == b""


def test_a_longer_header_without_a_checksum_is_honoured() -> None:
    assert decode(bytes.fromhex("b90e43b4000c0000") + b"????payload", MessageType.PUBLISH) == b"payload"


def test_unknown_flags_are_ignored() -> None:
    assert decode(bytes.fromhex("b90e43b40008fe00") + b"payload", MessageType.PUBLISH) == b"payload"


REFUSED = {
    "too short": ("b90e43b4000800", "too few"),
    "nothing": ("", "too few"),
    "wrong magic": ("b90e43b500080000", "magic"),
    "unknown version": ("b90e43b401080000", "version 1"),
    "checksum flag with a header of 8": ("b90e43b40008010000000000", "header length 8"),
    "checksum mismatch": ("b90e43b4000c010000000000aa", "checksum"),
    "checksum cut off": ("b90e43b4000c0100", "header length 12"),
    "type mismatch": ("b90e43b400080001", "message type 1"),
    "header beyond the end": ("b90e43b400c80000", "header length 200"),
    "header too short": ("b90e43b400070000", "header length 7"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_envelope_is_refused_and_says_why(name: str) -> None:
    data, why = REFUSED[name]
    with pytest.raises(RejectedEnvelope, match=why):
        decode(bytes.fromhex(data), MessageType.PUBLISH)


@given(st.binary(max_size=40) | st.binary(max_size=40).map(lambda rest: bytes.fromhex("b90e43b4") + rest))
def test_any_bytes_are_an_envelope_or_refused(data: bytes) -> None:
    try:
        payload = decode(data, MessageType.PUBLISH)
    except RejectedEnvelope:
        return
    assert data.endswith(payload)
    assert data[:5] == bytes.fromhex("b90e43b400")


@given(st.integers(0, 2**64 - 1), st.integers(-1, 2**63 - 1), st.binary(max_size=100))
def test_a_replication_response_is_itself_again(epoch: int, high_watermark: int, batches: bytes) -> None:
    response = ReplicationResponse(epoch, high_watermark, batches)
    assert decode_replication_response(encode_replication_response(response)) == response


def test_sixteen_bytes_are_a_replication_response_without_data() -> None:
    empty = encode(MessageType.REPLICATION_RESPONSE, bytes(16))
    assert decode_replication_response(empty) == ReplicationResponse(0, 0, b"")


@pytest.mark.parametrize("size", [0, 1, 15])
def test_a_replication_response_below_sixteen_bytes_is_refused(size: int) -> None:
    with pytest.raises(RejectedEnvelope, match="too short"):
        decode_replication_response(encode(MessageType.REPLICATION_RESPONSE, bytes(size)))


def test_a_replication_response_in_a_bad_envelope_is_refused() -> None:
    with pytest.raises(RejectedEnvelope):
        decode_replication_response(encode(MessageType.ACK, bytes(16)))
