"""From reads of the socket to appends: who writes when, what waits where, and what happens when the disk does not follow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from threading import current_thread

import pytest

from bascule import limits
from bascule.log.disk.slowness import WRITE_SECONDS_MAX
from bascule.proto.api_pb2 import LEADER, Ack
from tests.support.partitions import LedPartition, envelope

MUCH = bytes(limits.INGEST_INLINE_BYTES // 4)


def run(directory: Path, scenario: Callable[[LedPartition], Awaitable[None]], **options: object) -> None:
    async def main() -> None:
        led = LedPartition(directory, **options)  # type: ignore[arg-type]
        try:
            await scenario(led)
        finally:
            led.close()

    asyncio.run(main())


def test_while_little_arrives_the_loop_writes_and_acks_at_once(tmp_path: Path) -> None:
    async def scenario(led: LedPartition) -> None:
        led.arrives(envelope(b"a", LEADER))
        assert led.values() == [b"a"]
        assert len(led.acks) == 1
        assert led.disk.writers == {current_thread().name}

    run(tmp_path, scenario)


def test_a_log_that_is_not_open_yet_is_opened_on_the_thread(tmp_path: Path) -> None:
    async def scenario(led: LedPartition) -> None:
        led.arrives(envelope(b"a", LEADER))
        assert led.acks == []
        await led.until(lambda: led.acks)
        assert led.disk.writers == {"bascule-writer"}
        assert led.partition.expected_end_offset == 1

    run(tmp_path, scenario, opened=False)


def test_the_expected_end_counts_what_is_on_its_way_to_the_disk(tmp_path: Path) -> None:
    async def scenario(led: LedPartition) -> None:
        for _ in range(6):
            led.arrives(MUCH)
        await led.until(lambda: led.log.log_end_offset == 6)
        led.disk.gate.clear()
        led.arrives(MUCH, MUCH)
        led.arrives(MUCH)
        assert led.log.log_end_offset == 6
        assert led.partition.expected_end_offset == 9
        led.disk.gate.set()
        await led.until(lambda: led.log.log_end_offset == 9)

    run(tmp_path, scenario)


def test_when_much_arrives_a_thread_writes(tmp_path: Path) -> None:
    async def scenario(led: LedPartition) -> None:
        for _ in range(8):
            led.arrives(MUCH)
        await led.until(lambda: led.log.log_end_offset == 8)
        assert "bascule-writer" in led.disk.writers

    run(tmp_path, scenario)


def test_after_a_slow_write_a_thread_writes_however_little_arrives(tmp_path: Path) -> None:
    async def scenario(led: LedPartition) -> None:
        led.partition.log.open()
        led.disk.write_seconds = 2 * WRITE_SECONDS_MAX
        led.arrives(b"slow")
        led.disk.write_seconds = 0
        led.disk.writers.clear()
        led.arrives(b"next")
        await led.until(lambda: led.values() == [b"slow", b"next"])
        assert led.disk.writers == {"bascule-writer"}

    run(tmp_path, scenario, clock=time.monotonic)


def test_order_is_kept_between_the_loop_and_the_thread(tmp_path: Path) -> None:
    async def scenario(led: LedPartition) -> None:
        expected = []
        for number in range(200):
            payload = b"%d" % number if number % 7 else MUCH + b"%d" % number
            expected.append(payload)
            led.arrives(payload)
            if number % 5 == 0:
                await asyncio.sleep(0)
        await led.until(lambda: led.log.log_end_offset == 200)
        assert led.values() == expected

    run(tmp_path, scenario, clock=time.monotonic)


def test_what_arrives_while_the_disk_hangs_is_read_on_up_to_the_bound(tmp_path: Path) -> None:
    async def scenario(led: LedPartition) -> None:
        for _ in range(6):
            led.arrives(MUCH)  # from here on the thread writes
        await led.until(lambda: led.log.log_end_offset == 6)
        led.disk.gate.clear()
        sent = 6
        while not led.source.is_paused:
            assert sent < 100, "the bound was never reached"
            led.arrives(MUCH)
            sent += 1
        assert led.ingest.buffered_bytes >= 4 << 20
        assert led.ingest.buffered_bytes < 6 << 20
        assert led.ingest.stats.pauses == 1
        led.disk.gate.set()
        await led.until(lambda: led.log.log_end_offset == sent)
        await led.until(lambda: not led.source.is_paused)
        assert led.ingest.buffered_bytes == 0

    run(tmp_path, scenario, buffer_bytes_max=4 << 20)


def test_a_full_disk_is_an_error_ack_and_appends_go_on_when_there_is_room(tmp_path: Path) -> None:
    async def scenario(led: LedPartition) -> None:
        led.partition.log.open()
        led.disk.is_full = True
        led.arrives(envelope(b"lost", LEADER, 1), b"lost too")
        assert [ack.error for ack in led.acks] == [Ack.Error.DISK_FULL]
        led.disk.is_full = False
        led.arrives(envelope(b"kept", LEADER, 2))
        assert [ack.error for ack in led.acks] == [Ack.Error.DISK_FULL, Ack.Error.OK]
        assert led.values() == [b"kept"]
        assert led.ingest.stats.failed_batches == 1

    run(tmp_path, scenario)


def test_behind_a_failed_batch_expected_offsets_are_counted_anew(tmp_path: Path) -> None:
    async def scenario(led: LedPartition) -> None:
        led.partition.log.open()
        led.disk.is_full = True
        led.arrives(envelope(b"a", LEADER, 1, expected_offset=0), envelope(b"b", LEADER, 2, expected_offset=1))
        led.disk.is_full = False
        led.arrives(envelope(b"b", LEADER, 3, expected_offset=1))
        led.arrives(envelope(b"a", LEADER, 4, expected_offset=0))
        errors = [(ack.correlation_id, ack.error) for ack in led.acks]
        assert errors == [
            (b"1", Ack.Error.DISK_FULL),
            (b"2", Ack.Error.DISK_FULL),
            (b"3", Ack.Error.INCORRECT_OFFSET),
            (b"4", Ack.Error.OK),
        ]
        assert led.values() == [b"a"]

    run(tmp_path, scenario, concurrency_control=True)


def test_behind_a_failed_batch_on_the_thread_nothing_lands_at_another_offset_than_expected(tmp_path: Path) -> None:
    async def scenario(led: LedPartition) -> None:
        for _ in range(6):
            led.arrives(MUCH + b"x")  # plain messages expect offset 0: all but the first are refused, but they are much
        await led.until(lambda: not led.partition.appending)
        assert led.log.log_end_offset == 1
        led.disk.gate.clear()
        led.arrives(envelope(b"first", LEADER, 1, expected_offset=1))
        led.arrives(envelope(b"second", LEADER, 2, expected_offset=2))
        led.disk.is_full = True
        led.disk.gate.set()
        await led.until(lambda: len(led.acks) == 2)
        led.disk.is_full = False
        landed = {ack.correlation_id: (ack.error, ack.offset) for ack in led.acks}
        for number, value in ((b"1", b"first"), (b"2", b"second")):
            error, offset = landed[number]
            if error == Ack.Error.OK:
                assert led.values()[offset] == value
                assert offset == int(number)

    run(tmp_path, scenario, concurrency_control=True)


def test_lingering_makes_one_batch_of_several_reads(tmp_path: Path) -> None:
    async def scenario(led: LedPartition) -> None:
        for number in range(5):
            led.arrives(b"%d" % number)
        assert led.log.log_end_offset == 0
        await led.until(lambda: led.log.log_end_offset == 5)
        assert led.ingest.stats.batches == 1

    run(tmp_path, scenario, linger_seconds=0.05)


def test_a_full_batch_does_not_linger(tmp_path: Path) -> None:
    async def scenario(led: LedPartition) -> None:
        led.arrives(*(b"%d" % number for number in range(10)))
        assert led.log.log_end_offset == 10

    run(tmp_path, scenario, linger_seconds=30.0, batch_records_max=10)


@pytest.mark.parametrize("much", [False, True])
def test_what_has_arrived_is_written_before_a_partition_goes(tmp_path: Path, much: bool) -> None:
    async def scenario(led: LedPartition) -> None:
        payload = MUCH if much else b"little"
        for _ in range(10):
            led.arrives(payload)
        await led.ingest.detach(led.partition)
        assert led.log.log_end_offset == 10

    run(tmp_path, scenario)


def test_who_publishes_to_a_partition_that_has_gone_is_told(tmp_path: Path) -> None:
    async def scenario(led: LedPartition) -> None:
        await led.ingest.detach(led.partition)
        led.arrives(envelope(b"late", LEADER))
        assert [ack.error for ack in led.acks] == [Ack.Error.UNKNOWN]
        assert led.values() == []

    run(tmp_path, scenario)


@pytest.mark.parametrize(("records_wanted", "gathers_all"), [(10_000, True), (1, False)])
def test_acked_messages_for_many_partitions_gather_while_more_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records_wanted: int, gathers_all: bool
) -> None:
    monkeypatch.setattr(limits, "INGEST_ACK_CROWD", 0)  # one partition counts as many
    monkeypatch.setattr(limits, "INGEST_ACK_GATHER_SECONDS_MAX", 60.0)
    monkeypatch.setattr(limits, "INGEST_ACK_GATHER_RECORDS", records_wanted)

    async def scenario(led: LedPartition) -> None:
        for _ in range(6):
            led.arrives(MUCH)  # a high rate
        await led.until(lambda: led.log.log_end_offset == 6)
        batches, sent = led.ingest.stats.batches, 0
        began = time.monotonic()
        while time.monotonic() - began < 20 * limits.INGEST_ACK_GATHER_SECONDS:
            sent += 1
            led.arrives(envelope(b"a", LEADER, sent))
            time.sleep(0.0002)  # so that all fit into one batch
            await asyncio.sleep(0)
        assert (led.acks == []) == gathers_all
        await led.until(lambda: len(led.acks) == sent)
        assert (led.ingest.stats.batches == batches + 1) == gathers_all

    run(tmp_path, scenario)


# ── another leader ───────────────────────────────────────────────────────────────────────────────


def test_what_arrives_for_a_frozen_partition_waits_and_is_written_in_its_order_when_it_thaws(tmp_path: Path) -> None:
    async def scenario(led: LedPartition) -> None:
        led.arrives(envelope(b"before", LEADER, 1))
        led.ingest.freeze(led.partition)
        led.arrives(envelope(b"first", LEADER, 2))
        led.arrives(b"second")
        await asyncio.sleep(4 * limits.INGEST_GATHER_SECONDS)
        assert led.values() == [b"before"]
        assert len(led.acks) == 1
        led.ingest.thaw(led.partition)
        await led.until(lambda: led.values() == [b"before", b"first", b"second"])
        assert [ack.error for ack in led.acks] == [Ack.Error.OK, Ack.Error.OK]

    run(tmp_path, scenario)


def test_once_another_leads_what_waited_and_what_still_comes_is_refused(tmp_path: Path) -> None:
    async def scenario(led: LedPartition) -> None:
        led.arrives(envelope(b"kept", LEADER, 1))
        led.ingest.freeze(led.partition)
        led.arrives(envelope(b"waited", LEADER, 2))
        led.ingest.refuse(led.partition, Ack.Error.NOT_STORED)
        led.arrives(envelope(b"late", LEADER, 3))
        assert [ack.error for ack in led.acks] == [Ack.Error.OK, Ack.Error.NOT_STORED, Ack.Error.NOT_STORED]
        assert led.values() == [b"kept"]
        assert led.ingest.buffered_bytes == 0
        led.ingest.forget(led.partition)
        led.arrives(envelope(b"later", LEADER, 4))
        assert led.acks[-1].error == Ack.Error.UNKNOWN, "nobody knows any more who else has got it"

    run(tmp_path, scenario)


def test_a_frozen_partition_that_goes_is_not_waited_for(tmp_path: Path) -> None:
    async def scenario(led: LedPartition) -> None:
        led.ingest.freeze(led.partition)
        led.arrives(envelope(b"a", LEADER))
        await asyncio.wait_for(led.ingest.detach(led.partition), 60)
        assert led.values() == [b"a"]

    run(tmp_path, scenario)
