"""kill -9 under load: what was acked or delivered is there after the restart, at its offset, with its content, at once."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.broker.broker_load import STREAMS, Load, Promises, create_streams, read_everything
from tests.support.broker_process import BrokerProcess
from tests.support.nats_server import NatsServer


class Victim:
    """A broker, and everything it ever promised."""

    def __init__(self, directory: Path, nats_url: str | None) -> None:
        self.broker = BrokerProcess(directory, nats_url=nats_url)
        self.broker.start()
        self.promises = {name: Promises() for name in STREAMS}
        self.numbers = {name: itertools.count() for name in STREAMS}
        api = self.broker.api()
        create_streams(api)
        api.close()

    def round(self, seconds: float) -> None:
        """Load for so long, then a kill in the middle of it, a restart, and the proof."""
        load = Load(self.broker, self.promises, self.numbers)
        time.sleep(seconds)  # the moment of the kill is chance; that is what is tested
        self.broker.kill()
        load.finish()
        self.broker.start()
        self.check()

    def check(self) -> None:
        api = self.broker.api()
        for name, promises in self.promises.items():
            found = read_everything(api, name)
            promises.check(found)
            assert api.partition(name).highWatermark == len(found) - 1
        api.close()

    def had_load(self, kills: int) -> bool:
        """Something between every two kills, on average."""
        acked = [len(self.promises[name].acked) for name in ("wrapped", "session")]
        return min(*acked, *(len(promises.delivered) for promises in self.promises.values())) > kills

    def counts(self) -> str:
        return ", ".join(
            f"{name}: {one.published} published, {len(one.acked)} acked, {len(one.delivered)} delivered"
            for name, one in self.promises.items()
        )


def torture(victim: Victim, go_on: Callable[[int], bool], rng: random.Random) -> None:
    kills = 0
    try:
        # A slow machine may be killed before it has done anything: then once more.
        while go_on(kills) or (kills < 30 and not victim.had_load(kills)):
            victim.round(rng.uniform(0.05, 0.9))
            kills += 1
    except BaseException:
        print(f"after {kills} kills; {victim.counts()}\n{victim.broker.tail()}")
        raise
    finally:
        victim.broker.kill()
    assert victim.had_load(kills), victim.counts()


def test_what_was_acked_or_delivered_outlives_kills(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "nats") as nats:
        torture(Victim(tmp_path / "broker", nats.url), lambda kills: kills < 6, random.Random(1))


def test_the_same_with_the_nats_server_inside(tmp_path: Path) -> None:
    torture(Victim(tmp_path / "broker", None), lambda kills: kills < 3, random.Random(3))


@pytest.mark.soak
def test_what_was_acked_or_delivered_outlives_kills_for_long(tmp_path: Path, soak_seconds: float) -> None:
    until = time.monotonic() + soak_seconds
    with NatsServer(tmp_path / "nats") as nats:
        seed = time.time_ns()
        print(f"seed {seed}")
        victim = Victim(tmp_path / "broker", nats.url)
        torture(victim, lambda _: time.monotonic() < until, random.Random(seed))
