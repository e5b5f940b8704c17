"""All cursors of a partition, read on from where the last reading stopped; and who is told of which."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bascule import limits
from bascule.broker.metrics.cursors import KnownCursors
from bascule.errors import Unavailable
from bascule.log import LogOptions, PartitionLog, new_batch
from bascule.metadata.core.model.ops import BrokerPlace, CreateStream
from bascule.metadata.core.model.refusal import Refusal
from bascule.metadata.core.model.streams import EventTimestamps
from bascule.metadata.core.state import ClusterMetadata
from bascule.metadata.requests import CallDeadline
from bascule.proto import extensions_pb2 as extensions
from bascule.proto.internal_pb2 import Cursor
from bascule.readers.cursor_tables import CursorTable, CursorTables


def put(log: PartitionLog, cursor: str, offset: int, stream: str = "s", partition: int = 0) -> None:
    value = Cursor(stream=stream, partition=partition, cursor_id=cursor, offset=offset).SerializeToString()
    put_raw(log, value)


def put_raw(log: PartitionLog, value: bytes | None) -> None:
    batch = new_batch()
    batch.add(b"k", value)
    log.append(batch)
    log.advance_high_watermark(log.newest_offset)


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    return PartitionLog(str(tmp_path / "log"), LogOptions(compact=True))


def read(table: CursorTable, log: PartitionLog) -> dict[tuple[str, int], dict[str, int]]:
    asyncio.run(table.read_on(log))
    return {place: {name: one.offset for name, one in at.items()} for place, at in table.places.items()}


def test_the_last_one_counts_and_reading_goes_on(log: PartitionLog) -> None:
    table = CursorTable(1)
    put(log, "a", 5)
    put(log, "a", 7)
    put(log, "b", 1, partition=3)
    assert read(table, log) == {("s", 0): {"a": 7}, ("s", 3): {"b": 1}}
    put(log, "a", 9)
    assert read(table, log) == {("s", 0): {"a": 9}, ("s", 3): {"b": 1}}
    log.close()


def test_only_what_is_committed_counts(log: PartitionLog) -> None:
    table = CursorTable(1)
    put(log, "a", 5)
    batch = new_batch()
    batch.add(b"k", Cursor(stream="s", cursor_id="a", offset=6).SerializeToString())
    log.append(batch)
    assert read(table, log) == {("s", 0): {"a": 5}}
    log.close()


def test_notes_of_groups_and_foreign_messages_are_passed_over(log: PartitionLog) -> None:
    table = CursorTable(1)
    put(log, "__hold:g", 123_456)
    put_raw(log, b"\xff\xff")
    put_raw(log, None)
    put(log, "__group:g", 3)
    assert read(table, log) == {("s", 0): {"__group:g": 3}}
    log.close()


def test_many_are_read_beside_the_loop_and_more_than_there_is_room_for_are_counted(log: PartitionLog) -> None:
    table = CursorTable(1, cursors_max=300)
    for number in range(500):
        put(log, f"c{number}", number)
    assert sum(map(len, read(table, log).values())) == 300
    assert table.left_out == 200
    put(log, "c7", 1_000)
    assert read(table, log)["s", 0]["c7"] == 1_000
    log.close()


def test_a_log_that_was_cut_back_is_read_anew(log: PartitionLog) -> None:
    table = CursorTable(1)
    for number in range(5):
        put(log, f"c{number}", number)
    read(table, log)
    log.truncate(2, allow_committed=True)
    assert read(table, log) == {("s", 0): {"c0": 0, "c1": 1}}
    log.close()


# ── of a server ──────────────────────────────────────────────────────────────────────────────────


class Server:
    """`me`, which leads `orders/0` and `orders/1` and the cursors; `orders/2` is led by `other`."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.received = EventTimestamps()
        self.resumed = 0
        metadata = ClusterMetadata()
        for index, (name, partitions) in enumerate((("__cursors", 1), ("orders", 3)), 1):
            op = CreateStream(
                name=name,
                subject=name,
                partitions=partitions,
                replication_factor=1,
                brokers=(BrokerPlace("me", ""),),
                created_ns=1,
                config={},
            )
            assert not isinstance(metadata.apply(index, op), Refusal)
        metadata.streams["orders"].partitions[2].leader = "other"
        self.metadata = metadata
        controller: Any = SimpleNamespace(server_id="me", metadata=metadata)
        running: Any = SimpleNamespace(led=self.led)
        starts: Any = SimpleNamespace(resume=self.resume)
        self.tables = CursorTables(controller, running, starts)
        self.cursors = KnownCursors(controller, self.tables, switchboard=cast(Any, None))

    def led(self, _stream: str, _number: int) -> Any:
        if self.metadata.streams["__cursors"].partitions[0].paused:
            return None
        return SimpleNamespace(stream_id=1, is_open=True, log=self.log, received_times=self.received)

    async def resume(self, *_: object) -> None:
        self.resumed += 1
        self.metadata.streams["__cursors"].partitions[0].paused = False


def test_a_server_is_told_of_the_cursors_in_what_it_leads(log: PartitionLog) -> None:
    async def scenario() -> None:
        for cursor, partition, offset in (("a", 0, 4), ("b", 0, 5), ("a", 1, 6), ("a", 2, 7), ("a", 9, 8)):
            put(log, cursor, offset, "orders", partition)
        put(log, "a", 1, "gone")
        server = Server(log)
        expected = {("orders", 0): {"a": 4, "b": 5}, ("orders", 1): {"a": 6}}
        found = await server.cursors.known()
        assert (found.places, found.unknown_partitions, found.left_out) == (expected, 0, 0)
        request = extensions.CursorsRequest(cursors_partition=0, server="other")
        answer = await server.tables.answer(request, CallDeadline.after(5))
        assert [(one.stream, one.partition, [*one.cursors], [*one.offsets]) for one in answer.partitions] == [
            ("orders", 2, ["a"], [7])
        ]
        with pytest.raises(Unavailable, match="led by another server"):
            await server.tables.led_by(9, "me")

    asyncio.run(scenario())
    log.close()


def test_a_paused_partition_is_woken_only_for_what_was_not_read(log: PartitionLog) -> None:
    async def scenario() -> None:
        put(log, "a", 4, "orders")
        server = Server(log)
        cursors = server.metadata.streams["__cursors"].partitions[0]
        server.received.note(time.time_ns())
        cursors.paused = True
        assert (await server.cursors.known()).places == {("orders", 0): {"a": 4}}
        assert server.resumed == 1
        cursors.paused = True
        for _ in range(3):
            assert (await server.cursors.known()).places == {("orders", 0): {"a": 4}}
        assert server.resumed == 1
        put(log, "a", 5, "orders")  # came, and the partition was paused before anybody looked
        server.received.note(time.time_ns())
        assert (await server.cursors.known()).places == {("orders", 0): {"a": 5}}
        assert server.resumed == 2

    asyncio.run(scenario())
    log.close()


def test_answers_between_servers_and_tables_have_bounds(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        for number in range(10):
            put(log, "x" * 84 + str(number), 1, "orders", number % 2)
        tables = Server(log).tables
        monkeypatch.setattr(limits, "METRICS_CURSORS_BYTES_MAX", 500)
        request = extensions.CursorsRequest(cursors_partition=0, server="me")
        answer = await tables.answer(request, CallDeadline.after(5))
        shown = sum(len(one.cursors) for one in answer.partitions)
        assert 0 < shown < 10
        assert shown + answer.left_out == 10
        assert answer.ByteSize() <= 500
        monkeypatch.setattr(limits, "METRICS_CURSORS_MAX", 7)
        places, left_out = await tables.led_by(0, "me")
        assert (sum(map(len, places.values())), left_out) == (5, 5)  # whole partitions

    asyncio.run(scenario())
    log.close()
