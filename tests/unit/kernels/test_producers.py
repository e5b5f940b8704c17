"""A partition's leader and idempotent producers: what is stored, what is a duplicate, and when that is said."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from bascule.log import LogOptions, SyncPolicy
from bascule.log.cleaning.cleaner import apply_retention
from bascule.producers import NUMBER_MAX, producer_headers, producer_id_fault
from bascule.proto.api_pb2 import ALL, LEADER, Ack
from tests.support.partitions import LedPartition, envelope

MUCH = b"x" * 600_000
"""What is too much to be written right where it was read."""

Scenario = Callable[[LedPartition], Awaitable[None]]


def run(directory: Path, scenario: Scenario, **options: Any) -> None:
    async def main() -> None:
        led = LedPartition(directory, **options)
        try:
            await scenario(led)
        finally:
            led.close()

    asyncio.run(main())


def message(sequence: int, policy: int = LEADER, *, who: bytes = b"p", epoch: int = 0, **more: Any) -> bytes:
    headers = producer_headers(who, epoch, sequence)
    return envelope(b"%b-%d-%d" % (who, epoch, sequence), policy, sequence, headers=headers, **more)


async def answers(led: LedPartition, count: int) -> list[tuple[int, int, bool]]:
    """(error, offset, whether it is a duplicate) of so many acks."""
    await led.until(lambda: len(led.acks) >= count)
    found = [(ack.error, ack.offset, ack.duplicate) for ack in led.acks]
    led.acks.clear()
    return found


def test_a_repetition_is_acked_with_the_offset_of_the_original(tmp_path: Path) -> None:
    async def scenario(led: LedPartition) -> None:
        led.arrives(b"before", message(0), message(1))
        assert await answers(led, 2) == [(0, 1, False), (0, 2, False)]
        led.arrives(message(0), message(2), message(1), message(2))
        assert sorted(await answers(led, 4)) == [(0, 1, True), (0, 2, True), (0, 3, False), (0, 3, True)]
        assert led.values() == [b"before", b"p-0-0", b"p-0-1", b"p-0-2"]

    run(tmp_path, scenario)


def test_a_log_that_nobody_opened_is_opened_by_the_first_producer(tmp_path: Path) -> None:
    async def first(led: LedPartition) -> None:
        led.arrives(b"a", b"b")
        await led.until(lambda: len(led.values()) == 2)

    async def second(led: LedPartition) -> None:
        led.arrives(b"c", message(0), b"d", message(0))
        assert await answers(led, 2) == [(0, 3, False), (0, 3, True)]
        assert led.values() == [b"a", b"b", b"c", b"p-0-0", b"d"]

    run(tmp_path, first)
    run(tmp_path, second, opened=False)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (message(1, who=b"other"), Ack.Error.OUT_OF_SEQUENCE),
        (message(4, epoch=7), Ack.Error.OUT_OF_SEQUENCE),
        (message(2, epoch=8), Ack.Error.OUT_OF_SEQUENCE),
        (message(3, epoch=6), Ack.Error.PRODUCER_FENCED),
        (message(0, who=b"new"), Ack.Error.OK),
        (message(5, who=b"new"), Ack.Error.OUT_OF_SEQUENCE),
        (message(0, epoch=8), Ack.Error.OK),
        (message(2, epoch=7), Ack.Error.OK),
        (envelope(b"x", LEADER, headers={"bascule-producer": b"p"}), Ack.Error.INVALID_PRODUCER),
        (envelope(b"x", LEADER, headers=producer_headers(b"p" * 65, 1, 1)), Ack.Error.INVALID_PRODUCER),
        (envelope(b"x", LEADER, headers=producer_headers(b"p", 1, NUMBER_MAX + 1)), Ack.Error.INVALID_PRODUCER),
    ],
)
def test_what_does_not_follow_is_refused_and_not_stored(tmp_path: Path, given: bytes, error: int) -> None:
    async def scenario(led: LedPartition) -> None:
        led.arrives(message(0, epoch=7), message(1, epoch=7))
        await answers(led, 2)
        led.arrives(given)
        ((found, _, _),) = await answers(led, 1)
        assert found == error
        assert len(led.values()) == 2 + (error == Ack.Error.OK)

    run(tmp_path, scenario)


def test_a_duplicate_that_wants_all_waits_for_the_disk_though_the_original_did_not(tmp_path: Path) -> None:
    async def scenario(led: LedPartition) -> None:
        led.arrives(message(0))
        assert await answers(led, 1) == [(0, 0, False)]
        assert led.log.synced_end_offset == 0
        led.disk.sync_gate.clear()
        led.arrives(message(0, ALL))
        assert led.acks == []
        led.disk.sync_gate.set()
        assert await answers(led, 1) == [(0, 0, True)]
        assert led.log.synced_end_offset == 1
        led.arrives(message(0, ALL))
        assert await answers(led, 1) == [(0, 0, True)]

    run(tmp_path, scenario, options=LogOptions(sync=SyncPolicy.ACK))


def test_a_duplicate_of_what_is_not_committed_is_not_acked(tmp_path: Path) -> None:
    async def scenario(led: LedPartition) -> None:
        led.arrives(message(0, ALL), message(0, ALL), message(0, LEADER))
        assert await answers(led, 1) == [(0, 0, True)]
        led.arrives(message(0, ALL))
        await asyncio.sleep(0.05)
        assert led.acks == []
        led.partition.stop()
        assert {ack.error for ack in led.acks} == {Ack.Error.UNKNOWN}
        assert len(led.acks) >= 3

    run(tmp_path, scenario, min_insync_replicas=2)


def test_sequences_of_a_batch_that_failed_are_free_and_nothing_behind_it_is_stored(tmp_path: Path) -> None:
    async def scenario(led: LedPartition) -> None:
        led.arrives(message(0))
        await answers(led, 1)
        led.disk.is_full = True
        led.arrives(message(1), message(2), message(1))
        assert [error for error, _, _ in await answers(led, 3)] == [Ack.Error.DISK_FULL] * 3
        led.disk.is_full = False
        led.arrives(message(2), message(0), message(1), message(2))
        assert sorted(await answers(led, 4)) == [
            (0, 0, True),
            (0, 1, False),
            (0, 2, False),
            (Ack.Error.OUT_OF_SEQUENCE, 0, False),
        ]
        assert led.values() == [b"p-0-0", b"p-0-1", b"p-0-2"]

    run(tmp_path, scenario)


def test_what_is_collected_behind_a_batch_that_fails_is_refused(tmp_path: Path) -> None:
    async def scenario(led: LedPartition) -> None:
        led.arrives(message(0))
        await answers(led, 1)
        led.disk.gate.clear()
        led.arrives(MUCH, MUCH)  # a thread writes it, and waits
        assert led.partition.appending
        led.arrives(message(1))
        led.arrives(message(2))
        led.arrives(message(1))
        led.disk.is_full = True
        led.disk.gate.set()
        await led.until(lambda: len(led.acks) == 3)
        led.disk.is_full = False
        assert {ack.error for ack in led.acks} == {Ack.Error.UNKNOWN}
        led.acks.clear()
        led.arrives(message(1))
        ((error, _, is_duplicate),) = await answers(led, 1)
        assert (error, is_duplicate) == (0, False)
        assert [value for value in led.values() if value != MUCH] == [b"p-0-0", b"p-0-1"]

    run(tmp_path, scenario)


def test_with_concurrency_control_a_duplicate_is_one_and_a_refusal_leaves_the_sequence_free(tmp_path: Path) -> None:
    async def scenario(led: LedPartition) -> None:
        led.arrives(message(0, expected_offset=0))
        led.arrives(message(0, expected_offset=0), message(1, expected_offset=5), message(1, expected_offset=1))
        assert sorted(await answers(led, 4)) == [
            (0, 0, False),
            (0, 0, True),
            (0, 1, False),
            (Ack.Error.INCORRECT_OFFSET, 0, False),
        ]

    run(tmp_path, scenario, concurrency_control=True)


def test_a_leader_that_starts_again_knows_what_the_log_holds(tmp_path: Path) -> None:
    async def first(led: LedPartition) -> None:
        led.arrives(message(0), message(0, who=b"q"), message(1))
        await answers(led, 3)

    async def second(led: LedPartition) -> None:
        led.arrives(message(1), message(0, who=b"q"), message(2), message(4))
        assert sorted(await answers(led, 4)) == [
            (0, 1, True),
            (0, 2, True),
            (0, 3, False),
            (Ack.Error.OUT_OF_SEQUENCE, 0, False),
        ]

    async def third(led: LedPartition) -> None:
        led.arrives(message(2))
        assert await answers(led, 1) == [(0, 3, True)]

    run(tmp_path, first)
    (tmp_path / "log" / "producers").unlink()  # then it is read from the log
    run(tmp_path, second)
    run(tmp_path, third)
    data = bytearray((tmp_path / "log" / "producers").read_bytes())
    data[-1] ^= 1
    (tmp_path / "log" / "producers").write_bytes(data)
    run(tmp_path, third)


def test_what_retention_removes_is_not_forgotten(tmp_path: Path) -> None:
    options = LogOptions(retention_records_max=1)

    async def first(led: LedPartition) -> None:
        for sequence in range(5):
            led.arrives(message(sequence))
            await answers(led, 1)
            led.log.roll()
        led.arrives(b"last")
        await led.until(lambda: led.log.log_end_offset == 6)  # a thread writes it where the disk was slow a moment ago
        apply_retention(led.log)
        assert led.log.log_start_offset == 5

    async def second(led: LedPartition) -> None:
        led.arrives(message(4), message(0), message(5))
        assert sorted(await answers(led, 3)) == [(0, 0, True), (0, 4, True), (0, 6, False)]

    run(tmp_path, first, options=options)
    run(tmp_path, second, options=options)


def test_a_log_that_was_cut_does_not_know_what_was_cut(tmp_path: Path) -> None:
    async def first(led: LedPartition) -> None:
        led.arrives(message(0), message(1))
        await answers(led, 2)
        led.arrives(message(2), message(3))
        await answers(led, 2)
        led.log.producers.save()

    async def second(led: LedPartition) -> None:
        led.log.truncate(3, allow_committed=True)
        led.arrives(message(3), message(2))
        assert sorted(await answers(led, 2)) == [(0, 2, True), (0, 3, False)]

    run(tmp_path, first)
    run(tmp_path, second)


@pytest.mark.parametrize("name", ["", "x" * 65, "ä" * 33, 7, "\ud800"])
def test_ids_that_are_none(name: object) -> None:
    assert producer_id_fault(name) is not None


def test_ids_that_are_good() -> None:
    assert producer_id_fault("ä" * 32) is None
