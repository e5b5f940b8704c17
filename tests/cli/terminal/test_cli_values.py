"""Values as people type them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from bascule.cli.terminal import values
from bascule.cli.terminal.values import LastMessages
from bascule.errors import InvalidOption


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("90s", 90),
        ("1h30m", 5400),
        ("7d", 604_800),
        ("1d12h", 129_600),
        ("2", 2),
        ("0.25", 0.25),
        ("0", 0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert values.duration("--max-age", text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "soon", "-1s", "5 minutes", "1y", "d", "1e3", "99999999999d", "nan"])
def test_a_wrong_duration_is_named_with_what_would_be_right(text: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        values.duration("--max-age", text)
    assert "--max-age" in refused.value.message
    assert f"`{text}`" in refused.value.message
    assert "`90s`" in (refused.value.hint or "")


def test_a_timeout_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidOption, match="--timeout"):
        values.seconds("--timeout", "0s")
    assert values.seconds("--timeout", None) is None


def test_sizes() -> None:
    assert values.size("--max-bytes", "64KiB") == 65_536
    assert values.size("--max-bytes", None) is None
    for text in ("big", "-1", "", "1.5GB"):
        with pytest.raises(InvalidOption, match="--max-bytes"):
            values.size("--max-bytes", text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("earliest", "earliest"),
        ("new", "new"),
        ("42", 42),
        ("-10", LastMessages(10)),
        ("2026-03-01T12:00:00Z", datetime(2026, 3, 1, 12, tzinfo=UTC)),
        ("2026-03-01T12:00:00+02:00", datetime(2026, 3, 1, 10, tzinfo=UTC)),
    ],
)
def test_starts(text: str, found: object) -> None:
    assert values.start("--from", text) == found


def test_a_time_without_a_zone_is_local() -> None:
    assert values.start("--from", "2026-03-01") == datetime(2026, 3, 1).astimezone()
    assert values.start("--from", "2026-03-01 12:30") == datetime(2026, 3, 1, 12, 30).astimezone()


def test_how_long_ago() -> None:
    now = datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert values.moment("--from", "15m", "", now) == datetime(2026, 3, 1, 11, 45, tzinfo=UTC)
    assert values.moment("--from", "1d", "", now) == datetime(2026, 2, 28, 12, tzinfo=UTC)


@pytest.mark.parametrize("text", ["", "yesterday", "12:00:99", "2026-13-01", "1x", "--5", "99999999999999999999"])
def test_a_wrong_start_is_named(text: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        values.start("--from", text)
    assert "--from" in refused.value.message
    assert "earliest" in (refused.value.hint or "")


def test_stops() -> None:
    assert values.stop("--to", None) is None
    assert values.stop("--to", "latest") == "latest"
    assert values.stop("--to", "7") == 7
    for text in ("-1", "earliest", "new"):
        with pytest.raises(InvalidOption, match="--to"):
            values.stop("--to", text)


def test_partitions() -> None:
    assert values.partitions("--partition", ["0", "3,1", "1"]) == [0, 1, 3]
    assert values.partitions("--partition", ["0", "all"]) is None
    assert values.partitions("--partition", []) is None
    for text in ("-1", "one", "", "1,,2", "9999999999"):
        with pytest.raises(InvalidOption, match="--partition"):
            values.partitions("--partition", [text])


def test_headers() -> None:
    assert values.headers("--header", ["a=1", "b=x=y", "c="]) == {"a": b"1", "b": b"x=y", "c": b""}
    for text in ("a", "=1", ""):
        with pytest.raises(InvalidOption, match="--header"):
            values.headers("--header", [text])


def test_choices() -> None:
    assert values.choice("--ack", "all", ("leader", "all", "none")) == "all"
    with pytest.raises(InvalidOption) as refused:
        values.choice("--ack", "some", ("leader", "all", "none"))
    assert refused.value.hint == "it must be `leader`, `all` or `none`"


def test_escapes() -> None:
    assert values.unescaped(r"a\tb\n\\n\x\0") == "a\tb\n\\n\\x\0"
