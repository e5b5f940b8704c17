"""The examples of RFC 7541, appendix C, and what each of its MUSTs forbids."""

from __future__ import annotations

import pytest

from bascule.kernels.headers.hpack import CompressionError, HpackDecoder

CUSTOM = (b"custom-key", b"custom-header")
REQUEST_1 = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com")]
REQUEST_2 = [*REQUEST_1, (b"cache-control", b"no-cache")]
REQUEST_3 = [
    (b":method", b"GET"),
    (b":scheme", b"https"),
    (b":path", b"/index.html"),
    (b":authority", b"www.example.com"),
    (b"custom-key", b"custom-value"),
]
DATE = b"Mon, 21 Oct 2013 20:13:21 GMT"
RESPONSE_1 = [
    (b":status", b"302"),
    (b"cache-control", b"private"),
    (b"date", DATE),
    (b"location", b"https://www.example.com"),
]
RESPONSE_2 = [(b":status", b"307"), *RESPONSE_1[1:]]
RESPONSE_3 = [
    (b":status", b"200"),
    (b"cache-control", b"private"),
    (b"date", b"Mon, 21 Oct 2013 20:13:22 GMT"),
    (b"location", b"https://www.example.com"),
    (b"content-encoding", b"gzip"),
    (b"set-cookie", b"foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"),
]


@pytest.mark.parametrize(
    ("table_bytes", "blocks", "lists", "table_sizes"),
    [
        (4096, ["400a637573746f6d2d6b65790d637573746f6d2d686561646572"], [[CUSTOM]], [55]),
        (4096, ["040c2f73616d706c652f70617468"], [[(b":path", b"/sample/path")]], [0]),
        (4096, ["100870617373776f726406736563726574"], [[(b"password", b"secret")]], [0]),
        (4096, ["82"], [[(b":method", b"GET")]], [0]),
        (
            4096,
            [
                "828684410f7777772e6578616d706c652e636f6d",
                "828684be58086e6f2d6361636865",
                "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
            ],
            [REQUEST_1, REQUEST_2, REQUEST_3],
            [57, 110, 164],
        ),
        (
            4096,
            [
                "828684418cf1e3c2e5f23a6ba0ab90f4ff",
                "828684be5886a8eb10649cbf",
                "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
            ],
            [REQUEST_1, REQUEST_2, REQUEST_3],
            [57, 110, 164],
        ),
        (
            256,
            [
                "4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d546e1768"
                "747470733a2f2f7777772e6578616d706c652e636f6d",
                "4803333037c1c0bf",
                "88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a69707738666f6f3d4153"
                "444a4b48514b425a584f5157454f50495541585157454f49553b206d61782d6167653d333630303b2076657273696f6e3d31",
            ],
            [RESPONSE_1, RESPONSE_2, RESPONSE_3],
            [222, 222, 215],
        ),
        (
            256,
            [
                "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97c8e9ae82ae43d3",
                "4883640effc1c0bf",
                "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335dfdfcd5b"
                "3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
            ],
            [RESPONSE_1, RESPONSE_2, RESPONSE_3],
            [222, 222, 215],
        ),
    ],
    ids=["C.2.1", "C.2.2", "C.2.3", "C.2.4", "C.3", "C.4", "C.5", "C.6"],
)
def test_appendix_c(
    table_bytes: int, blocks: list[str], lists: list[list[tuple[bytes, bytes]]], table_sizes: list[int]
) -> None:
    decoder = HpackDecoder(table_bytes)
    for block, fields, size in zip(blocks, lists, table_sizes, strict=True):
        assert decoder.decode(bytes.fromhex(block)) == (fields, True)
        assert decoder.table_bytes == size


@pytest.mark.parametrize(
    "block",
    [
        pytest.param("80", id="§6.1 index 0"),
        pytest.param("be", id="§2.3.3 index behind both tables"),
        pytest.param("7e0161", id="§2.3.3 the same for a name"),
        pytest.param("82 20", id="§4.2 a size update behind a field"),
        pytest.param("3fe21f", id="§6.3 a size update above the limit"),
        pytest.param("00 81ff 0161", id="§5.2 padding of eight bits"),
        pytest.param("00 8118 0161", id="§5.2 padding with a zero"),
        pytest.param("00 84ffffffff 0161", id="§5.2 EOS in a string"),
        pytest.param("00 7f ff ff ff ff ff 0f", id="§5.1 a length of 35 bits"),
        pytest.param("00 7f 80 80 80 80 80 80 00", id="§5.1 a length in too many bytes"),
        pytest.param("00 05 6162", id="a string behind the end"),
        pytest.param("00 01 61", id="no value"),
        pytest.param("40", id="no name"),
        pytest.param("ff", id="no rest of an integer"),
        pytest.param("ff ff ff ff ff 7f", id="§5.1 an index beyond all tables"),
    ],
)
def test_what_must_be_an_error(block: str) -> None:
    with pytest.raises(CompressionError):
        HpackDecoder().decode(bytes.fromhex(block.replace(" ", "")))


def test_4_4_an_entry_larger_than_the_table_empties_it() -> None:
    decoder = HpackDecoder(100)
    decoder.decode(bytes.fromhex("400161 0162".replace(" ", "")))
    assert decoder.entries() == [(b"a", b"b")]
    decoder.decode(b"\x40\x01a\x64" + b"x" * 100)
    assert decoder.entries() == []


def test_4_4_a_name_may_be_that_of_the_entry_it_evicts() -> None:
    decoder = HpackDecoder(80)
    decoder.decode(b"\x40\x05names" + b"\x14" + b"v" * 20)
    assert decoder.decode(b"\x7e\x1e" + b"w" * 30) == ([(b"names", b"w" * 30)], True)
    assert decoder.entries() == [(b"names", b"w" * 30)]


def test_4_2_several_size_updates_may_begin_a_block() -> None:
    decoder = HpackDecoder()
    decoder.decode(b"\x40\x01a\x01b")
    assert decoder.decode(b"\x20\x3f\xe1\x1f\x82") == ([(b":method", b"GET")], True)
    assert decoder.entries() == []


def test_one_byte_that_names_a_large_entry_again_and_again_costs_nothing() -> None:
    decoder = HpackDecoder(4096, 16384)
    decoder.decode(b"\x40\x01a\x7f\x81\x1f" + b"v" * 4096)
    decoder.decode(b"\x40\x01a\x7f\xa1\x1e" + b"v" * 4000)
    fields, complete = decoder.decode(b"\xbe" * 60_000)
    assert not complete
    assert len(fields) == 4
