"""When publishers get their acks, and readers see messages: the table on top of partition/replication/leading.py."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from bascule.errors import StorageError
from bascule.log import LogOptions, SyncPolicy, new_batch
from bascule.proto.api_pb2 import ALL, LEADER, Ack
from tests.support.partitions import LedPartition, envelope


def run(directory: Path, scenario: Callable[[LedPartition], Awaitable[None]], **options: object) -> None:
    async def main() -> None:
        led = LedPartition(directory, **options)  # type: ignore[arg-type]
        try:
            await scenario(led)
        finally:
            led.close()

    asyncio.run(main())


def with_sync(policy: SyncPolicy) -> LogOptions:
    return LogOptions(sync=policy)


def test_a_leader_ack_comes_with_the_append(tmp_path: Path) -> None:
    async def scenario(led: LedPartition) -> None:
        led.arrives(envelope(b"a", LEADER, 1), envelope(b"b", LEADER, 2))
        assert [(ack.correlation_id, ack.offset) for ack in led.acks] == [(b"1", 0), (b"2", 1)]
        assert led.acks[0].reception_timestamp == led.log.last_timestamp
        assert led.log.high_watermark == 1

    run(tmp_path, scenario, options=with_sync(SyncPolicy.ACK))


def test_an_all_ack_waits_for_the_disk_and_readers_do_not(tmp_path: Path) -> None:
    async def scenario(led: LedPartition) -> None:
        led.disk.sync_gate.clear()
        led.arrives(envelope(b"a", ALL))
        assert led.acks == []
        assert led.log.high_watermark == 0
        led.disk.sync_gate.set()
        await led.until(lambda: led.acks)
        assert led.log.synced_end_offset == 1

    run(tmp_path, scenario, options=with_sync(SyncPolicy.ACK))


def test_with_interval_nobody_waits(tmp_path: Path) -> None:
    async def scenario(led: LedPartition) -> None:
        led.arrives(envelope(b"a", ALL), envelope(b"b", LEADER))
        assert len(led.acks) == 2

    run(tmp_path, scenario, options=with_sync(SyncPolicy.INTERVAL))


def test_with_always_everybody_waits_and_nobody_reads_before(tmp_path: Path) -> None:
    async def scenario(led: LedPartition) -> None:
        led.disk.sync_gate.clear()
        led.arrives(envelope(b"a", ALL), envelope(b"b", LEADER))
        assert led.acks == []
        assert led.log.readable_end_offset(committed=True) == 0
        led.disk.sync_gate.set()
        await led.until(lambda: len(led.acks) == 2)
        assert led.log.readable_end_offset(committed=True) == 2

    run(tmp_path, scenario, options=with_sync(SyncPolicy.ALWAYS))


def test_with_always_a_new_leader_commits_what_was_written_and_not_synced_before_it(tmp_path: Path) -> None:
    async def scenario(led: LedPartition) -> None:
        led.disk.sync_gate.clear()
        batch = new_batch()
        batch.add(None, b"of an earlier leader")
        led.log.append(batch, leader_epoch=1)
        assert led.log.synced_end_offset == 0
        assert led.partition.log is led.log  # it begins to lead
        assert led.log.high_watermark == -1
        led.disk.sync_gate.set()
        await led.until(lambda: led.log.high_watermark == 0)

    run(tmp_path, scenario, options=with_sync(SyncPolicy.ALWAYS), opened=False)


def test_with_too_few_in_sync_replicas_nothing_is_committed(tmp_path: Path) -> None:
    async def scenario(led: LedPartition) -> None:
        led.arrives(envelope(b"a", LEADER, 1), envelope(b"b", ALL, 2))
        led.log.sync()
        await asyncio.sleep(0.05)
        assert [ack.correlation_id for ack in led.acks] == [b"1"]
        assert led.log.high_watermark == -1

    run(tmp_path, scenario, min_insync_replicas=2)


def test_when_the_disk_fails_to_sync_publishers_hear_that_nobody_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(led: LedPartition) -> None:
        def fail(_handle: int) -> None:
            raise StorageError("the disk does not sync")

        led.partition.log.open()
        monkeypatch.setattr(led.disk, "sync", fail)
        led.arrives(envelope(b"a", ALL))
        await led.until(lambda: led.acks)
        assert led.acks[0].error == Ack.Error.UNKNOWN
        led.arrives(envelope(b"b", LEADER))
        assert led.acks[1].error == Ack.Error.UNKNOWN
        monkeypatch.undo()

    run(tmp_path, scenario)


def test_who_still_waits_when_the_partition_stops_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(led: LedPartition) -> None:
        monkeypatch.setattr(led.partition.log, "call_when_synced", lambda *_: True)
        led.arrives(envelope(b"a", ALL))
        led.partition.stop()
        assert [ack.error for ack in led.acks] == [Ack.Error.UNKNOWN]

    run(tmp_path, scenario)


def test_what_an_earlier_life_wrote_is_committed_when_the_leader_starts(tmp_path: Path) -> None:
    async def first(led: LedPartition) -> None:
        led.arrives(b"a", b"b")

    async def second(led: LedPartition) -> None:
        assert led.partition.log.high_watermark == 1

    run(tmp_path, first)
    for checkpoint in (tmp_path / "log").glob("*checkpoint*"):
        checkpoint.unlink()  # as if it had been killed before it wrote one
    run(tmp_path, second)
