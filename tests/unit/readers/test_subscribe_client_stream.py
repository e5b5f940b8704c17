"""A client's Subscribe call: what comes is collected into batches, and a consumer that is slow holds the server back."""

from __future__ import annotations

import gc
import random
from typing import Any

import pytest
from hypothesis import given

from bascule.kernels.client.messages import MessageBatch
from bascule.kernels.client.streams import SubscribeClientStream
from bascule.proto import api_pb2
from tests.parity.inputs.strategies import RANDOMS, examples
from tests.support.call_pair import CallPair, ServerCall

INTERNAL, OK, UNAVAILABLE, EXHAUSTED = 13, 0, 14, 8


def message(offset: int, value: bytes = b"v", **others: Any) -> bytes:
    return api_pb2.Message(
        offset=offset, value=value, timestamp=1 + offset, stream="s", subject="a.b", **others
    ).SerializeToString()


class Consumer:
    def __init__(self, pair: CallPair | None = None, **options: int) -> None:
        self.pair = pair or CallPair()
        self.wakes = 0
        self.stream = SubscribeClientStream(b"request", self._wake, **options)
        self.server: ServerCall = self.pair.open(self.stream)

    def _wake(self) -> None:
        self.wakes += 1

    def send(self, *messages: bytes) -> None:
        for data in messages:
            self.server.send(data)
        self.pair.exchange()

    def take_all(self) -> list[MessageBatch]:
        batches = []
        while (batch := self.stream.take()) is not None:
            batches.append(batch)
        return batches


def test_the_request_goes_out_and_nothing_after_it() -> None:
    consumer = Consumer()
    assert consumer.server.messages == [b"request"]
    assert consumer.server.is_half_closed
    assert not consumer.stream.confirmed


def test_the_first_empty_message_confirms_and_is_no_message() -> None:
    consumer = Consumer()
    consumer.send(b"")
    assert consumer.stream.confirmed
    assert (consumer.wakes, consumer.stream.waiting, consumer.stream.take()) == (1, 0, None)
    consumer.send(message(0), message(1))
    assert consumer.wakes == 2
    assert [batch.offsets.tolist() for batch in consumer.take_all()] == [[0, 1]]


def test_a_server_without_handshake_confirms_with_a_message() -> None:
    consumer = Consumer()
    consumer.send(message(0))
    assert consumer.stream.confirmed
    assert len(consumer.take_all()) == 1


def test_an_empty_message_later_on_is_a_message() -> None:
    consumer = Consumer()
    consumer.send(b"", b"")
    assert consumer.stream.waiting == 1


def test_what_is_not_taken_grows_and_wakes_nobody_twice() -> None:
    consumer = Consumer()
    consumer.send(b"")
    consumer.send(message(0), message(1))
    consumer.send(message(2))
    assert (consumer.wakes, consumer.stream.waiting, consumer.stream.last_offset) == (2, 3, 2)
    (batch,) = consumer.take_all()
    assert batch.offsets.tolist() == [0, 1, 2]
    assert (consumer.stream.waiting, consumer.stream.waiting_bytes) == (0, 0)
    consumer.send(message(3))
    assert consumer.wakes == 3
    assert [batch.offsets.tolist() for batch in consumer.take_all()] == [[3]]
    assert consumer.stream.last_offset == 3


def test_batches_end_when_they_are_large_enough() -> None:
    consumer = Consumer(batch_bytes=1000)
    consumer.send(b"", *(message(number, b"x" * 300) for number in range(10)))
    batches = consumer.take_all()
    assert len(batches) > 2
    assert [offset for batch in batches for offset in batch.offsets.tolist()] == list(range(10))
    assert all(batch.nbytes < 2000 for batch in batches)


def test_a_slow_consumer_holds_the_server_back_and_loses_nothing() -> None:
    pair = CallPair(stream_window_bytes=100_000)
    consumer = Consumer(pair, batch_bytes=10_000, waiting_bytes_max=50_000)
    consumer.send(b"")
    total, sent, got = 2000, 0, 0
    while sent < total and not consumer.stream.is_held_back:
        consumer.send(*(message(number, b"x" * 1000) for number in range(sent, sent + 10)))
        sent += 10
    assert consumer.stream.is_held_back
    consumer.send(*(message(number, b"x" * 1000) for number in range(sent, total)))
    assert consumer.stream.waiting_bytes < 50_000 + 200_000
    while got < total:
        batch = consumer.stream.take()
        assert batch is not None
        assert batch.offsets.tolist() == list(range(got, got + len(batch)))
        got += len(batch)
        pair.exchange()
    assert not consumer.stream.is_held_back


def test_what_came_before_the_end_is_there_after_it() -> None:
    consumer = Consumer()
    consumer.server.send(b"")
    consumer.server.send(message(7))
    consumer.server.finish(EXHAUSTED, "Stop offset reached")
    consumer.pair.exchange()
    assert consumer.stream.finished
    assert (consumer.stream.status, consumer.stream.status_text) == (EXHAUSTED, "Stop offset reached")
    assert [batch.offsets.tolist() for batch in consumer.take_all()] == [[7]]
    assert consumer.stream.on_ready is None


def test_a_connection_that_is_lost_wakes_the_consumer() -> None:
    consumer = Consumer()
    consumer.send(b"", message(0))
    wakes = consumer.wakes
    consumer.pair.client.lost()
    assert (consumer.wakes, consumer.stream.status) == (wakes + 1, UNAVAILABLE)
    assert len(consumer.take_all()) == 1


@pytest.mark.parametrize("broken", [b"\x0a", b"\xff" * 9, b"\x2a\x01\xff", message(3)[:-1]])
def test_a_message_that_is_none_ends_the_call_and_what_came_before_stays(broken: bytes) -> None:
    consumer = Consumer()
    consumer.send(b"", message(0), message(1), broken, message(2))
    assert consumer.stream.status == INTERNAL
    assert "message 4 of the subscription cannot be decoded" in consumer.stream.status_text
    assert [batch.offsets.tolist() for batch in consumer.take_all()] == [[0, 1]]
    assert consumer.server.has_ended
    assert consumer.pair.faults == []


def test_a_broken_first_message_ends_the_call_too() -> None:
    consumer = Consumer()
    consumer.send(b"\xff")
    assert consumer.stream.status == INTERNAL
    assert consumer.take_all() == []


def test_batches_outlive_everything_else() -> None:
    consumer = Consumer()
    consumer.send(b"", message(5, b"value", headers={"a": b"1"}))
    (batch,) = consumer.take_all()
    first, values = batch[0], batch.value_bytes
    consumer.stream.cancel()
    del consumer, batch
    gc.collect()
    assert (first.offset, first.value, first.headers, bytes(values)) == (5, b"value", {"a": b"1"}, b"value")


def test_a_consumer_may_cancel_when_it_is_woken() -> None:
    pair = CallPair()
    stream = SubscribeClientStream(b"request")
    stream.on_ready = stream.cancel
    call = pair.open(stream)
    for data in (b"", message(0), message(1)):
        call.send(data)
    pair.exchange()
    assert stream.finished
    assert call.has_ended
    assert pair.faults == []


@examples(150)
@given(RANDOMS)
def test_messages_survive_any_cutting_and_any_pace(rng: random.Random) -> None:
    consumer = Consumer(
        CallPair(rng), batch_bytes=rng.choice((1, 500, 100_000)), waiting_bytes_max=rng.choice((0, 5000))
    )
    sent = [
        message(number, rng.randbytes(rng.choice((0, 10, 3000))), key=rng.choice((b"", b"k")))
        for number in range(rng.randrange(40))
    ]
    got = []
    consumer.send(b"")
    for data in sent:
        consumer.server.send(data)
        if rng.random() < 0.3:
            consumer.pair.exchange()
        if rng.random() < 0.3:
            got += [one for batch in consumer.take_all() for one in batch]
    consumer.server.finish(OK)
    while not consumer.stream.finished:
        consumer.pair.exchange()
        got += [one for batch in consumer.take_all() for one in batch]
    got += [one for batch in consumer.take_all() for one in batch]
    expected = [api_pb2.Message.FromString(data) for data in sent]
    assert [(one.offset, one.value, one.key or b"") for one in got] == [(m.offset, m.value, m.key) for m in expected]
