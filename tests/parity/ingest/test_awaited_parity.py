"""The queues of awaited acks against a counter in plain Python."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from bascule.kernels.ingest.awaited import AwaitedAcks

# Few partitions and keys that share slots, so that probing and the closing of gaps are tried. A key names its partition, as hashes do.
PARTITIONS = st.one_of(st.integers(0, 3), st.integers(0, 3).map(lambda partition: partition << 32))
KEYS = st.one_of(st.integers(0, 20), st.integers(0, 5).map(lambda key: key << 32))


def key_of(partition: int, key: int) -> int:
    return key << 8 | partition % 251


@given(st.lists(st.tuples(st.booleans(), PARTITIONS, KEYS), max_size=400))
def test_each_expected_ack_is_received_once(steps: list[tuple[bool, int, int]]) -> None:
    acks, twin = AwaitedAcks(), Counter[int]()
    for is_expected, partition, number in steps:
        key = key_of(partition, number)
        if is_expected:
            acks.expect(partition, key)
            twin[key] += 1
        else:
            assert acks.received(partition, key) == (twin[key] > 0)
            twin[key] -= twin[key] > 0
        assert len(acks) == twin.total()


def test_acks_of_many_partitions_each_in_order() -> None:
    acks = AwaitedAcks()
    for turn in range(3):
        for number in range(20_000):
            acks.expect(number % 500, number)
        assert len(acks) == 20_000, turn
        for partition in range(500):
            for number in range(partition, 20_000, 500):
                assert acks.received(partition, number)
                assert not acks.received(partition, number)
        assert len(acks) == 0, turn


def test_many_acks_come_back_in_another_order() -> None:
    acks = AwaitedAcks()
    keys = [number * 0x9E3779B97F4A7C15 % (1 << 64) for number in range(20_000)]
    for key in keys:
        acks.expect(7, key)
    assert len(acks) == len(keys)
    assert all(acks.received(7, key) for key in reversed(keys))
    assert len(acks) == 0
    assert not acks.received(7, keys[0])


def test_acks_that_were_overtaken_come_back_in_any_order() -> None:
    acks, rng = AwaitedAcks(), random.Random(1)
    keys = [rng.getrandbits(64) for _ in range(5_000)]
    for key in keys:
        acks.expect(7, key)
    assert acks.received(7, keys.pop())
    rng.shuffle(keys)
    for key in keys:
        assert acks.received(7, key)
        assert not acks.received(7, key)
    assert len(acks) == 0


def test_an_ack_that_never_comes_does_not_hold_up_the_others() -> None:
    acks = AwaitedAcks()
    for number in range(100_000):
        acks.expect(7, number)
    assert all(acks.received(7, number) for number in range(1, 100_000))
    assert len(acks) == 1
    assert acks.received(7, 0)


def test_partitions_that_are_no_longer_used_are_forgotten() -> None:
    acks = AwaitedAcks()
    acks.expect(1 << 40, 5)
    for partition in range(50_000):
        acks.expect(partition, partition)
        assert acks.received(partition, partition)
    assert acks.received(1 << 40, 5)
    assert acks.queues_kept <= 64


def test_memory_is_bounded() -> None:
    acks = AwaitedAcks(100)
    for key in range(1_000):
        acks.expect(key % 3, key)
    assert (len(acks), acks.untracked) == (100, 900)
    assert all(acks.received(key % 3, key) for key in range(1_000))
    assert not acks.received(0, 0)
    assert (len(acks), acks.untracked) == (0, 0)
