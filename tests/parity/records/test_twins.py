"""The twins against published numbers and against bytes laid out by hand: an oracle has to be right by itself."""

from __future__ import annotations

import pytest

from tests.parity.twins import twin_records as twin
from tests.parity.twins.twin_builder import BatchBuilder
from tests.parity.twins.twin_crc32c import crc32c
from tests.parity.twins.twin_format import VarintError, pack_varint, unpack_varint
from tests.parity.twins.twin_siphash import siphash128

# The reference vectors of SipHash-2-4-128: secret 00 … 0f, message 00 01 02 … of so many bytes.
SIPHASH_VECTORS = {
    0: "a3817f04ba25a8e66df67214c7550293",
    1: "da87c1d86b99af44347659119b22fc45",
    2: "8177228da4a45dc7fca38bdef60affe4",
    7: "a1f1ebbed8dbc153c0b84aa61ff08239",
    8: "3b62a9ba6258f5610f83e264f31497b4",
    15: "5493e99933b0a8117e08ec0f97cfc3d9",
    63: "5150d1772f50834a503e069a973fbd7c",
}

# CRC-32C: the usual check value, and RFC 3720 appendix B.4.
CRC_VECTORS = {
    b"": 0x00000000,
    b"123456789": 0xE3069283,
    bytes(32): 0x8A9136AA,
    b"\xff" * 32: 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
    bytes(reversed(range(32))): 0x113FDB5C,
    bytes.fromhex(
        "01c000000000000000000000000000001400000000000400000000140000001828000000000000000200000000000000"
    ): 0xD9963A56,
}


@pytest.mark.parametrize("size", SIPHASH_VECTORS)
def test_siphash_twin_gives_the_published_vectors(size: int) -> None:
    assert siphash128(bytes(range(16)), bytes(range(size))).hex() == SIPHASH_VECTORS[size]


@pytest.mark.parametrize("data", CRC_VECTORS)
def test_crc32c_twin_gives_the_published_vectors(data: bytes) -> None:
    assert crc32c(data) == CRC_VECTORS[data]


def test_crc32c_twin_continues_where_it_stopped() -> None:
    assert crc32c(b"56789", crc32c(b"1234")) == 0xE3069283


@pytest.mark.parametrize(
    ("value", "packed"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8001"),
        (300, "ac02"),
        (2**63, "80808080808080808001"),
        (2**64 - 1, "f" * 18 + "01"),
    ],
)
def test_varints_are_leb128(value: int, packed: str) -> None:
    content = bytes.fromhex(packed.replace("f" * 18, "ff" * 9))
    assert pack_varint(value) == content
    assert unpack_varint(content, 0, len(content)) == (value, len(content))


@pytest.mark.parametrize("packed", ["", "80", "ff" * 9 + "02", "ff" * 10, "80" * 10 + "00"])
def test_varints_that_end_early_or_do_not_fit_64_bits_are_refused(packed: str) -> None:
    with pytest.raises(VarintError):
        unpack_varint(bytes.fromhex(packed), 0, len(packed) // 2)


def test_a_longer_varint_than_needed_is_legal_up_to_ten_bytes() -> None:
    assert unpack_varint(b"\x85" + b"\x80" * 8 + b"\x00", 0, 10) == (5, 10)


# One batch with every kind of field, byte by byte as `formats.md` draws it.
BY_HAND = bytes.fromhex(
    "5a000000 5cba 01 00 02000000"  # length magic version attributes count
    "e803000000000000 01000000 22000000"  # base_offset last_delta body_bytes
    "0700000000000000 0065cd1d00000000"  # leader_epoch first_timestamp
    "8065cd1d00000000"  # max_timestamp
    "02 612e"  # subject
    "07 03 00 00 01 6b 01 76"  # key and value
    "16 1d 01 8001 01 6b 02 622e 01 72 02 01 6e 02 7631 00 03 787879"  # key, own subject, reply, two headers
)


def test_a_batch_laid_out_by_hand_reads_as_drawn() -> None:
    data = crc32c(BY_HAND).to_bytes(4, "little") + BY_HAND
    assert len(data) == 0x5A
    assert twin.check(data) == 0x5A
    first, second = twin.decode(data)
    assert first == twin.Record(1000, 500_000_000, 7, b"k", b"v", (), b"a.", b"")
    headers = ((b"n", b"v1"), (b"", b"xxy"))
    assert second == twin.Record(1001, 500_000_128, 7, b"k", None, headers, b"b.", b"r")


def test_the_builder_twin_writes_the_batch_laid_out_by_hand() -> None:
    builder = BatchBuilder(
        key_bytes_max=9,
        value_bytes_max=9,
        headers_max=9,
        headers_bytes_max=99,
        subject_bytes_max=9,
        batch_bytes_max=999,
        records_max=9,
    )
    builder.add(b"k", b"v", subject=b"a.")
    builder.add(b"k", None, ((b"n", b"v1"), (b"", b"xxy")), b"b.", b"r", 128)
    assert bytes(builder.stamp(1000, 7, 500_000_000))[4:] == BY_HAND
