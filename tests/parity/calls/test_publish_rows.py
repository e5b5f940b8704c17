"""Rows published under one ack inbox: each goes out as its own envelope, and each ack finds its row, in whatever order acks come."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given

from bascule.kernels.calls import publish_rows as kernel
from bascule.kernels.calls.publish import PublishGate, Targets
from bascule.kernels.calls.publish_rows import RowPublisher
from bascule.kernels.envelope.ack_object import Ack
from bascule.kernels.ingest.acks import AckRouter, AckSink
from bascule.kernels.nats.protocol import NatsReader
from bascule.proto.api_pb2 import AckPolicy, PublishRequest
from tests.parity.ingest.test_acks_rules import EMPTY
from tests.parity.inputs.ingest_helpers import PREFIX, feed, new_reader, published
from tests.parity.inputs.strategies import RANDOMS, examples
from tests.parity.twins.twin_ingest import NatsMessage
from tests.support.kernels.message_objects import ack_envelope, parse_publish_envelope

ALL_ROWS = 1 << 30


class Shell:
    """What a gate wants of the event loop; nothing of it is needed here but that it may be asked."""

    def __getattr__(self, _name: str) -> Any:
        return lambda *_arguments: None


class World:
    def __init__(self, output_bytes_max: int = 1 << 20) -> None:
        self.router = AckRouter(PREFIX)
        self.reader: NatsReader = new_reader(AckSink(self.router))
        self.targets = Targets()
        self.gate = PublishGate(
            targets=self.targets,
            nats=self.reader,
            receivers=self.router.receivers,
            inbox_prefix=PREFIX,
            shell=Shell(),
            payload_bytes_max=1_000,
            output_bytes_max=output_bytes_max,
            unread_bytes_max=1 << 20,
        )
        self.wakes = 0
        self.target()

    def target(self, **options: bool) -> None:
        state = {"paused": False, "readonly": False, "concurrency_control": False, **options}
        self.targets.set("orders", 0, "orders.subject", **state)

    def publisher(self, *values: bytes, **fields: Any) -> RowPublisher:
        return RowPublisher(self.gate, [request(value, **fields) for value in values], self.wake)

    def wake(self) -> None:
        self.wakes += 1

    def ack(self, inbox: bytes, row: bytes, offset: int, error: int = 0) -> None:
        ack: Ack = EMPTY._replace(offset=offset, ack_inbox=inbox, correlation_id=row, error=error)
        feed(self.reader, [NatsMessage(inbox, ack_envelope(ack))])

    def sent(self) -> list[Any]:
        envelopes = [parse_publish_envelope(payload) for _, payload in published(self.reader)]
        assert all(one is not None for one in envelopes)
        return envelopes


def request(value: bytes, **fields: Any) -> bytes:
    given = {"stream": "orders", "ackPolicy": AckPolicy.ALL, "expectedOffset": -1, **fields}
    return PublishRequest(value=value, **given).SerializeToString()


@pytest.fixture
def world() -> World:
    return World()


def test_each_row_is_a_message_that_carries_its_number(world: World) -> None:
    rows = world.publisher(*(b"v%d" % number for number in range(12)), key=b"k", headers={"h": b"1"})
    assert rows.send(ALL_ROWS, 100, 1 << 20) == kernel.SENT
    sent = world.sent()
    assert [(one.value, one.key, one.correlation_id) for one in sent] == [
        (b"v%d" % number, b"k", b"%d" % number) for number in range(12)
    ]
    assert len({one.ack_inbox for one in sent}) == 1
    assert (rows.sent, rows.unacked, rows.acked, rows.offsets()) == (12, 12, 0, [-1] * 12)
    rows.close()
    assert not world.router.receivers


@examples(200)
@given(RANDOMS)
def test_acks_in_any_order_find_their_rows(rng: random.Random) -> None:
    """Against a model: a dict of what waits. Acks that are nobody's, or come twice, change nothing."""
    world = World()
    values = [b"x" * rng.randint(0, 50) for _ in range(rng.randint(1, 30))]
    sizes = [len(request(value)) for value in values]
    rows = world.publisher(*values)
    window, window_bytes = rng.randint(1, 10), rng.choice((1, 200, 1 << 20))
    waiting: dict[int, int] = {}
    offsets = [-1] * len(values)
    inbox = b""
    while rows.sent < len(values) or waiting:
        before = rows.sent
        assert rows.send(rng.randint(1, 5), window, window_bytes) == kernel.SENT
        for one in world.sent():
            inbox = one.ack_inbox
            waiting[int(one.correlation_id)] = sizes[int(one.correlation_id)]
        assert len(waiting) <= window
        assert len(waiting) == 1 or sum(waiting.values()) <= window_bytes or rows.sent == before
        assert (rows.unacked, rows.unacked_bytes) == (len(waiting), sum(waiting.values()))
        for _ in range(rng.randint(0, 4)):
            row = rng.choice([*waiting, rng.randint(0, 40)])
            text = rng.choice((b"%d" % row, b"%d" % row, b"%d" % row, b"", b"-1", b"1x", b"9" * 30))
            offset = rng.randint(0, 1000)
            world.ack(inbox, text, offset)
            if text == b"%d" % row and row in waiting:
                del waiting[row]
                offsets[row] = offset
    assert rows.offsets() == offsets
    assert (rows.acked, rows.unacked, rows.unacked_bytes) == (len(values), 0, 0)


def test_nothing_is_sent_beyond_what_nats_has_taken() -> None:
    world = World(output_bytes_max=200)
    rows = world.publisher(*[b"x" * 100] * 10)
    assert rows.send(ALL_ROWS, 100, 1 << 20) == kernel.SENT
    assert 0 < rows.sent < 10
    world.sent()
    before = rows.sent
    rows.send(ALL_ROWS, 100, 1 << 20)
    assert rows.sent > before


def test_whoever_waits_is_woken_once_when_few_enough_are_left(world: World) -> None:
    rows = world.publisher(*[b"x"] * 4)
    rows.send(ALL_ROWS, 100, 1 << 20)
    inbox = world.sent()[0].ack_inbox
    assert rows.wait(2)
    world.ack(inbox, b"0", 0)
    assert world.wakes == 0
    for row in (b"1", b"2", b"3"):
        world.ack(inbox, row, 1)
    assert world.wakes == 1
    assert not rows.wait(0)


def test_an_ack_that_says_an_error_ends_it(world: World) -> None:
    rows = world.publisher(*[b"x"] * 4)
    rows.send(3, 100, 1 << 20)
    inbox = world.sent()[0].ack_inbox
    assert rows.wait(0)
    world.ack(inbox, b"1", 0, error=3)
    assert (world.wakes, rows.error, rows.acked) == (1, 3, 0)
    rows.send(ALL_ROWS, 100, 1 << 20)
    assert rows.sent == 3
    assert not rows.wait(0)


def test_a_lost_connection_is_told_to_who_waits(world: World) -> None:
    rows, idle = world.publisher(b"x", b"y"), world.publisher(b"z")
    rows.send(1, 100, 1 << 20)
    assert rows.wait(0)
    world.gate.connection_lost()
    assert (world.wakes, rows.is_lost, idle.is_lost) == (1, True, False)
    rows.send(ALL_ROWS, 100, 1 << 20)
    assert rows.sent == 1


@pytest.mark.parametrize(
    ("options", "fields", "verdict"),
    [
        ({"paused": True}, {}, kernel.PAUSED),
        ({"readonly": True}, {}, kernel.READONLY),
        ({}, {"partition": 7}, kernel.NO_PARTITION),
        ({}, {"stream": "unknown"}, kernel.NO_PARTITION),
        ({}, {"ackPolicy": AckPolicy.NONE}, kernel.MALFORMED),
    ],
)
def test_rows_that_cannot_be_published_are_refused(
    world: World, options: dict[str, bool], fields: dict[str, Any], verdict: int
) -> None:
    world.target(**options)
    rows = world.publisher(b"x", **fields)
    assert rows.send(1, 1, 1) == verdict
    assert (rows.sent, rows.unacked, world.sent()) == (0, 0, [])


def test_rows_that_are_too_large_or_no_requests_are_refused(world: World) -> None:
    rows = world.publisher(b"x", b"x" * 2_000)
    assert rows.send(ALL_ROWS, 100, 1 << 20) == kernel.TOO_LARGE
    assert rows.sent == 1
    broken = RowPublisher(world.gate, [b"\xff\xff"], world.wake)
    assert broken.send(1, 1, 1) == kernel.MALFORMED
    world.reader.connected = False
    assert world.publisher(b"x").send(1, 1, 1) == kernel.DISCONNECTED
    with pytest.raises(TypeError):
        RowPublisher(world.gate, ["text"], world.wake).send(1, 1, 1)  # type: ignore[list-item]


def test_an_ack_for_what_was_closed_is_nobodys(world: World) -> None:
    rows = world.publisher(b"x")
    rows.send(1, 1, 1 << 20)
    inbox = world.sent()[0].ack_inbox
    rows.wait(0)
    rows.close()
    world.ack(inbox, b"0", 5)
    assert (world.wakes, rows.offsets(), world.router.unknown) == (0, [-1], 1)
