"""SetCursor and FetchCursor, and what the leader of a cursors partition remembers."""

from __future__ import annotations

import asyncio
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.config.sections.cluster import CursorStream
from bascule.log import LogOptions, LogStore, PartitionLog, new_batch
from bascule.log.cleaning.cleaner import apply_retention
from bascule.metadata.stream_options import settings_of
from bascule.net.grpc.status import GrpcError, Status
from bascule.net.nats.envelope import MessageType, encode
from bascule.proto.internal_pb2 import Cursor, FetchCursorRequest
from bascule.readers.cursors import CursorView, cursors_partition
from bascule.readers.stored_cursors import cursor_key
from tests.support.control_plane import SUBJECTS, Server, configured, refused, run, running, until

MINUTE = 60 * 10**9


def with_cursors(partitions: int = 1) -> Any:
    return configured(cursors=CursorStream(stream_partitions=partitions))


async def ready(server: Server) -> Server:
    await until(lambda: "__cursors" in server.controller.metadata.streams)
    return server


async def put(server: Server, offset: int, stream: str = "orders", partition: int = 0, cursor: str = "c") -> None:
    await server.call("SetCursor", stream=stream, partition=partition, cursorId=cursor, offset=offset)


async def offset_in(view: CursorView, key: bytes, log: PartitionLog) -> int:
    found = await view.find(key, log)
    return -1 if found is None else found.offset


async def get(server: Server, stream: str = "orders", partition: int = 0, cursor: str = "c") -> int:
    answer = await server.call("FetchCursor", stream=stream, partition=partition, cursorId=cursor)
    return int(answer.offset)


def test_the_key_and_its_partition_are_what_clients_compute() -> None:
    key = cursor_key("c1", "orders.eu", 7)
    assert key == b"c1,orders.eu,7"
    for number in range(20):
        assert cursors_partition(b"c%d,orders.eu,7" % number, 5) == zlib.crc32(b"c%d,orders.eu,7" % number) % 5
    assert cursor_key("a,b", "c", 0) == b"a,b,c,0"


@given(st.text("a,%ÿ"), st.text("a,%ÿ"), st.integers(0, 9))
def test_no_two_cursors_have_the_same_key(cursor_id: str, stream: str, partition: int) -> None:
    """The key can be split into its parts again."""
    found = cursor_key(cursor_id, stream, partition).rsplit(b",", 2)
    assert [found[0].decode(), found[1].replace(b"\xff", b",").decode(), int(found[2])] == [
        cursor_id,
        stream,
        partition,
    ]


def test_a_cursor_is_what_was_set_last(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, config=with_cursors()) as cluster:
            server = await ready(cluster.alone)
            assert await get(server) == -1
            for offset in (5, 3, -7, 0, 2**62):
                await put(server, offset)
                assert await get(server) == offset
            assert await get(server, cursor="other") == await get(server, partition=1) == await get(server, "x") == -1

    run(scenario())


def test_cursors_are_kept_by_a_compacted_stream_that_retention_leaves_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, config=with_cursors(3)) as cluster:
            server = await ready(cluster.alone)
            stream = server.controller.metadata.streams["__cursors"]
            assert (stream.subject, len(stream.partitions)) == ("ns.cursors", 3)
            options = settings_of(stream).log_options
            assert options.compact
            assert options.retention_age_max_ns == options.retention_bytes_max == options.retention_records_max == 0
            assert settings_of(stream).auto_pause_time_ns == MINUTE
            never = configured(cursors=CursorStream(stream_partitions=3, stream_auto_pause_time_ns=0)).cluster
            assert settings_of(stream, never).auto_pause_time_ns == 0

    run(scenario())


def test_a_cursor_outlives_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, config=with_cursors()) as cluster:
            server = await ready(cluster.alone)
            for number in range(50):
                await put(server, number, cursor=f"c{number % 7}")
            server = await cluster.restart()
            assert [await get(server, cursor=f"c{number}") for number in range(7)] == [49, 43, 44, 45, 46, 47, 48]
            await put(server, 99, cursor="c1")
            assert await get(server, cursor="c1") == 99

    run(scenario())


def test_a_paused_partition_is_resumed_by_using_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, config=with_cursors()) as cluster:
            server = await ready(cluster.alone)
            await put(server, 5)
            for offset in (6, 7):
                await server.call("PauseStream", name="__cursors")
                assert await get(server) == offset - 1
                await server.call("PauseStream", name="__cursors")
                await put(server, offset)
                assert await get(server) == offset

    run(scenario())


def test_any_server_answers_for_any_cursor(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, "abc", config=with_cursors(6)) as cluster:
            for server in cluster.servers.values():
                await ready(server)
            servers = list(cluster.servers.values())
            for number in range(30):
                await put(servers[number % 3], number, cursor=f"c{number}")
            for number in range(30):
                assert await get(servers[(number + 1) % 3], cursor=f"c{number}") == number
            assert {
                partition.leader for partition in servers[0].controller.metadata.streams["__cursors"].partitions
            } == {
                "a",
                "b",
                "c",
            }

    run(scenario())


def test_one_of_several_servers_replaces_a_cursor(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, "abc", config=with_cursors(3)) as cluster:
            servers = [await ready(server) for server in cluster.servers.values()]
            place = {"stream": "orders", "partition": 0}

            async def take(cursor: str, number: int) -> int:
                wanted = {"cursorId": cursor, "offset": number, "expected": {"value": -1}}
                try:
                    await servers[number % 3].call("SetCursor", **place, **wanted)
                except GrpcError as error:
                    assert error.status == Status.ABORTED
                    return 0
                return 1

            for cursor in ("a", "b", "c", "d"):
                assert sum(await asyncio.gather(*(take(cursor, number) for number in range(9)))) == 1
                assert await get(servers[0], cursor=cursor) in range(9)

    run(scenario())


def test_a_leader_that_is_gone_is_an_error(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, "ab", config=with_cursors(2)) as cluster:
            for server in cluster.servers.values():
                await ready(server)
            a, b = cluster.servers["a"], cluster.servers["b"]
            partitions = a.controller.metadata.streams["__cursors"].partitions
            number = next(each.id for each in partitions if each.leader == "b")
            cursor = next(
                f"c{n}" for n in range(100) if cursors_partition(cursor_key(f"c{n}", "orders", 0), 2) == number
            )
            b.partitions.is_slow = True
            b.partitions.running.clear()
            code, _ = await refused(a.call("FetchCursor", 2, stream="orders", cursorId=cursor))
            assert code == "INTERNAL"
            # asked although it does not lead: its asker has not heard of the leader of now
            stale = FetchCursorRequest(cursors_partition=1 - number, key=b"x").SerializeToString()
            answer = await cluster.bus.request(SUBJECTS.cursors("b"), encode(MessageType.PROPAGATED_REQUEST, stale), 60)
            assert b"not leader" in answer

    run(scenario())


@pytest.mark.parametrize("data", [b"", b"junk", encode(MessageType.PROPAGATED_REQUEST, b"\xff\xff")])
def test_foreign_bytes_are_not_worth_an_answer(tmp_path: Path, data: bytes) -> None:
    async def scenario() -> None:
        async with running(tmp_path, config=with_cursors()) as cluster:
            await cluster.bus.publish(SUBJECTS.cursors("a"), data, "inbox")
            await asyncio.sleep(0.01)
            assert not any(subject == "inbox" for subject, _ in cluster.bus.published)

    run(scenario())


def test_ids_are_required(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, config=with_cursors()) as cluster:
            server = await ready(cluster.alone)
            for name in ("SetCursor", "FetchCursor"):
                assert (await refused(server.call(name, stream="", cursorId="c")))[0] == "INVALID_ARGUMENT"
                assert (await refused(server.call(name, stream="s", cursorId="")))[0] == "INVALID_ARGUMENT"

    run(scenario())


def test_without_cursors_there_are_none(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            for name in ("SetCursor", "FetchCursor"):
                assert (await refused(cluster.alone.call(name, stream="s", cursorId="c")))[0] == "INTERNAL"

    run(scenario())


def test_a_cluster_that_just_began_makes_cursors_wait_until_it_has_their_stream(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, config=with_cursors()) as cluster:
            assert await get(cluster.alone) == -1
            await cluster.alone.internal.ready()
            await put(cluster.alone, 5)

    run(scenario())


def test_a_cursor_that_cannot_be_stored_is_an_error(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, config=with_cursors()) as cluster:
            server = await ready(cluster.alone)
            server.publisher.failures.append(GrpcError(Status.INVALID_ARGUMENT, "too large"))
            code, text = await refused(put(server, 1))
            assert code == "INTERNAL"
            assert "too large" in text

    run(scenario())


@pytest.mark.parametrize("status", [Status.DEADLINE_EXCEEDED, Status.UNKNOWN, Status.UNAVAILABLE])
def test_a_cursor_is_set_again_while_its_partition_has_no_leader(tmp_path: Path, status: Status) -> None:
    async def scenario() -> None:
        async with running(tmp_path, config=with_cursors()) as cluster:
            server = await ready(cluster.alone)
            server.publisher.failures += [GrpcError(status, "no ack"), GrpcError(status, "no ack")]
            await put(server, 5)
            assert await get(server) == 5

    run(scenario())


# ── what is remembered ───────────────────────────────────────────────────────────────────────────


def write(log: PartitionLog, key: bytes | None, value: bytes | None) -> None:
    batch = new_batch()
    batch.add(key, value)
    log.advance_high_watermark(log.append(batch).last_offset)


def cursor(offset: int) -> bytes:
    return Cursor(cursor_id="c", offset=offset).SerializeToString()


def test_cursors_that_do_not_fit_are_looked_for_in_the_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        with LogStore(tmp_path) as store:
            log = store.log("__cursors", 0)
            view = CursorView(1, 1, remembered_max=3)
            for number in range(20):
                write(log, b"k%d" % (number % 10), cursor(number))
            for number in (0, 5, 9, 0, 3):
                assert await offset_in(view, b"k%d" % number, log) == 10 + number
            assert await offset_in(view, b"nobody", log) == -1
            write(log, b"k0", cursor(77))
            assert await offset_in(view, b"k0", log) == 77

    run(scenario())


def test_a_cursor_that_retention_took_is_none(tmp_path: Path) -> None:
    async def scenario() -> None:
        with LogStore(tmp_path) as store:
            log = store.log("__cursors", 0, LogOptions(retention_records_max=1, segment_bytes_max=1))
            view = CursorView(1, 1)
            write(log, b"old", cursor(5))
            assert await offset_in(view, b"old", log) == 5
            write(log, b"new", cursor(6))
            write(log, b"new", cursor(7))
            apply_retention(log)
            assert log.log_start_offset > 0
            assert await offset_in(view, b"old", log) == -1
            assert await offset_in(view, b"new", log) == 7

    run(scenario())


def test_only_what_is_committed_counts_and_foreign_messages_do_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        with LogStore(tmp_path) as store:
            log = store.log("__cursors", 0)
            view = CursorView(1, 1)
            write(log, b"k", cursor(1))
            write(log, b"k", b"\xff\xff\xff")
            write(log, None, cursor(9))
            batch = new_batch()
            batch.add(b"k", cursor(2))
            log.append(batch)
            assert await offset_in(view, b"k", log) == 1
            log.advance_high_watermark(log.newest_offset)
            assert await offset_in(view, b"k", log) == 2

    run(scenario())


@pytest.mark.parametrize("remembered", [2, 100])
@pytest.mark.parametrize("empty", [None, b""])
def test_a_message_without_a_value_deletes_a_cursor(tmp_path: Path, remembered: int, empty: bytes | None) -> None:
    async def scenario() -> None:
        with LogStore(tmp_path) as store:
            log = store.log("__cursors", 0)
            view = CursorView(1, 1, remembered_max=remembered)
            for number in range(6):
                write(log, b"k%d" % number, cursor(number))
            write(log, b"k1", empty)
            for number in (2, 3, 4, 5):
                assert await offset_in(view, b"k%d" % number, log) == number
            assert await offset_in(view, b"k1", log) == -1
            write(log, b"k1", cursor(8))
            assert await offset_in(view, b"k1", log) == 8

    run(scenario())


def test_a_long_log_is_read_by_a_thread(tmp_path: Path) -> None:
    async def scenario() -> None:
        with LogStore(tmp_path) as store:
            log = store.log("__cursors", 0)
            batch = new_batch()
            for number in range(5000):
                batch.add(b"k%d" % number, cursor(number))
            log.advance_high_watermark(log.append(batch).last_offset)
            view = CursorView(1, 1)
            assert await asyncio.gather(*(offset_in(view, b"k%d" % n, log) for n in (0, 4999, 17))) == [0, 4999, 17]

    run(scenario())
