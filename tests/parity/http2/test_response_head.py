"""Header blocks of responses against what the standard library and a few lines make of the same fields."""

from __future__ import annotations

import base64
import binascii
from urllib.parse import unquote_to_bytes

import hpack
from hypothesis import given
from hypothesis import strategies as st

from bascule.kernels.headers.hpack import HpackDecoder
from tests.parity.guards.guard_pages import Guarded
from tests.parity.twins.twin_http2 import is_valid
from tests.support.kernels.probes import read_response

NAMES = st.sampled_from(
    [
        b":status",
        b":path",
        b"content-type",
        b"content-length",
        b"grpc-status",
        b"grpc-message",
        b"grpc-encoding",
        b"grpc-other",
        b"x-text",
        b"x-raw-bin",
        b"Upper",
        b"connection",
    ]
)
VALUES = st.one_of(
    st.binary(max_size=20),
    st.sampled_from(
        [b"200", b"100", b"0", b"16", b"application/grpc", b"AAE=", b"AAE,/w", b"%41%zz%", b"gzip", b"007"]
    ),
)
FIELDS = st.lists(st.tuples(NAMES, VALUES), max_size=8)


def metadata_of(fields: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    found = []
    for name, value in fields:
        if (
            not is_valid(name, value)
            or name.startswith((b":", b"grpc-"))
            or name in (b"content-type", b"content-length")
        ):
            continue
        if not name.endswith(b"-bin"):
            found.append((name, value))
            continue
        for part in value.split(b","):
            text = part.strip(b" \t=")
            try:
                raw = binascii.a2b_base64(text + b"=" * (-len(text) % 4), strict_mode=True)
            except binascii.Error:
                continue
            found.append((name, raw))
    return found


@given(FIELDS, st.booleans())
def test_fields_are_read_as_they_are_meant(fields: list[tuple[bytes, bytes]], huffman: bool) -> None:
    head = read_response(HpackDecoder(), hpack.Encoder().encode(fields, huffman=huffman))
    assert head is not None
    good = [(name, value) for name, value in fields if is_valid(name, value)]
    last = dict(good)
    assert head.metadata == metadata_of(fields)
    assert head.content_type == last.get(b"content-type")
    text = last.get(b"grpc-message")
    assert head.message == (None if text is None else unquote_to_bytes(text))
    status = last.get(b"grpc-status")
    if status is None:
        assert head.status == -1
    elif status.isdigit() and len(status) < 10:
        assert head.status == int(status)
    else:
        assert head.status == -2
    if len(good) < len(fields) or any(name == b":path" for name, _ in fields):
        assert head.malformed


@given(st.binary(max_size=200))
def test_any_text_survives(raw: bytes) -> None:
    coded = b"".join(b"%%%02x" % byte for byte in raw)
    head = read_response(HpackDecoder(), hpack.Encoder().encode([(b"grpc-message", coded)]))
    assert head is not None and head.message == raw


@given(st.binary(max_size=200))
def test_any_bytes_are_a_block_or_none(data: bytes) -> None:
    guarded = Guarded()
    head = read_response(HpackDecoder(), guarded.at_end(data))
    again = read_response(HpackDecoder(), data)
    assert (head is None) == (again is None)


def test_binary_metadata_of_any_length() -> None:
    raw = [bytes(range(size)) for size in range(10)]
    fields = [(b"x-bin", base64.b64encode(one).rstrip(b"=")) for one in raw]
    head = read_response(HpackDecoder(), hpack.Encoder().encode(fields))
    assert head is not None and [value for _, value in head.metadata] == raw
