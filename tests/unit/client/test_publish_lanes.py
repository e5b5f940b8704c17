"""What a lane sends again, in which order, and what it reports when it gives up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, cast

import pytest

from bascule.client.connection.failures import unknown_outcome
from bascule.client.connection.retry import LEADER_CHECK_SECONDS
from bascule.client.publish.carrier import Carrier, Parcel, Route
from bascule.client.publish.engine import Engine
from bascule.client.publish.lane import Lane
from bascule.client.publish.numbering import NumberedLane, Numbering
from bascule.client.publish.resend_rule import NEVER, ResendRule
from bascule.errors import (
    BasculeError,
    IncorrectOffset,
    OutcomeUnknown,
    OutOfSequence,
    ProducerFenced,
    RecordTooLarge,
    Unavailable,
)
from bascule.kernels.window.message import PublishMessage
from bascule.kernels.window.window import PublishTarget

UNKNOWN = unknown_outcome("the message was sent", "the connection was lost")


class FakeCarrier(Carrier):
    """Keeps what is posted; the test answers."""

    def __init__(self) -> None:
        self.posted: list[PublishMessage] = []
        self.is_retired = False

    @property
    def is_usable(self) -> bool:
        return not self.is_retired

    def post(self, message: PublishMessage, _headers: dict[str, bytes] | None, _until: float) -> bool:
        self.posted.append(message)
        return True

    def pending(self) -> list[Parcel]:
        return [message for message in self.posted if message.carrier is self]

    async def wait_for_room(self, _deadline: Any) -> None:
        return

    def retire(self) -> None:
        self.is_retired = True

    @property
    def values(self) -> list[bytes]:
        return [message.value for message in self.posted]


class FakeRoutes:
    def __init__(self) -> None:
        self.carrier = FakeCarrier()
        self.old: list[FakeCarrier] = []
        self.leader = "a"

    def ready(self, _stream: str, _partition: int) -> Route | None:
        return Route(self.carrier, self.leader) if self.carrier.is_usable else None

    async def get(self, _stream: str, _partition: int, _deadline: Any) -> Route:
        return Route(self.carrier, self.leader)

    async def has_moved(self, _stream: str, _partition: int, led_by: str) -> bool:
        return led_by != self.leader

    def carriers(self) -> list[Carrier]:
        return [self.carrier, *self.old]

    def close(self) -> None:
        return

    def move(self, leader: str) -> FakeCarrier:
        """Another broker leads; the one before hangs."""
        self.carrier.retire()
        self.old.append(self.carrier)
        self.carrier, self.leader = FakeCarrier(), leader
        return self.carrier


class FakeBrokers:
    def forget(self, _stream: str) -> None:
        return


class World:
    def __init__(self) -> None:
        self.routes = FakeRoutes()
        self.failures: list[BasculeError] = []
        self.engine = Engine(cast(Any, FakeBrokers()), self.routes, self.failures.append)

    def lane(self, rule: ResendRule, partition: int = 0) -> Lane:
        return Lane(self.engine, PublishTarget("s", partition, 1), rule)

    def send(self, lane: Lane, *values: bytes, seconds: float = 30.0, expected: int = -1) -> list[PublishMessage]:
        loop = asyncio.get_running_loop()
        messages = [
            PublishMessage(lane, value, None, None, expected, loop.create_future(), monotonic() + seconds)
            for value in values
        ]
        assert all(lane.try_send(message) for message in messages)
        return messages


def on_world(test: Callable[[World], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        async def scenario() -> None:
            world = World()
            await asyncio.wait_for(test(world), 30)
            await world.engine.close()

        asyncio.run(scenario())

    run.__name__ = test.__name__
    return run


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def fail(message: PublishMessage, error: BasculeError, carrier: Carrier) -> None:
    message.lane.failed(message, carrier, error)


@pytest.mark.parametrize(
    ("error", "rule", "expected_offset", "again"),
    [
        (Unavailable("x"), ResendRule(), -1, True),
        (Unavailable("x"), ResendRule(unknown=True), 5, True),
        (Unavailable("x"), NEVER, -1, False),
        (OutcomeUnknown("x"), ResendRule(), -1, False),
        (OutcomeUnknown("x"), ResendRule(unknown=True), -1, True),
        (OutcomeUnknown("x"), ResendRule(unknown=True), 5, False),
        (OutcomeUnknown("x"), NEVER, -1, False),
        (RecordTooLarge("x"), ResendRule(unknown=True), -1, False),
    ],
)
def test_which_messages_are_sent_again(
    error: BasculeError, rule: ResendRule, expected_offset: int, again: bool
) -> None:
    assert rule.resends(error, expected_offset) == again


@on_world
async def test_the_oldest_is_sent_again_first_whatever_failed_first(world: World) -> None:
    lane, carrier = world.lane(ResendRule()), world.routes.carrier
    sent = world.send(lane, b"0", b"1", b"2", b"3")
    for place in (2, 0, 3):
        fail(sent[place], Unavailable("refused"), carrier)
    newer = PublishMessage(lane, b"4", None, None, -1, asyncio.get_running_loop().create_future(), monotonic() + 9)
    assert not lane.try_send(newer), "older messages go first"
    await lane.send(newer)
    assert carrier.values == [b"0", b"1", b"2", b"3", b"0", b"2", b"3", b"4"]
    assert not world.failures


@on_world
async def test_nothing_is_kept_of_messages_that_were_acked(world: World) -> None:
    lane = world.lane(ResendRule(unknown=True))
    for message in world.send(lane, *[b"x"] * 1000):
        message.settle(None)
        message.settle(None)  # a second ack, of another attempt
    assert lane.in_flight == 0
    await lane.wait_until_settled()


@on_world
async def test_the_failure_of_an_earlier_attempt_does_not_count(world: World) -> None:
    lane, old = world.lane(ResendRule(unknown=True)), world.routes.carrier
    (message,) = world.send(lane, b"0")
    new = world.routes.move("b")
    message.withdraw(UNKNOWN)
    await until(lambda: bool(new.posted))
    fail(message, RecordTooLarge("late"), old)
    assert not message.future.done()
    message.settle(None)
    assert message.future.result() is None
    fail(message, Unavailable("late"), new)
    assert lane.in_flight == 0


@on_world
async def test_only_messages_of_the_leader_that_was_replaced_are_taken_back(world: World) -> None:
    lanes = [world.lane(ResendRule(unknown=True)), world.lane(ResendRule())]
    old = world.routes.carrier
    for lane in lanes:
        world.send(lane, b"0", b"1")
    for message in old.posted:
        message.sent_at -= 2 * LEADER_CHECK_SECONDS
    new = world.routes.move("b")
    await until(lambda: len(new.posted) == 2)
    assert [message.lane for message in new.posted] == [lanes[0]] * 2, "the other lane sends nothing again"
    assert new.values == [b"0", b"1"]
    assert [message.led_by for message in new.posted] == ["b", "b"]


@on_world
async def test_a_message_that_may_be_stored_ends_as_an_unknown_outcome(world: World) -> None:
    lane, carrier = world.lane(ResendRule(unknown=True)), world.routes.carrier
    stored, _ = world.send(lane, b"0", b"1", seconds=0.2)
    fail(stored, UNKNOWN, carrier)
    while not stored.future.done():
        await asyncio.sleep(0.01)
        fail(stored, Unavailable("the leader hands over"), carrier)
    with pytest.raises(OutcomeUnknown, match="the leader hands over"):
        await stored.future
    assert [type(error) for error in world.failures] == [OutcomeUnknown]


@on_world
async def test_closing_leaves_no_message_without_an_answer(world: World) -> None:
    lane, carrier = world.lane(ResendRule()), world.routes.carrier
    (message,) = world.send(lane, b"0")
    fail(message, Unavailable("refused"), carrier)
    await world.engine.close()
    with pytest.raises(OutcomeUnknown, match="closed"):
        await message.future


# ── numbers ──────────────────────────────────────────────────────────────────────────────────────


def numbers(carrier: FakeCarrier) -> list[tuple[bytes, int]]:
    return [(message.value, message.sequence) for message in carrier.posted]


@on_world
async def test_a_numbered_lane_waits_for_all_answers_and_goes_back(world: World) -> None:
    lane = NumberedLane(world.engine, PublishTarget("s", 0, 1), Numbering(b"me", 0, owns_epoch=True))
    carrier = world.routes.carrier
    sent = world.send(lane, b"0", b"1", b"2")
    fail(sent[0], UNKNOWN, carrier)
    await asyncio.sleep(0.2)
    assert len(carrier.posted) == 3, "two answers are still to come"
    for message in sent[1:]:
        fail(message, OutOfSequence("a gap"), carrier)
    await until(lambda: len(carrier.posted) == 6)
    assert numbers(carrier)[3:] == [(b"0", 0), (b"1", 1), (b"2", 2)]
    assert lane.headers(sent[2])["bascule-epoch"] == b"0"


@on_world
async def test_a_refused_message_ends_the_epoch(world: World) -> None:
    lane = NumberedLane(world.engine, PublishTarget("s", 0, 1), Numbering(b"me", 7, owns_epoch=True))
    carrier = world.routes.carrier
    sent = world.send(lane, b"0", b"1", b"2", b"3")
    sent[0].settle(None)
    fail(sent[1], IncorrectOffset("no"), carrier)
    fail(sent[2], UNKNOWN, carrier)
    fail(sent[3], OutOfSequence("a gap"), carrier)
    await until(lambda: len(carrier.posted) == 5)
    assert numbers(carrier)[4:] == [(b"3", 0)]
    assert lane.headers(sent[3])["bascule-epoch"] == b"8"
    assert [type(message.future.exception()) for message in sent[1:3]] == [IncorrectOffset, OutcomeUnknown]


@on_world
async def test_a_fenced_producer_publishes_nothing_more(world: World) -> None:
    lane = NumberedLane(world.engine, PublishTarget("s", 0, 1), Numbering(b"me", 7, owns_epoch=True))
    sent = world.send(lane, b"0", b"1")
    for message in sent:
        fail(message, ProducerFenced("newer epoch"), world.routes.carrier)
    await until(lambda: all(message.future.done() for message in sent))
    with pytest.raises(ProducerFenced):
        world.engine.check_open()
