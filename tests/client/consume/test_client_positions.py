"""Where a subscription begins and goes on: pinned to offsets, so that a lost connection neither skips nor repeats."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bascule.client.consume.positions import OFFSET, STOP_OFFSET, STOP_TIMESTAMP, TIMESTAMP, Position, parse
from bascule.errors import InvalidOption

NOW = datetime(2026, 5, 1, tzinfo=UTC)
NOW_NS = int(NOW.timestamp()) * 1_000_000_000


def position(start: Any, stop: Any = None, *, reverse: bool = False, newest: int) -> Position:
    found = Position(parse(start, stop, reverse=reverse, now_ns=NOW_NS))
    found.pin(newest)
    return found


@pytest.mark.parametrize(
    ("start", "newest", "wanted"),
    [("new", 4, 5), ("new", -1, 0), ("latest", 4, 4), ("latest", -1, 0), (3, 4, 3), (100, 4, 5), (100, -1, 0)],
)
def test_starts_are_pinned_before_the_first_request(start: Any, newest: int, wanted: int) -> None:
    request = position(start, newest=newest).request()
    assert (request["startPosition"], request["startOffset"]) == (OFFSET, wanted)


def test_a_start_in_the_future_is_the_next_message() -> None:
    assert position(NOW + timedelta(hours=1), newest=4).request()["startOffset"] == 5


def test_a_start_in_the_past_is_asked_for_until_a_message_has_come() -> None:
    found = position(NOW - timedelta(hours=1), newest=4)
    assert found.request()["startPosition"] == TIMESTAMP
    found.last = 3
    assert (found.request()["startPosition"], found.request()["startOffset"]) == (OFFSET, 4)


def test_reading_goes_on_behind_the_last_message() -> None:
    found = position("earliest", newest=10)
    found.last = 7
    assert found.request()["startOffset"] == 8
    backward = position("latest", reverse=True, newest=10)
    backward.last = 7
    assert backward.request()["startOffset"] == 6
    backward.last = 0
    assert backward.is_done


def test_a_stop_at_the_latest_is_that_of_the_first_request() -> None:
    found = position("earliest", "latest", newest=10)
    found.last = 7
    assert (found.request()["stopPosition"], found.request()["stopOffset"]) == (STOP_OFFSET, 10)
    assert not found.is_done
    found.last = 10
    assert found.is_done


@pytest.mark.parametrize(("reverse", "before", "at"), [(False, 9, 10), (True, 4, 3)])
def test_a_position_is_done_with_its_last_message(reverse: bool, before: int, at: int) -> None:
    found = position(6, at, reverse=reverse, newest=20)
    found.last = before
    assert not found.is_done
    found.last = at
    assert found.is_done


@pytest.mark.parametrize(
    ("start", "stop", "reverse", "newest"),
    [
        ("earliest", "latest", False, -1),
        ("new", "latest", False, 5),
        ("latest", None, True, -1),
        ("earliest", NOW, False, -1),
        (9, 6, True, 5),
    ],
)
def test_a_range_that_holds_nothing_is_done_at_once(start: Any, stop: Any, reverse: bool, newest: int) -> None:
    assert position(start, stop, reverse=reverse, newest=newest).is_done


def test_a_stop_by_time_stays_one() -> None:
    request = position("earliest", NOW, newest=5).request()
    assert (request["stopPosition"], request["stopTimestamp"]) == (STOP_TIMESTAMP, NOW_NS)


@pytest.mark.parametrize(
    ("name", "start", "stop", "reverse"),
    [
        ("start", "newest", None, False),
        ("start", -1, None, False),
        ("start", True, None, False),
        ("start", 1.5, None, False),
        ("start", datetime(2026, 1, 1), None, False),
        ("stop", 0, "earliest", False),
        ("stop", 0, -5, False),
        ("stop", 0, NOW + timedelta(seconds=1), False),
        ("stop", 5, 4, False),
        ("stop", 4, 5, True),
        ("reverse", 4, None, 1),
    ],
)
def test_a_position_that_makes_no_sense_is_refused_by_name(name: str, start: Any, stop: Any, reverse: Any) -> None:
    with pytest.raises(InvalidOption) as caught:
        parse(start, stop, reverse=reverse, now_ns=NOW_NS)
    assert f"`{name}` is" in caught.value.message
    assert caught.value.hint
