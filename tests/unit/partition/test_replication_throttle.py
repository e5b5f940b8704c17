"""Replicas that catch up are sent so much in a second, and what was too much is waited for."""

from __future__ import annotations

from bascule.partition.replication.throttle import Throttle


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_what_was_spent_is_waited_for() -> None:
    clock = Clock()
    throttle = Throttle(lambda: 1000, clock)
    assert throttle.delay_seconds() == 0
    throttle.spend(3000)
    assert throttle.delay_seconds() == 3
    clock.now += 2
    assert throttle.delay_seconds() == 1
    clock.now += 5
    assert throttle.delay_seconds() == 0


def test_idle_time_is_not_saved_up() -> None:
    clock = Clock()
    throttle = Throttle(lambda: 1000, clock)
    clock.now += 3600
    throttle.spend(500)
    assert throttle.delay_seconds() == 0.5


def test_another_rate_holds_at_once() -> None:
    clock = Clock()
    rate = 1000
    throttle = Throttle(lambda: rate, clock)
    throttle.spend(10_000)
    rate = 10_000
    assert throttle.delay_seconds() == 1
    rate = 0
    assert throttle.delay_seconds() == 0
    rate = 1
    assert throttle.delay_seconds() == 0, "a debt from before there was no bound is forgotten"
