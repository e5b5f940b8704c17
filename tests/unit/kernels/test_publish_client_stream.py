"""A client's PublishAsync call: what goes out, who is told what, and what is said when the call ends first."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given

from bascule.kernels.client.streams import PublishAsyncClientStream
from bascule.kernels.envelope.messages import ALL, LEADER, NONE
from bascule.kernels.window.window import (
    FAILED,
    NOT_SENT,
    OUTCOME_UNKNOWN,
    SENT,
    STORED,
    WAITING,
    PublishColumns,
    PublishTarget,
)
from bascule.proto import api_pb2
from tests.parity.inputs.strategies import RANDOMS, examples
from tests.support.call_pair import CallPair, ServerCall

TARGET = PublishTarget("s", 3, LEADER)
UNACKED = PublishTarget("s", 3, NONE)


class Waiter:
    def __init__(self) -> None:
        self.results: list[Any] = []

    def done(self) -> bool:
        return bool(self.results)

    def set_result(self, result: Any) -> None:
        self.results.append(result)


class Publisher:
    def __init__(self, window: int = 8, pair: CallPair | None = None) -> None:
        self.pair = pair or CallPair()
        self.writable = 0
        self.failed: list[tuple[Any, int, int, str]] = []
        self.lost: list[tuple[int, Any]] = []
        self.ended: list[tuple[int, str]] = []
        self.stream = PublishAsyncClientStream(
            window,
            on_writable=self._writable,
            on_failed=lambda *what: self.failed.append(what),
            on_lost=self.lost.extend,
            on_ended=lambda *what: self.ended.append(what),
        )
        self.server: ServerCall = self.pair.open(self.stream)

    def _writable(self) -> None:
        self.writable += 1

    def requests(self) -> list[api_pb2.PublishRequest]:
        """What came since the last look."""
        self.pair.exchange()
        found = [api_pb2.PublishRequest.FromString(data) for data in self.server.messages]
        self.server.messages.clear()
        return found

    def ack(self, request: api_pb2.PublishRequest, offset: int = 0) -> None:
        ack = api_pb2.Ack(stream=request.stream, offset=offset, correlationId=request.correlationId)
        response = api_pb2.PublishResponse(ack=ack, correlationId=request.correlationId)
        self.server.send(response.SerializeToString())

    def refuse(self, correlation_id: str, code: int = 2, message: str = "no such partition") -> None:
        error = api_pb2.PublishAsyncError(code=code, message=message)  # type: ignore[arg-type]
        response = api_pb2.PublishResponse(ack=api_pb2.Ack(), asyncError=error, correlationId=correlation_id)
        self.server.send(response.SerializeToString())


def test_a_message_goes_out_as_it_was_given_and_its_ack_comes_back() -> None:
    publisher, waiter = Publisher(), Waiter()
    number = publisher.stream.publish(TARGET, b"value", b"key", {"a": b"1"}, 7, waiter)
    (request,) = publisher.requests()
    assert (request.stream, request.partition, request.ackPolicy) == ("s", 3, api_pb2.LEADER)
    assert (request.value, request.key, dict(request.headers)) == (b"value", b"key", {"a": b"1"})
    assert request.expectedOffset == 7
    publisher.ack(request, 41)
    publisher.pair.exchange()
    assert number == 0
    (ack,) = waiter.results
    assert (ack.offset, ack.stream) == (41, "s")
    assert publisher.stream.is_idle


def test_acks_in_another_order_find_their_waiters() -> None:
    publisher, waiters = Publisher(), [Waiter() for _ in range(8)]
    for waiter in waiters:
        publisher.stream.publish(TARGET, b"v", waiter=waiter)
    requests = publisher.requests()
    for index in (7, 0, 3, 2, 1, 6, 5, 4):
        publisher.ack(requests[index], index)
    publisher.pair.exchange()
    assert [waiter.results[0].offset for waiter in waiters] == list(range(8))


def test_an_error_is_told_by_the_id_of_the_response_and_the_call_goes_on() -> None:
    publisher, waiter, other = Publisher(), Waiter(), Waiter()
    publisher.stream.publish(TARGET, b"v", waiter=other)
    publisher.stream.publish(TARGET, b"v", waiter=waiter)
    requests = publisher.requests()
    publisher.refuse(requests[1].correlationId)
    publisher.ack(requests[0])
    publisher.pair.exchange()
    assert publisher.failed == [(waiter, 1, 2, "no such partition")]
    assert (len(waiter.results), len(other.results)) == (0, 1)
    assert not publisher.stream.finished


def test_a_message_without_ack_takes_no_slot_and_its_error_has_no_waiter() -> None:
    publisher = Publisher(window=1)
    assert [publisher.stream.publish(UNACKED, b"v") for _ in range(3)] == [0, 1, 2]
    assert publisher.stream.is_idle
    assert [request.correlationId for request in publisher.requests()] == ["", "", ""]
    publisher.refuse("", 4, "readonly")
    publisher.pair.exchange()
    assert publisher.failed == [(None, -1, 4, "readonly")]


def test_a_full_window_says_so_and_calls_when_there_is_room() -> None:
    publisher = Publisher(window=2)
    assert publisher.stream.has_room
    assert [publisher.stream.publish(TARGET, b"v") for _ in range(3)] == [0, 1, -1]
    assert not publisher.stream.has_room
    requests = publisher.requests()
    assert (len(requests), publisher.writable) == (2, 0)
    publisher.ack(requests[0])
    publisher.pair.exchange()
    assert (publisher.writable, publisher.stream.has_room) == (1, True)
    publisher.ack(requests[1])
    publisher.pair.exchange()
    assert publisher.writable == 1  # nobody had asked again
    assert publisher.stream.publish(TARGET, b"v") == 2


def test_room_begins_with_the_call() -> None:
    publisher = PublishAsyncClientStream()
    calls: list[int] = []
    publisher.on_writable = lambda: calls.append(1)
    assert publisher.publish(TARGET, b"v") == -1
    pair = CallPair()
    pair.open(publisher)
    assert calls == [1]
    assert publisher.publish(TARGET, b"v") == 0


def test_large_messages_wait_for_the_servers_window() -> None:
    publisher = Publisher(window=1024)
    sent = 0
    while publisher.stream.publish(TARGET, bytes(100_000)) >= 0:
        sent += 1
    assert 0 < sent < 1024
    assert len(publisher.requests()) == sent
    assert publisher.writable == 1


# ── columns ──────────────────────────────────────────────────────────────────────────────────────


def test_columns_larger_than_the_window_send_themselves() -> None:
    publisher, waiter = Publisher(window=4), Waiter()
    columns = PublishColumns(TARGET, [b"%d" % number for number in range(50)], None, [b"k", None] * 25, waiter=waiter)
    publisher.stream.publish_columns(columns)
    assert not publisher.stream.has_room
    seen: list[bytes] = []
    while not columns.done:
        requests = publisher.requests()
        assert 0 < len(requests) <= 4
        for request in requests:
            publisher.ack(request, 100 + len(seen))
            seen.append(request.value)
        publisher.pair.exchange()
    assert seen == [b"%d" % number for number in range(50)]
    assert waiter.results == [columns]
    assert columns.offsets.tolist() == list(range(100, 150))
    assert columns.outcomes.tolist() == [STORED] * 50
    assert (columns.sent, columns.answered, columns.failed, columns.texts) == (50, 50, 0, {})
    assert publisher.stream.has_room
    assert publisher.writable == 1


def test_rows_that_fail_are_marked_and_others_are_not() -> None:
    publisher = Publisher()
    columns = PublishColumns(TARGET, [b"a", b"b", b"c"])
    publisher.stream.publish_columns(columns)
    requests = publisher.requests()
    publisher.ack(requests[0], 5)
    publisher.refuse(requests[1].correlationId, 4, "readonly")
    publisher.pair.exchange()
    assert columns.outcomes.tolist() == [STORED, FAILED + 4, WAITING]
    assert columns.offsets.tolist() == [5, -1, -1]
    assert (columns.failed, columns.done, columns.texts) == (1, False, {FAILED + 4: "readonly"})
    assert publisher.failed == []


def test_rows_without_acks_are_sent_and_done() -> None:
    publisher, waiter = Publisher(window=1), Waiter()
    columns = PublishColumns(UNACKED, [b"a", b"b", b"c"], waiter=waiter)
    publisher.stream.publish_columns(columns)
    assert columns.outcomes.tolist() == [SENT] * 3
    assert waiter.results == [columns]
    assert len(publisher.requests()) == 3


def test_empty_columns_are_done_at_once() -> None:
    publisher, waiter = Publisher(), Waiter()
    publisher.stream.publish_columns(PublishColumns(TARGET, [], waiter=waiter))
    assert len(waiter.results) == 1
    publisher.stream.publish_columns(PublishColumns(TARGET, []))
    assert publisher.stream.is_idle


def test_columns_are_published_once() -> None:
    publisher = Publisher()
    columns = PublishColumns(TARGET, [b"a"])
    publisher.stream.publish_columns(columns)
    with pytest.raises(ValueError, match="once"):
        publisher.stream.publish_columns(columns)


def test_what_is_sent_keeps_the_order_of_calls() -> None:
    publisher = Publisher(window=4)
    for first in (0, 10):
        publisher.stream.publish_columns(
            PublishColumns(TARGET, [b"%d" % number for number in range(first, first + 10)])
        )
    assert publisher.stream.publish(TARGET, b"late") == -1
    seen: list[bytes] = []
    while requests := publisher.requests():
        for request in requests:
            seen.append(request.value)
            publisher.ack(request)
    assert seen == [b"%d" % number for number in range(20)]


# ── the end ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["lost", "cancelled", "finished"])
def test_when_the_call_ends_everybody_is_told(how: str) -> None:
    publisher, waiters, all_of = Publisher(window=8), [Waiter() for _ in range(3)], Waiter()
    for waiter in waiters:
        publisher.stream.publish(TARGET, b"v", waiter=waiter)
    columns = PublishColumns(TARGET, [b"c"] * 10, waiter=all_of)
    publisher.stream.publish_columns(columns)
    requests = publisher.requests()
    publisher.ack(requests[1])
    publisher.ack(requests[3], 9)
    publisher.server.on_received = lambda _: None
    publisher.pair.exchange()
    if how == "lost":
        publisher.pair.client.lost()
    elif how == "cancelled":
        publisher.stream.cancel()
    else:
        publisher.server.finish(14, "going away")
        publisher.pair.exchange()
    assert publisher.lost == [(0, waiters[0]), (2, waiters[2])]
    assert [len(waiter.results) for waiter in waiters] == [0, 1, 0]
    assert all_of.results == [columns]
    assert columns.outcomes.tolist() == [STORED] + [OUTCOME_UNKNOWN] * 6 + [NOT_SENT] * 3
    assert columns.sent == 7
    assert len(publisher.ended) == 1
    assert publisher.ended[0][0] == {"lost": 14, "cancelled": 1, "finished": 14}[how]
    assert (publisher.stream.has_room, publisher.stream.publish(TARGET, b"v")) == (False, -1)
    late = PublishColumns(TARGET, [b"x"])
    publisher.stream.publish_columns(late)
    assert late.outcomes.tolist() == [NOT_SENT]


def test_an_answer_that_is_none_ends_the_call() -> None:
    publisher, waiter = Publisher(), Waiter()
    publisher.stream.publish(TARGET, b"v", waiter=waiter)
    publisher.requests()
    publisher.server.send(b"\x0a\xff")
    publisher.pair.exchange()
    assert publisher.ended[0][0] == 13
    assert "answer 1 of PublishAsync cannot be decoded" in publisher.ended[0][1]
    assert publisher.lost == [(0, waiter)]
    assert publisher.pair.faults == []


def test_after_half_close_acks_still_come() -> None:
    publisher, waiter = Publisher(), Waiter()
    publisher.stream.publish(TARGET, b"v", waiter=waiter)
    publisher.stream.half_close()
    assert publisher.stream.publish(TARGET, b"v") == -1
    (request,) = publisher.requests()
    assert publisher.server.is_half_closed
    publisher.ack(request)
    publisher.server.finish(0)
    publisher.pair.exchange()
    assert len(waiter.results) == 1
    assert publisher.ended == [(0, "")]


def test_what_is_late_is_given_up_and_makes_room() -> None:
    publisher, waiter = Publisher(window=2), Waiter()
    publisher.stream.publish(TARGET, b"v", waiter=waiter, deadline=5.0)
    columns = PublishColumns(TARGET, [b"c"] * 3, deadline=6.0)
    publisher.stream.publish_columns(columns)
    assert not publisher.stream.has_room
    assert publisher.stream.expire(4.0) == 0
    assert publisher.stream.expire(5.0) == 1
    assert publisher.lost == [(0, waiter)]
    assert columns.sent == 2  # the freed slot was used at once
    assert publisher.stream.expire(6.0) == 2
    assert columns.outcomes.tolist() == [OUTCOME_UNKNOWN, OUTCOME_UNKNOWN, NOT_SENT]
    assert publisher.stream.has_room
    assert publisher.writable == 1
    for request in publisher.requests():
        publisher.ack(request)
    publisher.pair.exchange()
    assert publisher.stream.window.strays == 3
    assert waiter.results == []


def test_a_waiter_that_raises_ends_the_call_and_is_reported() -> None:
    class Broken(Waiter):
        def set_result(self, result: Any) -> None:
            raise RuntimeError(f"no use for {result.offset}")

    publisher = Publisher()
    publisher.stream.publish(TARGET, b"v", waiter=Broken())
    (request,) = publisher.requests()
    publisher.ack(request)
    publisher.pair.exchange()
    assert [str(fault) for fault in publisher.pair.faults] == ["no use for 0"]
    assert len(publisher.ended) == 1


@examples(150)
@given(RANDOMS)
def test_everybody_is_told_exactly_once_whatever_happens(rng: random.Random) -> None:
    publisher = Publisher(rng.choice((1, 2, 8)), CallPair(rng))
    waiters: dict[int, Waiter] = {}
    tables: list[PublishColumns] = []
    unanswered: list[api_pb2.PublishRequest] = []
    told: list[int] = []
    for _ in range(rng.randrange(60)):
        what = rng.random()
        if what < 0.4:
            waiter = Waiter()
            policy = PublishTarget("s", 0, rng.choice((LEADER, ALL)))
            number = publisher.stream.publish(policy, rng.randbytes(rng.randrange(50)), waiter=waiter)
            if number >= 0:
                assert number not in waiters
                waiters[number] = waiter
        elif what < 0.45:
            tables.append(PublishColumns(TARGET, [b"row"] * rng.randrange(1, 12)))
            publisher.stream.publish_columns(tables[-1])
        elif what < 0.9:
            unanswered += publisher.requests()
            rng.shuffle(unanswered)
            for _ in range(rng.randrange(len(unanswered) + 1)):
                request = unanswered.pop()
                if rng.random() < 0.8:
                    publisher.ack(request)
                else:
                    publisher.refuse(request.correlationId)
        else:
            publisher.pair.exchange()
    publisher.pair.client.lost()
    told += [number for _, number, _, _ in publisher.failed] + [number for number, _ in publisher.lost]
    told += [number for number, waiter in waiters.items() if waiter.results]
    assert sorted(told) == sorted(waiters)
    assert all(len(waiter.results) <= 1 for waiter in waiters.values())
    for columns in tables:
        assert columns.done
        assert WAITING not in columns.outcomes.tolist()
    assert publisher.stream.is_idle
    assert publisher.pair.faults == []
