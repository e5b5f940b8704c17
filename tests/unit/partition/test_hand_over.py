"""A leader that hands its partition over: what its publishers get, and what its successor."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bascule.errors import BasculeError, OutcomeUnknown, StateError, Unavailable
from bascule.metadata.core.model.streams import Partition, Stream
from bascule.partition import hand_over
from bascule.partition.hand_over import HandOvers
from bascule.partition.succession_calls import HandedPartition, SuccessionNote
from bascule.proto.api_pb2 import LEADER, Ack
from tests.support.partitions import LedPartition, envelope

OK, UNKNOWN, NOT_STORED = Ack.Error.OK, Ack.Error.UNKNOWN, Ack.Error.NOT_STORED
SOON = 60.0


class Successor:
    """Answers the calls of a leader."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.notes: list[SuccessionNote] = []
        self.fails: BasculeError | None = None

    async def listen(self, _server: str, _partition: HandedPartition, *, timeout: float) -> None:  # noqa: ARG002
        self.calls.append("listen")
        if self.fails is not None:
            raise self.fails

    async def take(self, _server: str, _partition: HandedPartition, note: SuccessionNote, *, timeout: float) -> None:  # noqa: ARG002
        self.calls.append("take")
        self.notes.append(note)

    async def cancel(self, _server: str, _partition: HandedPartition) -> None:
        self.calls.append("cancel")


class Leader:
    """A leader, its cluster's metadata and its successor `b`."""

    def __init__(self, led: LedPartition, group: str = "") -> None:
        self.led = led
        self.successor = Successor()
        self.refusal: Any = None
        self.error: BasculeError | None = None
        self.before_change: Callable[[], None] = lambda: None
        self.partition = Partition(0, ["me", "b"], "me", ["me", "b"], 1, 1)
        self.stream = Stream("orders", 1, "orders", group, 0, {}, [self.partition])
        metadata: Any = SimpleNamespace(
            streams={"orders": self.stream},
            leaving=set(),
            applied_index=2,
            find=lambda _stream, _number: self.partition,
            load=SimpleNamespace(least_led=lambda names: names[0]),
        )
        controller: Any = SimpleNamespace(metadata=metadata, submit=self.submit)
        calls: Any = self.successor
        self.is_unsubscribed = False
        self.hand_overs = HandOvers(
            "me", controller, led.ingest, calls, self.arrive, self.settled, lambda _local: True, self.unsubscribe
        )
        leading: Any = led.partition.open_leading()
        leading.log_end_offset_of = lambda _server: 1 << 40

    async def submit(self, _op: object, *, timeout: float) -> Any:  # noqa: ARG002
        self.before_change()
        if self.error is not None:
            raise self.error
        if self.refusal is None:
            self.partition.leader, self.partition.leader_epoch = "b", 7
            assert self.hand_overs.is_given_away(self.led.partition)
            self.hand_overs.on_stopped(self.led.partition)
        return self.refusal

    async def arrive(self) -> None:
        """Everything is here."""

    async def settled(self, _index: int) -> None:
        """All changes are carried out."""

    def unsubscribe(self, _local: object) -> None:
        self.is_unsubscribed = True

    async def hand_over(self) -> str:
        return await self.hand_overs.hand_over(self.led.partition, None, timeout=SOON)

    @property
    def errors(self) -> list[int]:
        return [ack.error for ack in self.led.acks]


def run(directory: Path, scenario: Callable[[Leader], Awaitable[None]], group: str = "") -> None:
    async def main() -> None:
        led = LedPartition(directory)
        try:
            await scenario(Leader(led, group))
        finally:
            led.close()

    asyncio.run(main())


def test_the_successor_gets_what_the_leader_did_not_store_and_no_publisher_is_answered_twice(tmp_path: Path) -> None:
    async def scenario(leader: Leader) -> None:
        leader.led.arrives(envelope(b"before", LEADER, 1))
        leader.before_change = lambda: leader.led.arrives(envelope(b"between", LEADER, 2))
        assert await leader.hand_over() == "b"
        (note,) = leader.successor.notes
        assert note.new_leader_epoch == 7
        assert (len(note.hashes), note.early) == (8, 0)
        assert note.messages.endswith(envelope(b"between", LEADER, 2))
        assert leader.errors == [OK]
        assert leader.led.values() == [b"before"]
        assert leader.is_unsubscribed
        assert leader.led.ingest.buffered_bytes == 0
        assert not leader.hand_overs.is_given_away(leader.led.partition)

    run(tmp_path, scenario)


def test_messages_from_before_the_successor_certainly_listens_are_early(tmp_path: Path) -> None:
    async def scenario(leader: Leader) -> None:
        async def arrive() -> None:
            leader.led.arrives(b"early")

        leader.hand_overs._arrive = arrive
        leader.before_change = lambda: leader.led.arrives(b"held")
        await leader.hand_over()
        (note,) = leader.successor.notes
        assert (len(note.hashes), note.early) == (16, 1)
        assert leader.led.values() == [b"early"]

    run(tmp_path, scenario)


@pytest.mark.parametrize("error", [Unavailable("no server listens"), StateError("it knows another leader")])
def test_with_a_successor_that_does_not_listen_the_outcome_is_unknown(tmp_path: Path, error: BasculeError) -> None:
    async def scenario(leader: Leader) -> None:
        leader.successor.fails = error
        leader.before_change = lambda: leader.led.arrives(envelope(b"between", LEADER, 1))
        assert await leader.hand_over() == "b"
        assert leader.errors == [UNKNOWN]
        assert leader.led.values() == []
        assert leader.is_unsubscribed
        await leader.led.until(lambda: leader.successor.calls == ["listen", "cancel"])

    run(tmp_path, scenario)


def test_messages_that_nats_sends_to_one_server_only_are_refused_as_not_stored(tmp_path: Path) -> None:
    async def scenario(leader: Leader) -> None:
        leader.before_change = lambda: leader.led.arrives(envelope(b"between", LEADER, 1))
        await leader.hand_over()
        assert leader.errors == [NOT_STORED]
        assert leader.successor.calls == []

    run(tmp_path, scenario, group="workers")


@pytest.mark.parametrize("how", ["refusal", "error"])
def test_a_leader_that_stays_stores_what_arrived_meanwhile(tmp_path: Path, how: str) -> None:
    async def scenario(leader: Leader) -> None:
        if how == "refusal":
            leader.refusal = SimpleNamespace(text="it is not in sync")
        else:
            leader.error = Unavailable("no controller")
        leader.before_change = lambda: leader.led.arrives(envelope(b"between", LEADER, 1))
        with pytest.raises(BasculeError):
            await leader.hand_over()
        await leader.led.until(lambda: leader.led.values() == [b"between"])
        leader.led.arrives(envelope(b"after", LEADER, 2))
        assert leader.errors == [OK, OK]
        assert not leader.is_unsubscribed
        assert not leader.led.sink.is_noting
        await leader.led.until(lambda: leader.successor.calls == ["listen", "cancel"])

    run(tmp_path, scenario)


def test_leader_acks_wait_on_if_the_outcome_of_the_change_is_unknown(tmp_path: Path) -> None:
    """The successor may lead any moment, without what is acked from now on. A later refusal says nothing of this attempt."""

    async def scenario(leader: Leader) -> None:
        leading = leader.led.partition.open_leading()
        leader.refusal = SimpleNamespace(text="it is not in sync")
        with pytest.raises(StateError):
            await leader.hand_over()
        assert not leading.holds_leader_acks
        leader.error = OutcomeUnknown("no answer")
        with pytest.raises(OutcomeUnknown):
            await leader.hand_over()
        assert leading.holds_leader_acks
        leader.error = None
        with pytest.raises(StateError):
            await leader.hand_over()
        assert leading.holds_leader_acks

    run(tmp_path, scenario)


def test_if_the_outcome_of_the_change_is_unknown_and_another_server_leads_so_is_that_of_the_messages(
    tmp_path: Path,
) -> None:
    async def scenario(leader: Leader) -> None:
        def change() -> None:
            leader.led.arrives(envelope(b"between", LEADER, 1))
            leader.hand_overs.on_stopped(leader.led.partition)

        leader.before_change, leader.error = change, Unavailable("no answer")
        with pytest.raises(Unavailable):
            await leader.hand_over()
        assert leader.errors == [UNKNOWN]
        assert leader.led.values() == []
        assert leader.is_unsubscribed

    run(tmp_path, scenario)


def test_a_partition_is_handed_over_once_at_a_time(tmp_path: Path) -> None:
    async def scenario(leader: Leader) -> None:
        first = asyncio.create_task(leader.hand_over())
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="already"):
            await leader.hand_over()
        assert await first == "b"

    run(tmp_path, scenario)


def test_leader_acks_wait_for_the_successor_while_the_partition_is_handed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hand_over, "FROZEN_SECONDS_MAX", 0.05)

    async def main() -> None:
        led = LedPartition(tmp_path, replicas=("me", "b"))
        try:
            leader = Leader(led)
            leading: Any = led.partition.leading
            leading.log_end_offset_of = lambda _server: 0
            led.arrives(envelope(b"alone", LEADER, 1))
            assert leader.errors == [OK], "a LEADER ack waits for no follower"
            going = asyncio.create_task(leader.hand_overs.hand_over(led.partition, None, timeout=0.05))
            await asyncio.sleep(0)
            led.arrives(envelope(b"meanwhile", LEADER, 2))
            assert led.values() == [b"alone", b"meanwhile"]
            assert leader.errors == [OK], "the successor does not have it"
            with pytest.raises(Unavailable, match="not caught up"):
                await going
            led.arrives(envelope(b"after", LEADER, 3))
            assert [ack.correlation_id for ack in led.acks] == [b"1", b"3"]
        finally:
            led.close()

    asyncio.run(main())
