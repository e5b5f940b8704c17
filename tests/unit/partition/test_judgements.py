"""A leader refuses a message because of its log only if it still leads; otherwise the outcome is unknown."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bascule import limits
from bascule.partition.replication.judgements import JudgedPartition
from bascule.proto.api_pb2 import Ack
from tests.support.partitions import LedPartition, envelope

LEADER = 0
ONE_OF_TWO = {"replicas": ("me", "other"), "concurrency_control": True}


class Metadata:
    """Answers when a test lets it."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self._answers: asyncio.Queue[bool] = asyncio.Queue()

    async def still_lead(self, partitions: list[JudgedPartition]) -> list[bool]:
        self.asked.append([f"{one.stream}/{one.number} in epoch {one.leader_epoch}" for one in partitions])
        return [await self._answers.get()] * len(partitions)

    def answer(self, is_leader: bool) -> None:
        self._answers.put_nowait(is_leader)


def errors(led: LedPartition) -> list[tuple[bytes, int]]:
    return [(ack.correlation_id, ack.error) for ack in led.acks]


@pytest.mark.parametrize(("is_leader", "error"), [(True, Ack.Error.INCORRECT_OFFSET), (False, Ack.Error.UNKNOWN)])
def test_a_judgement_waits_for_the_metadata(tmp_path: Path, is_leader: bool, error: int) -> None:
    async def scenario() -> None:
        metadata = Metadata()
        led = LedPartition(tmp_path, still_lead=metadata.still_lead, **ONE_OF_TWO)  # type: ignore[arg-type]
        try:
            led.arrives(
                envelope(b"stored", LEADER, 1, expected_offset=0), envelope(b"not", LEADER, 2, expected_offset=5)
            )
            await led.until(lambda: bool(metadata.asked))
            assert errors(led) == [(b"1", Ack.Error.OK)]
            assert metadata.asked == [["orders/0 in epoch 1"]]
            led.arrives(envelope(b"later", LEADER, 3, expected_offset=9))
            metadata.answer(is_leader)
            await led.until(lambda: len(led.acks) == 2)
            assert errors(led)[1] == (b"2", error)
            await led.until(
                lambda: len(metadata.asked) == 2
            )  # the first answer says nothing of what was judged after the question
            metadata.answer(True)
            await led.until(lambda: len(led.acks) == 3)
            assert errors(led)[2] == (b"3", Ack.Error.INCORRECT_OFFSET)
            assert led.values() == [b"stored"]
        finally:
            led.close()

    asyncio.run(scenario())


def test_the_only_replica_judges_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        metadata = Metadata()
        led = LedPartition(tmp_path, still_lead=metadata.still_lead, concurrency_control=True)
        try:
            led.arrives(envelope(b"not", LEADER, 1, expected_offset=5))
            assert errors(led) == [(b"1", Ack.Error.INCORRECT_OFFSET)]
            assert not metadata.asked
        finally:
            led.close()

    asyncio.run(scenario())


def test_judgements_that_wait_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        metadata = Metadata()
        led = LedPartition(tmp_path, still_lead=metadata.still_lead, **ONE_OF_TWO)  # type: ignore[arg-type]
        try:
            led.arrives(envelope(b"asked", LEADER, 0, expected_offset=5))
            await led.until(lambda: bool(metadata.asked))
            for number in range(1, 4):
                led.arrives(envelope(b"waits", LEADER, number, expected_offset=5))
            assert errors(led) == [(b"3", Ack.Error.UNKNOWN)]
            for _ in range(2):
                metadata.answer(True)
            await led.until(lambda: len(led.acks) == 4)
            assert errors(led)[1:] == [(b"%d" % number, Ack.Error.INCORRECT_OFFSET) for number in range(3)]
        finally:
            led.close()

    monkeypatch.setattr(limits, "INGEST_JUDGED_BATCHES_MAX", 2)
    asyncio.run(scenario())
