"""When the client tries again."""

from __future__ import annotations

import asyncio

from bascule.client.connection.retry import ATTEMPT_SECONDS_MIN, FIRST_WAIT_SECONDS, Backoff, TimeLimit


def test_no_attempt_begins_that_has_no_time_to_be_answered() -> None:
    """It would turn an error that says "not carried out" into an unknown outcome."""
    waited = asyncio.run(Backoff().wait(TimeLimit.after(FIRST_WAIT_SECONDS / 2 + ATTEMPT_SECONDS_MIN)))
    assert not waited


def test_an_attempt_that_has_time_waits_for_its_turn() -> None:
    assert asyncio.run(Backoff().wait(TimeLimit.after(60)))
