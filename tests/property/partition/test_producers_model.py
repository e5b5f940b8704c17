"""Idempotent producers that send everything again, over a partition that fails, stops and dies: each sequence is stored once, in order.

Whatever the leader said is compared with the log: an ack that names an offset names the right one, what was acked is there, and what
was called a duplicate had been stored.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from bascule.log import LogOptions, SyncPolicy
from bascule.log.cleaning.cleaner import clean
from bascule.producers import producer_headers
from bascule.proto.api_pb2 import ALL, LEADER, Ack
from tests.support.partitions import LedPartition, envelope

SEEDS = range(12)
PRODUCERS = (b"a", b"b", b"c")

Number = tuple[bytes, int, int]


class People:
    """Producers that publish, and keep in mind what they were told."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.epochs = dict.fromkeys(PRODUCERS, 0)
        self.next = dict.fromkeys(PRODUCERS, 0)
        """The first sequence that was not acked yet."""
        self.asked: list[Number] = []
        self.acked: dict[Number, int] = {}

    def some_messages(self) -> list[bytes]:
        found = []
        for _ in range(self.rng.randint(1, 12)):
            who = self.rng.choice(PRODUCERS)
            if self.rng.random() < 0.01:
                self.epochs[who] += 1
                self.next[who] = 0
            sequence = max(0, self.next[who] + self.rng.choice((0, 0, 0, 1, 1, 2, 3, -1, -5)))
            found.append(self.message(who, sequence))
        return found

    def message(self, who: bytes, sequence: int) -> bytes:
        number = (who, self.epochs[who], sequence)
        self.asked.append(number)
        value = b"%b/%d/%d" % number
        return envelope(
            value, self.rng.choice((LEADER, ALL)), len(self.asked) - 1, headers=producer_headers(*number), key=who
        )

    def hear(self, ack: Any) -> None:
        number = self.asked[int(ack.correlation_id)]
        if ack.error == Ack.Error.OK:
            if ack.offset >= 0:
                assert self.acked.setdefault(number, ack.offset) == ack.offset, f"{number} is said to be at two places"
            else:
                assert ack.duplicate
                self.acked.setdefault(number, -1)
            who, epoch, sequence = number
            if epoch == self.epochs[who]:
                self.next[who] = max(self.next[who], sequence + 1)
        else:
            assert not ack.duplicate


async def live(
    directory: Path, rng: random.Random, people: People, options: LogOptions, seen: dict[int, bytes]
) -> None:
    """From one start of a leader to its end."""
    led = LedPartition(directory, options=options, opened=rng.random() < 0.5, batch_records_max=rng.choice((1, 3, 100)))
    heard = 0

    async def listen(patience: float) -> None:
        nonlocal heard
        with_time = asyncio.get_running_loop().time() + patience
        while asyncio.get_running_loop().time() < with_time and heard + len(led.acks) < len(people.asked):
            await asyncio.sleep(0.001)
        for ack in led.acks:
            people.hear(ack)
        heard += len(led.acks)
        led.acks.clear()

    for _ in range(rng.randint(2, 12)):
        led.disk.is_full = rng.random() < 0.15
        led.arrives(*people.some_messages(), *([b"x" * 200] * rng.choice((0, 0, 3, 2000))))
        if rng.random() < 0.7:
            await listen(0.02)
        led.disk.is_full = False
        if rng.random() < 0.15:
            await led.until(lambda: not led.partition.appending)
            note_records(led, seen)
            led.log.roll()
            clean(led.log)
    await led.until(lambda: not led.partition.appending and not led.sink.is_holding)
    await listen(0.2)
    note_records(led, seen)
    if rng.random() < 0.5:
        led.log.close = lambda: None  # type: ignore[method-assign]  # killed: nothing is written down
    led.close()


def note_records(led: LedPartition, seen: dict[int, bytes]) -> None:
    offset = led.log.log_start_offset
    while (found := led.log.read(offset, committed=False)) is not None:
        for record in found.records():
            if record.key is not None:
                assert seen.setdefault(record.offset, record.value or b"") == record.value
        offset = found.next_offset


@pytest.mark.parametrize("seed", SEEDS)
def test_each_sequence_is_stored_once_and_in_order(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    people, seen = People(rng), dict[int, bytes]()
    options = LogOptions(
        sync=rng.choice((SyncPolicy.ACK, SyncPolicy.INTERVAL, SyncPolicy.ALWAYS)),
        segment_bytes_max=rng.choice((2_000, 1 << 20)),
        retention_records_max=rng.choice((0, 50)),
        compact=rng.random() < 0.3,
    )
    for _ in range(rng.randint(1, 4)):
        asyncio.run(live(tmp_path, rng, people, options, seen))
    stored: dict[tuple[bytes, int], list[int]] = defaultdict(list)
    for _, value in sorted(seen.items()):
        name, epoch, sequence = value.split(b"/")
        stored[name, int(epoch)].append(int(sequence))
    for one, sequences in stored.items():
        assert sequences == list(range(len(sequences))), one
    for number, offset in people.acked.items():
        assert number[2] < len(stored[number[:2]]), "acked, and not there"
        assert offset == -1 or seen[offset] == b"%b/%d/%d" % number
    assert stored, "nothing happened"
