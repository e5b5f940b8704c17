"""Calls of one client do not delay the calls of others: few begin in a turn that takes long, and connections take turns."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from bascule import limits
from bascule.net.grpc.turns import CALLS_FIRST, CallTurns, ReadTurns


class Turns:
    """The callbacks of a loop, run one turn after another, on a clock of the test's own."""

    def __init__(self) -> None:
        self.ready: list[object] = []
        self.now = 0.0
        self.begun: list[str] = []
        loop = SimpleNamespace(call_soon=self.ready.append)
        self.calls = CallTurns(loop, lambda: self.now)  # type: ignore[arg-type]

    def begin(self, connection: str, call: object = SimpleNamespace(closed=False)) -> None:
        self.calls.begin(connection, call, lambda: self.begun.append(connection))  # type: ignore[arg-type]

    def turn(self, seconds: float) -> list[str]:
        """What began in a turn that took so long."""
        self.now += seconds
        before, ready = len(self.begun), list(self.ready)
        self.ready.clear()
        for callback in ready:
            callback()  # type: ignore[operator]
        return self.begun[before:]


def test_many_calls_begin_over_several_turns() -> None:
    turns = Turns()
    for _ in range(1000):
        turns.begin("a")
    assert len(turns.begun) == CALLS_FIRST
    assert [len(turns.turn(0.001)) for _ in range(6)] == [8, 16, 32, 64, 64, 64]


def test_one_call_begins_in_a_turn_while_turns_are_slow() -> None:
    turns = Turns()
    for _ in range(100):
        turns.begin("a")
    slow = 2 * limits.GRPC_CALLS_TURN_SECONDS
    assert [len(turns.turn(slow)) for _ in range(5)] == [2, 1, 1, 1, 1]


def test_connections_take_turns() -> None:
    turns = Turns()
    for _ in range(100):
        turns.begin("greedy")
    turns.begin("modest")
    assert turns.turn(1.0) == ["greedy", "modest"]


def test_closed_calls_do_not_begin_and_do_not_count() -> None:
    turns = Turns()
    for _ in range(CALLS_FIRST):
        turns.begin("a")
    for _ in range(100):
        turns.begin("b", SimpleNamespace(closed=True))
    turns.begin("b")
    assert turns.turn(1.0) == ["b"]


def test_nothing_is_scheduled_when_nothing_waits() -> None:
    turns = Turns()
    turns.begin("a")
    turns.turn(0.001)
    turns.turn(0.001)
    assert not turns.ready


def test_connections_with_a_backlog_go_on_one_after_another() -> None:
    async def run() -> list[str]:
        turns, order = ReadTurns(), list[str]()

        class Slow:
            def __init__(self, name: str) -> None:
                self.name, self.left = name, 3

            def go_on(self) -> None:
                order.append(self.name)
                self.left -= 1
                if self.left:
                    turns.add(self)

        turns.add(Slow("a"))
        turns.add(Slow("b"))
        for _ in range(10):
            await asyncio.sleep(0)
        return order

    assert asyncio.run(run()) == ["a", "b", "a", "b", "a", "b"]
