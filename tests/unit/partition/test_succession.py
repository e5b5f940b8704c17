"""A server that takes a partition over: what it receives before it leads, what it stores, and when it gives up."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bascule.config.sections.cluster import ClusterConfig
from bascule.errors import StateError, Unavailable
from bascule.metadata.core.model.streams import Partition, Stream
from bascule.net.nats.subjects import ControlSubjects
from bascule.partition import succession
from bascule.partition.succession import Successions
from bascule.partition.succession_calls import HandedPartition, SuccessionAnswers, SuccessionCalls, SuccessionNote
from bascule.proto.internal_pb2 import SuccessionRequest
from tests.parity.twins.twin_siphash import siphash64
from tests.support.partitions import LedPartition

KEY = bytes(range(16))
HANDED = HandedPartition("orders", 1, 0, 1)
NEW_EPOCH = 1
"""Of the led partition that the tests have."""


def held(*payloads: bytes) -> bytes:
    """Messages as a leader sends them to its successor."""
    return b"".join(struct.pack("<4I", 6, 0, 0, len(one)) + b"orders" + one for one in payloads)


def hashes(*payloads: bytes) -> bytes:
    return b"".join(struct.pack("<Q", siphash64(KEY, held(one)) or 1) for one in payloads)


def note(stored: list[bytes], not_stored: list[bytes], epoch: int = NEW_EPOCH) -> SuccessionNote:
    return SuccessionNote(epoch, KEY, hashes(*stored, *not_stored), 0, held(*not_stored))


class ShortBus:
    """Carries requests to the server itself."""

    def __init__(self) -> None:
        self.handler: Any = None
        self.requests = 0
        self._answer = b""

    async def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        if subject == "answer":
            self._answer = data
        else:
            await self.handler(data, reply)

    async def request(self, subject: str, data: bytes, timeout: float) -> bytes:  # noqa: ARG002
        self.requests += 1
        await self.publish(subject, data, "answer")
        return self._answer

    async def subscribe(self, subject: str, handler: Any) -> None:  # noqa: ARG002
        self.handler = handler


class Heir:
    def __init__(self, led: LedPartition) -> None:
        self.led = led
        self.unsubscribed: list[int] = []
        self.partition = Partition(0, ["old", "me"], "old", ["old", "me"], 1, 1)
        self.stream = Stream("orders", 1, "orders", "", 0, {}, [self.partition])
        self.is_connected = True
        link: Any = SimpleNamespace(
            subscribe=lambda _subject, _sink: 1, unsubscribe=self.unsubscribed.append, flush=self.flush
        )
        controller: Any = SimpleNamespace(metadata=SimpleNamespace(streams={"orders": self.stream}))
        led.ingest._partitions.clear()  # it does not lead yet
        self.successions = Successions("me", controller, link, led.ingest, lambda *_: led.sink, ClusterConfig())
        self.bus = ShortBus()
        subjects = ControlSubjects("ns")
        self.calls = SuccessionCalls(self.bus, subjects, lambda: 8 * 1024 + 10)
        self.answers = SuccessionAnswers(self.bus, subjects, "me", self.successions)

    async def flush(self, _timeout: float) -> None:
        if not self.is_connected:
            raise Unavailable("the connection to NATS is down")

    async def listen(self) -> None:
        await self.calls.listen("me", HANDED, timeout=1)

    async def take(self, what: SuccessionNote) -> None:
        await self.calls.take("me", HANDED, what, timeout=1)

    def lead(self) -> None:
        inherited = self.successions.claim(self.stream, self.partition)
        assert inherited is not None
        self.led.ingest.attach(self.led.partition)
        self.successions.lead(inherited, self.led.partition)

    async def stores(self, *values: bytes) -> None:
        await self.led.until(lambda: self.led.values() == [*values])


def run(directory: Path, scenario: Callable[[Heir], Awaitable[None]]) -> None:
    async def main() -> None:
        led = LedPartition(directory)
        try:
            heir = Heir(led)
            await heir.answers.start()
            await scenario(heir)
            heir.successions.close()
        finally:
            led.close()

    asyncio.run(main())


@pytest.mark.parametrize("note_first", [True, False])
def test_it_stores_what_the_leader_before_did_not_and_then_what_that_leader_did_not_receive(
    tmp_path: Path, note_first: bool
) -> None:
    async def scenario(heir: Heir) -> None:
        await heir.listen()
        heir.led.arrives(b"b", b"c", b"d")
        if not note_first:
            heir.lead()
        await heir.take(note([b"a", b"b"], [b"c" * 30, b"c"]))
        assert heir.bus.requests > 3, "the note has several parts"
        assert heir.led.values() == []
        if note_first:
            heir.lead()
        await heir.stores(b"c" * 30, b"c", b"d")
        heir.led.arrives(b"e", b"a")
        await heir.stores(b"c" * 30, b"c", b"d", b"e")
        assert heir.unsubscribed == []

    run(tmp_path, scenario)


def test_without_a_note_it_goes_on_without_what_it_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(succession, "NOTE_SECONDS_MAX", 0.01)

    async def scenario(heir: Heir) -> None:
        await heir.listen()
        heir.led.arrives(b"held")
        heir.lead()
        await heir.led.until(lambda: not heir.led.sink.holds_all)
        heir.led.arrives(b"next")
        await heir.stores(b"next")
        with pytest.raises(StateError, match="does not listen"):
            await heir.take(note([], [b"late"]))

    run(tmp_path, scenario)


def test_a_note_for_another_epoch_is_not_used(tmp_path: Path) -> None:
    async def scenario(heir: Heir) -> None:
        await heir.listen()
        heir.led.arrives(b"held")
        heir.lead()
        await heir.take(note([], [b"strange"], epoch=NEW_EPOCH + 1))
        heir.led.arrives(b"next")
        await heir.stores(b"next")

    run(tmp_path, scenario)


def test_when_the_leader_stays_or_never_leaves_it_stops_listening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(heir: Heir) -> None:
        await heir.listen()
        heir.led.arrives(b"held")
        await heir.calls.cancel("me", HANDED)
        assert heir.unsubscribed == [1]
        assert heir.led.ingest.buffered_bytes == 0
        assert heir.successions.claim(heir.stream, heir.partition) is None
        monkeypatch.setattr(succession, "LISTEN_SECONDS_MAX", 0.01)
        await heir.listen()
        await heir.led.until(lambda: heir.unsubscribed == [1, 1])

    run(tmp_path, scenario)


def test_a_cancel_that_comes_when_it_leads_changes_nothing(tmp_path: Path) -> None:
    async def scenario(heir: Heir) -> None:
        await heir.listen()
        heir.led.arrives(b"held")
        heir.lead()
        await heir.calls.cancel("me", HANDED)
        await heir.take(note([], []))
        await heir.stores(b"held")

    run(tmp_path, scenario)


def test_too_many_messages_are_dropped_and_messages_after_them_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(succession, "HELD_BYTES_MAX", 100)

    async def scenario(heir: Heir) -> None:
        await heir.listen()
        heir.led.arrives(b"x" * 60, b"y" * 60)
        heir.lead()
        await heir.take(note([b"x" * 60], [b"z"]))
        await heir.stores(b"z")
        heir.led.arrives(b"x" * 60)
        await heir.stores(b"z", b"x" * 60)

    run(tmp_path, scenario)


def test_a_partition_that_stops_to_be_led_here_drops_what_was_held(tmp_path: Path) -> None:
    async def scenario(heir: Heir) -> None:
        await heir.listen()
        heir.led.arrives(b"held")
        heir.lead()
        heir.successions.leave(heir.led.partition)
        await heir.led.ingest.detach(heir.led.partition)
        assert heir.led.values() == []
        with pytest.raises(StateError, match="does not listen"):
            await heir.take(note([], []))

    run(tmp_path, scenario)


def test_it_does_not_listen_for_what_it_cannot_take_over(tmp_path: Path) -> None:
    async def scenario(heir: Heir) -> None:
        changes: list[tuple[object, str, object, str]] = [
            (heir.stream, "group", "workers", "one receiver"),
            (heir.partition, "in_sync_replicas", ["old"], "another leader"),
            (heir.partition, "leader_epoch", 2, "another leader"),
            (heir.stream, "id", 2, "does not know"),
        ]
        for changed, name, found, why in changes:
            before = getattr(changed, name)
            setattr(changed, name, found)
            with pytest.raises(StateError, match=why):
                await heir.listen()
            setattr(changed, name, before)

    run(tmp_path, scenario)


def test_without_a_connection_it_does_not_listen(tmp_path: Path) -> None:
    async def scenario(heir: Heir) -> None:
        heir.is_connected = False
        with pytest.raises(StateError, match="connection"):
            await heir.listen()
        assert heir.unsubscribed == [1]

    run(tmp_path, scenario)


@pytest.mark.parametrize(("part", "parts"), [(0, 0), (2, 2), (0, 1 << 20)])
def test_parts_that_no_note_has_are_refused(tmp_path: Path, part: int, parts: int) -> None:
    async def scenario(heir: Heir) -> None:
        await heir.listen()
        request = HANDED.request(SuccessionRequest.TAKE)
        request.part, request.parts = part, parts
        with pytest.raises(StateError, match="part"):
            await heir.successions.on_request(request)

    run(tmp_path, scenario)


def test_other_bytes_on_the_subject_are_ignored(tmp_path: Path) -> None:
    async def scenario(heir: Heir) -> None:
        await heir.bus.handler(b"rubbish", "answer")
        await heir.listen()

    run(tmp_path, scenario)
