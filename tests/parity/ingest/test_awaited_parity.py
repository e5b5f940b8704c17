"""The table of awaited acks against a counter in plain Python."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from bascule.kernels.ingest.awaited import AwaitedAcks

# Few keys that share slots, so that probing and the closing of gaps are tried.
KEYS = st.one_of(st.integers(0, 40), st.integers(0, 10).map(lambda key: key << 32), st.integers(0, (1 << 64) - 1))


@given(st.lists(st.tuples(st.booleans(), KEYS), max_size=400))
def test_each_expected_ack_is_received_once(steps: list[tuple[bool, int]]) -> None:
    table, twin = AwaitedAcks(), Counter[int]()
    for is_expected, key in steps:
        if is_expected:
            table.expect(key)
            twin[key] += 1
        else:
            assert table.received(key) == (twin[key] > 0)
            twin[key] -= twin[key] > 0
        assert len(table) == sum(count > 0 for count in twin.values())


def test_many_acks_come_back_in_another_order() -> None:
    table = AwaitedAcks()
    keys = [number * 0x9E3779B97F4A7C15 % (1 << 64) for number in range(20_000)]
    for key in keys:
        table.expect(key)
    assert len(table) == len(keys)
    assert all(table.received(key) for key in reversed(keys))
    assert len(table) == 0
    assert not table.received(keys[0])


def test_memory_is_bounded() -> None:
    table = AwaitedAcks(100)
    for key in range(1_000):
        table.expect(key)
    assert (len(table), table.untracked) == (100, 900)
    assert all(table.received(key) for key in range(1_000))
    assert not table.received(0)
    assert (len(table), table.untracked) == (0, 0)
