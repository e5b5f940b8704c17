"""What a publisher keeps until its acks have come, and in which order it sends again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bascule.client.publish.publish_session import AckFuture
from bascule.client.publish.resending import KEPT_MIN, AgainQueue, Outgoing, UnderWay, may_be_sent_again
from bascule.errors import BasculeError, OutcomeUnknown, RecordTooLarge, Unavailable


def message(sequence: int, future: AckFuture, **fields: Any) -> Outgoing:
    given = {"number": sequence, "partition": 0, "value": b"x", "key": None, "headers": None, "expected_offset": -1}
    return Outgoing(
        sequence=sequence, future=future, **{**given, "deadline": 9.0, "sent_at": 1.0, "led_by": "a", **fields}
    )


def with_futures(count: int) -> list[AckFuture]:
    loop = asyncio.new_event_loop()
    try:
        return [loop.create_future() for _ in range(count)]
    finally:
        loop.close()


def answer(future: AckFuture) -> None:
    future.set_result(None)  # type: ignore[arg-type]


def test_what_was_not_answered_is_found_by_its_number() -> None:
    futures, kept = with_futures(5), UnderWay()
    for number, future in enumerate(futures):
        kept.add(message(number, future))
    found = kept.take(3)
    assert found is not None
    assert found.future is futures[3]
    assert kept.take(3) is None
    assert [one.number for one in kept.take_partition(0, "a")] == [0, 1, 2, 4]
    assert kept.is_empty


def test_what_was_answered_is_not_kept_however_the_answers_come() -> None:
    futures, kept = with_futures(40_000), UnderWay()
    for number, future in enumerate(futures):
        kept.add(message(number, future))
        if number != 7:
            answer(future)  # all but one that waits at the front
        assert len(kept._messages) <= KEPT_MIN + 4
    assert kept.waiting_since(2.0) == {(0, "a")}
    assert kept.waiting_since(1.0) == set()
    answer(futures[7])
    assert kept.is_empty


def test_only_messages_of_the_partition_and_the_leader_are_taken() -> None:
    futures, kept = with_futures(6), UnderWay()
    for number, future in enumerate(futures):
        kept.add(message(number, future, partition=number % 2, led_by="a" if number < 4 else "b"))
    assert kept.waiting_since(5.0) == {(0, "a"), (1, "a"), (0, "b"), (1, "b")}
    assert [one.number for one in kept.take_partition(1, "a")] == [1, 3]
    assert [one.number for one in kept.take_partition(1, "b")] == [5]
    assert not kept.is_empty


def test_the_oldest_is_sent_again_first_whatever_failed_first() -> None:
    futures, queue = with_futures(4), AgainQueue()
    reasons = [Unavailable(str(sequence)) for sequence in range(4)]
    for sequence in (2, 0, 3, 1):
        queue.add(message(sequence, futures[sequence]), reasons[sequence], now=1.0)
    order = []
    while queue:
        order.append(queue.first.sequence)
        assert queue.pop() is reasons[order[-1]]
    assert order == [0, 1, 2, 3]
    assert queue.reasons == {}


@pytest.mark.parametrize(
    ("error", "resend", "resends", "expected_offset", "again"),
    [
        (Unavailable("x"), None, False, -1, True),
        (Unavailable("x"), None, True, 5, True),
        (Unavailable("x"), False, False, -1, False),
        (OutcomeUnknown("x"), None, False, -1, False),
        (OutcomeUnknown("x"), None, True, -1, True),
        (OutcomeUnknown("x"), None, True, 5, False),
        (OutcomeUnknown("x"), False, False, -1, False),
        (RecordTooLarge("x"), True, True, -1, False),
    ],
)
def test_what_may_be_sent_again(
    error: BasculeError, resend: bool | None, resends: bool, expected_offset: int, again: bool
) -> None:
    (future,) = with_futures(1)
    sent = message(0, future, expected_offset=expected_offset)
    assert may_be_sent_again(error, sent, resend, resends) == again
