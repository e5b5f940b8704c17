"""Only the present leader of its partition answers for a cursor: the log of an old leader lacks cursors that were acked since."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from bascule.config.sections.cluster import CursorStream
from bascule.log import LogStore, new_batch
from bascule.metadata.core.model.streams import EventTimestamps
from bascule.metadata.stream_options import CURSORS_STREAM
from bascule.net.grpc.status import Status
from bascule.net.nats.envelope import MessageType, pack_message, unpack_message
from bascule.partition.replica import LedPartition
from bascule.proto.internal_pb2 import Cursor, FetchCursorRequest, FetchCursorResponse
from bascule.readers.stored_cursors import cursor_key
from tests.support.control_plane import (
    SUBJECTS,
    Cluster,
    FakePartition,
    Server,
    configured,
    refused,
    run,
    running,
    until,
)

KEY = cursor_key("c", "orders", 0)


class StaleLeader(LedPartition):
    """A leader with followers, over a log of its own."""

    def __init__(self, like: FakePartition, epoch: int, *, knows_what_is_committed: bool = True) -> None:
        self.number, self.stream_id, self.leader_epoch = like.number, like.stream_id, epoch
        self.is_open, self._log = True, like.log
        self.core = SimpleNamespace(followers={"b": None}, knows_what_is_committed=knows_what_is_committed)
        self.leading = cast(Any, SimpleNamespace(core=self.core))


async def with_cursors(cluster: Cluster) -> Server:
    server = next(iter(cluster.servers.values()))
    await until(lambda: CURSORS_STREAM in server.controller.metadata.streams)
    return server


def led(cluster: Cluster, number: int = 0) -> tuple[Server, FakePartition]:
    """The leader of a partition of cursors, and its replica."""
    metadata = next(iter(cluster.servers.values())).controller.metadata
    server = cluster.servers[metadata.streams[CURSORS_STREAM].partitions[number].leader]
    return server, server.partitions.running[CURSORS_STREAM, number]


def other_log(like: FakePartition, folder: Path, epoch: int, *offsets: int) -> FakePartition:
    """A replica with another log, in which the cursor was set to these offsets."""
    made = FakePartition(
        like.stream, like.number, like.stream_id, like.subject, epoch, LogStore(folder), None, EventTimestamps()
    )
    for offset in offsets:
        made.append(KEY, Cursor(offset=offset).SerializeToString())
    return made


async def asked(cluster: Cluster, server: Server, number: int) -> FetchCursorResponse:
    """The answer of a server to another one."""
    request = FetchCursorRequest(cursors_partition=number, key=KEY)
    data = pack_message(MessageType.PROPAGATED_REQUEST, request)
    answer = await cluster.bus.request(SUBJECTS.cursors(server.name), data, 60)
    return unpack_message(FetchCursorResponse, answer, MessageType.PROPAGATED_RESPONSE)


def in_cluster(directory: Path, scenario: Callable[[Cluster], Any], names: str = "a", partitions: int = 1) -> None:
    async def started() -> None:
        config = configured(cursors=CursorStream(stream_partitions=partitions))
        async with running(directory, names, config=config) as cluster:
            await with_cursors(cluster)
            await scenario(cluster)

    run(started())


async def fetched(server: Server, seconds: float = 10.0) -> int:
    answer = await server.call("FetchCursor", seconds, stream="orders", partition=0, cursorId="c")
    return int(answer.offset)


def test_a_server_that_does_not_lead_the_partition_any_more_refuses_the_request_of_another(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        leader, local = led(cluster)
        other = next(server for server in cluster.servers.values() if server is not leader)
        await until(lambda: CURSORS_STREAM in other.controller.metadata.streams)
        other.partitions.is_slow = True  # its replica has not followed the metadata yet
        stale = other_log(local, tmp_path / "stale", local.leader_epoch, 5)
        other.partitions.running[CURSORS_STREAM, 0] = stale
        answer = await asked(cluster, other, 0)
        assert answer.error.code == Status.FAILED_PRECONDITION
        stale.store.close()

    in_cluster(tmp_path, scenario, "ab")


def test_a_replica_that_follows_answers_nothing(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        server, local = led(cluster)
        local.append(KEY, Cursor(offset=5).SerializeToString())
        assert await fetched(server) == 5
        local.is_leader = False
        assert "not leader" in (await refused(fetched(server, 0.3)))[1]

    in_cluster(tmp_path, scenario)


def test_a_leader_with_followers_confirms_its_epoch_before_it_answers(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        server, local = led(cluster)
        local.append(KEY, Cursor(offset=5).SerializeToString())
        running_here = cast(Any, server.partitions.running)
        running_here[CURSORS_STREAM, 0] = StaleLeader(local, local.leader_epoch)
        assert await fetched(server) == 5
        running_here[CURSORS_STREAM, 0] = StaleLeader(local, local.leader_epoch - 1)
        assert "not leader" in (await refused(fetched(server, 0.3)))[1]

    in_cluster(tmp_path, scenario)


def test_a_new_leader_waits_until_it_knows_what_is_committed(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        server, local = led(cluster)
        leader = StaleLeader(local, local.leader_epoch, knows_what_is_committed=False)
        cast(Any, server.partitions.running)[CURSORS_STREAM, 0] = leader
        batch = new_batch()
        batch.add(KEY, Cursor(offset=7).SerializeToString())
        local.log.append(batch, leader_epoch=local.leader_epoch)
        asking = asyncio.create_task(fetched(server, 60))
        await asyncio.sleep(0.1)
        assert not asking.done()
        local.log.advance_high_watermark(local.log.newest_offset)
        leader.core.knows_what_is_committed = True
        assert await asking == 7

    in_cluster(tmp_path, scenario)


def test_a_leader_of_a_new_epoch_reads_its_log_anew(tmp_path: Path) -> None:
    """Between two epochs another server led, and the log was truncated: offsets that were read belong to other records now."""

    async def scenario(cluster: Cluster) -> None:
        server, local = led(cluster)
        for offset in (1, 2, 3):
            local.append(KEY, Cursor(offset=offset).SerializeToString())
        assert await fetched(server) == 3
        newer = other_log(local, tmp_path / "newer", local.leader_epoch + 1, 8, 9)
        server.partitions.running[CURSORS_STREAM, 0] = newer
        assert await fetched(server) == 9
        again = other_log(local, tmp_path / "again", local.leader_epoch + 1, 6)
        again.stream_id += 1  # the stream was deleted and created again
        server.partitions.running[CURSORS_STREAM, 0] = again
        assert await fetched(server) == 6
        newer.store.close()
        again.store.close()

    in_cluster(tmp_path, scenario)
