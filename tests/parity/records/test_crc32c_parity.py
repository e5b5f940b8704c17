"""CRC-32C: the processor's instruction, the portable tables and the definition are one function."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.kernels.wire.checksum import crc32c
from tests.parity.inputs.strategies import examples
from tests.parity.records.test_twins import CRC_VECTORS
from tests.parity.twins import twin_crc32c
from tests.parity.twins.portable_crc32c import crc32c_table

LANES = 3 * 1024
"""Long inputs may be cut into lanes that are joined again: lengths around their multiples are where that goes wrong."""


@pytest.mark.parametrize("data", CRC_VECTORS)
def test_both_paths_give_the_published_vectors(data: bytes) -> None:
    assert crc32c(data) == crc32c_table(data) == CRC_VECTORS[data]


def test_bytes_that_do_not_lie_in_one_piece_are_refused() -> None:
    with pytest.raises((BufferError, ValueError)):
        crc32c(memoryview(bytes(400))[::2])


def test_all_short_lengths_at_all_alignments_agree() -> None:
    content = memoryview(random.Random(1).randbytes(320))
    for size in range(301):
        for shift in range(16 if size < 40 else 8):
            piece = content[shift : shift + size]
            expected = crc32c_table(piece)
            assert crc32c(piece) == expected
            if shift in (0, 3):
                assert expected == twin_crc32c.crc32c(piece)


@pytest.mark.parametrize("around", [1024, LANES, 2 * LANES, 3 * LANES])
def test_lengths_around_the_lanes_agree(around: int) -> None:
    content = memoryview(random.Random(2).randbytes(around + 40))
    for size in (*range(around - 9, around + 10), around + 23):
        for shift in (0, 1, 7):
            piece = content[shift : shift + size]
            assert crc32c(piece) == crc32c_table(piece)
        assert crc32c(content[:size]) == twin_crc32c.crc32c(content[:size])


@examples(200)
@given(st.binary(max_size=100), st.integers(0, 2**32 - 1))
def test_any_seed_agrees(data: bytes, seed: int) -> None:
    assert crc32c(data, seed) == crc32c_table(data, seed) == twin_crc32c.crc32c(data, seed)


@examples(200)
@given(st.binary(max_size=100), st.binary(max_size=100))
def test_the_checksum_of_two_pieces_is_the_second_seeded_with_the_first(one: bytes, other: bytes) -> None:
    assert crc32c(other, crc32c(one)) == crc32c(one + other)
    assert crc32c_table(other, crc32c_table(one)) == crc32c_table(one + other)


def test_a_long_input_in_uneven_pieces_chains() -> None:
    content = random.Random(3).randbytes(5 * LANES)
    crc = at = 0
    while at < len(content):
        size = (at * 7 + 13) % 4000 + 1
        crc = crc32c(content[at : at + size], crc)
        at += size
    assert crc == crc32c(content) == crc32c_table(content)
