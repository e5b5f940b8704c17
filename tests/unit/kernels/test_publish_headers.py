"""Headers of many messages at once: what google's protobuf reads is what was given, and the three of an idempotent producer."""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.kernels.window.headers import encode_publish_headers
from bascule.kernels.window.window import PublishColumns, PublishTarget
from bascule.proto import api_pb2

ROWS = st.lists(st.dictionaries(st.text(max_size=200), st.binary(max_size=200), max_size=4), max_size=20)


def ends(lengths: list[int]) -> array[int]:
    return array("q", accumulate(lengths))


def entries(rows: list[dict[str, bytes]]) -> Any:
    names = [name.encode() for row in rows for name in row]
    values = [value for row in rows for value in row.values()]
    return (
        ends([len(row) for row in rows]),
        b"".join(names),
        ends([len(name) for name in names]),
        b"".join(values),
        ends([len(value) for value in values]),
    )


def parsed(encoded: tuple[memoryview, memoryview]) -> list[dict[str, bytes]]:
    text, places = bytes(encoded[0]), encoded[1].tolist()
    starts = [0, *places[:-1]]
    found = [api_pb2.PublishRequest.FromString(text[at:end]) for at, end in zip(starts, places, strict=False)]
    assert not places or places[-1] == len(text)
    return [dict(message.headers) for message in found]


@given(ROWS)
def test_headers_are_those_that_were_given(rows: list[dict[str, bytes]]) -> None:
    assert parsed(encode_publish_headers(len(rows), entries(rows))) == rows


@given(ROWS, st.integers(0, 2**62), st.integers(0, 2**62))
def test_a_producer_counts_its_messages(rows: list[dict[str, bytes]], epoch: int, sequence: int) -> None:
    found = parsed(encode_publish_headers(len(rows), entries(rows), producer=b"me", epoch=epoch, sequence=sequence))
    for place, (row, message) in enumerate(zip(rows, found, strict=True)):
        own = {
            "bascule-producer": b"me",
            "bascule-epoch": b"%d" % epoch,
            "bascule-sequence": b"%d" % (sequence + place),
        }
        assert message == {**row, **own}


def test_a_producer_needs_no_other_headers() -> None:
    found = parsed(encode_publish_headers(11, producer=b"p", epoch=3))
    assert [message["bascule-sequence"] for message in found] == [b"%d" % number for number in range(11)]


def test_a_time_of_its_own_is_a_header() -> None:
    found = parsed(encode_publish_headers(3, None, array("q", (0, -1, 2**63 - 1)), producer=b"p"))
    assert [message.get("bascule-timestamp") for message in found] == [b"0", None, b"%d" % (2**63 - 1)]
    for wrong in (array("q", (1,)), array("i", (1, 2, 3))):
        with pytest.raises(ValueError, match="3 64 bit integers"):
            encode_publish_headers(3, None, wrong)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({0: array("q", (1,))}, "headers of 1 messages for 2"),
        ({0: array("q", (1, 3))}, r"row_ends\[1\] is 3"),
        ({2: array("q", (1, 9))}, r"name_ends\[1\] is 9"),
        ({4: array("q", (2, 1))}, r"value_ends\[1\] is 1"),
        ({4: array("q", (1,))}, "1 values for 2 names"),
        ({2: array("i", (1, 2))}, "64 bit integers"),
    ],
)
def test_columns_that_cannot_be_are_refused(change: dict[int, Any], complaint: str) -> None:
    columns = list(entries([{"a": b"1"}, {"b": b"2"}]))
    for place, column in change.items():
        columns[place] = column
    with pytest.raises(ValueError, match=complaint):
        encode_publish_headers(2, tuple(columns))


def test_numbers_do_not_overflow() -> None:
    for epoch, sequence in ((-1, 0), (0, -1), (0, 2**63 - 2)):
        with pytest.raises(ValueError, match="not negative"):
            encode_publish_headers(2, producer=b"p", epoch=epoch, sequence=sequence)


def test_columns_have_headers_for_every_message_or_for_none() -> None:
    headers, places = encode_publish_headers(2, producer=b"p")
    assert len(PublishColumns(PublishTarget("s"), [b"a", b"b"], headers=headers, header_ends=places)) == 2
    with pytest.raises(ValueError, match="headers of 2 messages for 1 values"):
        PublishColumns(PublishTarget("s"), [b"a"], headers=headers, header_ends=places)
