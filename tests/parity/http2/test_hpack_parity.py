"""The HPACK kernel against its twin and the `hpack` package, on blocks that are right, damaged, or made up."""

from __future__ import annotations

import random

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.kernels.headers.hpack import CompressionError, HpackDecoder, encode
from tests.parity.guards.guard_pages import Guarded
from tests.parity.twins import twin_hpack

Fields = list[tuple[bytes, bytes]]

NAMES = [b":method", b":path", b"content-type", b"te", b"grpc-timeout", b"x-trace-bin", b"user-agent", b"cookie"]
names = st.one_of(st.sampled_from(NAMES), st.binary(max_size=40))
values = st.one_of(st.sampled_from([b"", b"POST", b"/proto.API/Publish", b"trailers"]), st.binary(max_size=200))
field_lists = st.lists(st.tuples(names, values), max_size=12)


def answer(decoder: HpackDecoder | twin_hpack.Decoder, block: bytes) -> tuple[Fields, bool] | None:
    try:
        return decoder.decode(block)
    except (CompressionError, twin_hpack.Malformed):
        return None


def agree(kernel: HpackDecoder, twin: twin_hpack.Decoder, block: bytes) -> bool:
    """True when the block was right; decoders cannot be used any more after one that was not."""
    told = answer(kernel, block)
    assert told == answer(twin, block)
    if told is not None:
        assert kernel.entries() == twin.table
        assert kernel.table_bytes == sum(map(twin_hpack.size_of, twin.table))
    return told is not None


@given(st.lists(field_lists, max_size=6), st.booleans(), st.sampled_from([0, 40, 200, 4096]))
def test_what_the_package_encodes_is_decoded(lists: list[Fields], huffman: bool, table_bytes: int) -> None:
    encoder = hpack.Encoder()
    encoder.header_table_size = table_bytes
    kernel, twin = HpackDecoder(), twin_hpack.Decoder()
    for fields in lists:
        block = encoder.encode(fields, huffman=huffman)
        assert agree(kernel, twin, block)
        assert kernel.entries() == [(bytes(name), bytes(value)) for name, value in encoder.header_table.dynamic_entries]


@given(field_lists, st.integers(0, 300))
def test_the_list_ends_at_its_limit_and_the_table_does_not(fields: Fields, limit: int) -> None:
    block = hpack.Encoder().encode(fields)
    kernel, twin = HpackDecoder(4096, limit), twin_hpack.Decoder(4096, limit)
    assert agree(kernel, twin, block)


@given(st.lists(field_lists, max_size=3), st.randoms(use_true_random=False))
def test_damaged_blocks_get_the_same_answer(lists: list[Fields], rng: random.Random) -> None:
    encoder = hpack.Encoder()
    kernel, twin = HpackDecoder(), twin_hpack.Decoder()
    for fields in lists:
        block = bytearray(encoder.encode(fields, huffman=rng.random() < 0.5))
        for _ in range(rng.randrange(3)):
            if block:
                block[rng.randrange(len(block))] = rng.randrange(256)
        if rng.random() < 0.3:
            del block[rng.randrange(len(block) + 1) :]
        if not agree(kernel, twin, bytes(block)):
            return


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_any_bytes_get_the_same_answer(blocks: list[bytes]) -> None:
    kernel, twin = HpackDecoder(300), twin_hpack.Decoder(300)
    for block in blocks:
        if not agree(kernel, twin, block):
            return


@given(field_lists)
def test_what_we_encode_is_decoded_by_the_package_and_leaves_no_table(fields: Fields) -> None:
    decoder = hpack.Decoder()
    decoder.max_allowed_table_size = decoder.header_table_size = 0
    decoded = decoder.decode(encode(fields), raw=True)
    assert [(name, value) for name, value in decoded] == fields


@given(st.binary(max_size=100))
def test_every_string_survives_huffman(text: bytes) -> None:
    block = hpack.Encoder().encode([(b"x", text)], huffman=True)
    assert HpackDecoder().decode(block) == ([(b"x", text)], True)


def test_no_byte_behind_a_block_is_read() -> None:
    guarded = Guarded()
    rng = random.Random(7541)
    for _ in range(2_000):
        fields = [(rng.choice(NAMES), rng.randbytes(rng.randrange(40))) for _ in range(rng.randrange(5))]
        block = bytearray(hpack.Encoder().encode(fields, huffman=rng.random() < 0.7))
        if block and rng.random() < 0.7:
            block[rng.randrange(len(block))] = rng.randrange(256)
            del block[rng.randrange(len(block)) + 1 :]
        kernel = HpackDecoder()
        try:
            told: object = kernel.decode(guarded.at_end(bytes(block)))
        except CompressionError:
            told = None
        assert told == answer(twin_hpack.Decoder(), bytes(block))


@pytest.mark.soak
def test_soak_any_bytes(soak_seconds: float) -> None:
    import time

    end = time.monotonic() + soak_seconds
    seed = time.time_ns()
    while time.monotonic() < end:
        rng = random.Random(seed)
        kernel, twin = HpackDecoder(200), twin_hpack.Decoder(200)
        encoder = hpack.Encoder()
        for _ in range(8):
            fields = [(rng.choice(NAMES), rng.randbytes(rng.randrange(60))) for _ in range(rng.randrange(6))]
            block = bytearray(encoder.encode(fields, huffman=rng.random() < 0.5))
            for _ in range(rng.randrange(4)):
                if block:
                    block[rng.randrange(len(block))] = rng.randrange(256)
            if not agree(kernel, twin, bytes(block)):
                break
        seed += 1
