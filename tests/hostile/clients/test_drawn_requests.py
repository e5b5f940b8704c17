"""Requests drawn from seeds over every RPC, HTTP path and Flight call, while another client publishes."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests.support.api_client import Api, pb
from tests.support.broker_fixtures import StartBroker
from tests.support.broker_process import BrokerProcess
from tests.support.bystander import Observed, watched
from tests.support.hostile_requests import STREAMS, attack_flight, attack_grpc, attack_http
from tests.support.tables import SERVING

LATENCY_SECONDS: Final = 3.0
STRICT_LATENCY_SECONDS: Final = 0.25
RSS_BYTES: Final = 512 << 20
FLIGHT_RSS_BYTES: Final = RSS_BYTES + (128 << 20)
"""A broker that serves tables has Arrow's libraries and its memory pool beside the rest."""

ATTACKS_DRAWN: Final = 25
"""Attacks of each of two clients in `make test`."""


@pytest.fixture
def victim(start_broker: StartBroker) -> Iterator[tuple[BrokerProcess, Api]]:
    broker = start_broker(SERVING)
    api = broker.api()
    api.CreateStream(name=STREAMS[0], subject="wide.subject", partitions=1000)
    api.CreateStream(name=STREAMS[1], subject="small.subject")
    for _ in range(100):
        api.Publish(stream=STREAMS[1], value=bytes(1000), ackPolicy=pb.LEADER)
    yield broker, api
    api.close()
    assert broker.is_running, broker.tail()


def attack(broker: BrokerProcess, seed: int, goes_on: Callable[[int], bool], done: list[str]) -> None:
    """Attacks of one client, one after another."""
    chance = random.Random(seed)
    number = 0
    while goes_on(number):
        kind = chance.random()
        if kind < 0.7:
            done.append(attack_grpc(chance, broker.address))
        elif kind < 0.85:
            done.append(attack_http(chance, broker.http_address))
        else:
            done.append(attack_flight(chance, broker.flight_address))
        number += 1


def under_attack(
    victim: tuple[BrokerProcess, Api], seeds: list[int], goes_on: Callable[[int], bool]
) -> tuple[Observed, list[str]]:
    broker, api = victim
    done: list[str] = []
    attackers = [threading.Thread(target=attack, args=(broker, seed, goes_on, done)) for seed in seeds]
    with watched(broker, api, "bystander") as seen:
        for one in attackers:
            one.start()
        for one in attackers:
            one.join()
    return seen, done


def test_drawn_requests_keep_no_other_client_waiting(victim: tuple[BrokerProcess, Api]) -> None:
    seen, done = under_attack(victim, [1, 2], lambda number: number < ATTACKS_DRAWN)
    assert len(done) == 2 * ATTACKS_DRAWN
    seen.check(p99_seconds=LATENCY_SECONDS, rss_bytes=FLIGHT_RSS_BYTES)


@pytest.mark.soak
def test_soak_drawn_requests(victim: tuple[BrokerProcess, Api], soak_seconds: float) -> None:
    """For minutes, with new seeds: p99 below 250 ms and bounded memory."""
    seed, end = time.time_ns(), time.monotonic() + soak_seconds
    seen, done = under_attack(victim, [seed, seed + 1, seed + 2], lambda _: time.monotonic() < end)
    print(f"seed {seed}: {len(done)} attacks, p99 {seen.p99():.3f} s, {seen.rss_bytes_max >> 20} MiB, {seen.slowest()}")
    assert seen.p99() < STRICT_LATENCY_SECONDS
    assert seen.rss_bytes_max < FLIGHT_RSS_BYTES
