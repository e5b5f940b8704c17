"""Durations and sizes read as Go and people write them, and survive being written back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.config.values.duration import DURATION_MAX_NS, format_duration, parse_duration
from bascule.config.values.size import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "expected_ns"),
    [
        ("0", 0),
        ("5", 5),
        ("+5", 5),
        ("-5", -5),
        ("1ns", 1),
        ("1us", 1_000),
        ("1\u00b5s", 1_000),
        ("1\u03bcs", 1_000),
        ("300ms", 300_000_000),
        ("1s", 1_000_000_000),
        ("1m30s", 90_000_000_000),
        ("24h", 86_400_000_000_000),
        ("168h", 604_800_000_000_000),
        ("1.5h", 5_400_000_000_000),
        (".5s", 500_000_000),
        ("1.s", 1_000_000_000),
        ("-1.5h", -5_400_000_000_000),
        ("1h0.5m", 3_630_000_000_000),
        ("0.1ns", 0),
        ("9223372036854775807ns", DURATION_MAX_NS),
    ],
)
def test_a_duration_in_go_syntax_is_read_to_the_nanosecond(text: str, expected_ns: int) -> None:
    assert parse_duration(text) == expected_ns


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "+",
        "s",
        ".s",
        "1x",
        "1 s",
        "1s ",
        "1d",
        "1.2.3s",
        "1e3s",
        "--1s",
        "0x1s",
        "1S",
        "²s",
        "1" * 200,
        "300000h" * 20,
    ],
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_duration(text)


def test_a_duration_beyond_go_s_range_is_refused() -> None:
    with pytest.raises(ValueError, match="292 years"):
        parse_duration("2562048h")


@given(st.integers(min_value=-DURATION_MAX_NS, max_value=DURATION_MAX_NS))
def test_a_written_duration_reads_back_as_itself(duration_ns: int) -> None:
    assert parse_duration(format_duration(duration_ns)) == duration_ns


@given(st.text(alphabet="0123456789.hmsuµn+- x", max_size=20))
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    try:
        duration_ns = parse_duration(text)
    except ValueError:
        return
    assert abs(duration_ns) <= DURATION_MAX_NS


@given(
    st.lists(
        st.tuples(st.integers(0, 1000), st.sampled_from(["h", "m", "s", "ms", "us", "ns"])), min_size=1, max_size=5
    )
)
def test_terms_add_up_in_any_order(terms: list[tuple[int, str]]) -> None:
    whole = parse_duration("".join(f"{count}{unit}" for count, unit in terms))
    assert whole == sum(parse_duration(f"{count}{unit}") for count, unit in terms)


@pytest.mark.parametrize(
    ("text", "expected_bytes"),
    [
        ("0", 0),
        ("268435456", 268_435_456),
        ("256MiB", 268_435_456),
        ("256mib", 268_435_456),
        ("256 MB", 256_000_000),
        ("1KiB", 1024),
        ("1kb", 1000),
        ("2TiB", 2 << 40),
        ("7B", 7),
        ("-1", -1),
    ],
)
def test_a_size_is_a_number_with_or_without_a_unit(text: str, expected_bytes: int) -> None:
    assert parse_size(text) == expected_bytes


@pytest.mark.parametrize("text", ["", "MiB", "1.5MiB", "1XB", "1 M i B", "one", "1MiBs"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_size(text)


@given(st.integers(min_value=0, max_value=(1 << 63) - 1))
def test_a_written_size_reads_back_as_itself(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes)) == size_bytes
