"""Leaders die, hang and hand over under a client that publishes and reads: who wants all replicas to have it hears of no error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import bascule
from bascule import errors
from tests.support.broker_fixtures import unique_name
from tests.support.cluster import Cluster
from tests.support.nats_server import NatsServer
from tests.support.on_loop import on_loop, soon, until
from tests.support.replicas import assert_well, everybody_back, new_leader

pytestmark = pytest.mark.disturbs

CONFIG = {
    "cursors.stream.partitions": 1,
    "cursors.stream.replication.factor": 3,
    "cursors.stream.auto.pause.time": 0,
    "groups.consumer.timeout": "2s",
    "groups.coordinator.timeout": "1s",
}


@pytest.fixture(scope="module")
def whole_cluster(tmp_path_factory: pytest.TempPathFactory, nats_server: NatsServer) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("client"), nats=nats_server, config=CONFIG) as cluster:
        yield cluster


@pytest.fixture
def cluster(whole_cluster: Cluster) -> Iterator[Cluster]:
    with everybody_back(whole_cluster):
        yield whole_cluster
    assert_well(whole_cluster)


@pytest.fixture
def stream(cluster: Cluster) -> str:
    name = unique_name("stream")
    cluster.create_stream(name)
    cluster.wait_until_in_sync(name)
    return name


class Reading:
    """A subscription from the first message on, and all that it brought."""

    def __init__(self, client: bascule.Client, stream: str, **options: Any) -> None:
        self.offsets: list[int] = []
        self.values: list[bytes] = []
        self.task = asyncio.create_task(self._read(client, stream, options))

    async def _read(self, client: bascule.Client, stream: str, options: dict[str, Any]) -> None:
        async for batch in client.subscribe(stream, start="earliest", **options).batches():
            self.offsets.extend(batch.offsets)
            self.values.extend(value or b"" for value in batch.values())

    async def finish(self, values: set[bytes]) -> None:
        """Once all of these are read. Nothing was skipped, and no offset came twice."""
        await until(lambda: self.task.done() or values <= set(self.values), "everything is read")
        assert not self.task.done(), self.task.exception()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        assert self.offsets == list(range(len(self.offsets))), "a gap or a repeat"


@asynccontextmanager
async def connected(cluster: Cluster, **options: Any) -> AsyncIterator[bascule.Client]:
    async with bascule.connect(cluster.addresses, **options) as client:
        yield client


async def move_leader(cluster: Cluster, stream: str, how: str) -> str:
    """Another broker leads; the one before was killed, stopped or hangs."""
    old = await asyncio.to_thread(cluster.leader_of, stream)
    deeds: dict[str, Callable[[str], object]] = {"kill": cluster.kill, "stop": cluster.stop, "hang": cluster.pause}
    await asyncio.to_thread(deeds[how], old)
    await asyncio.to_thread(new_leader, cluster, stream, old)
    return old


@pytest.mark.parametrize("how", ["kill", "stop", "hang"])
@on_loop
async def test_a_publisher_and_a_subscription_live_through_it(cluster: Cluster, stream: str, how: str) -> None:
    pending: list[asyncio.Future[bascule.Ack]] = []
    stopping = asyncio.Event()

    async def publish(client: bascule.Client) -> None:
        async with client.publisher(stream, ack="all", window=64) as publisher:
            while not stopping.is_set():
                pending.append(await publisher.send(b"%d" % len(pending)))
                await asyncio.sleep(0.001)
        assert publisher.failed == 0

    def acked() -> int:
        return sum(future.done() for future in pending)

    async with connected(cluster) as client, connected(cluster) as other:
        readings = [Reading(client, stream), Reading(other, stream, read_replica=True)]
        publishing = asyncio.create_task(publish(client))
        await until(lambda: len(readings[0].offsets) > 100, "messages flow")
        old = await move_leader(cluster, stream, how)
        before = acked()
        await until(lambda: publishing.done() or acked() > before + 300, "messages flow again")
        stopping.set()
        await soon(publishing)
        if how == "hang":
            cluster.resume(old)  # who read from it waits until then, or until its PINGs are not answered
        offsets = {b"%d" % number: (await future).offset for number, future in enumerate(pending)}
        for reading in readings:
            await reading.finish(set(offsets))
    values = readings[0].values
    assert all(values[offset] == value for value, offset in offsets.items())
    if how != "stop":
        first = {value: place for place, value in reversed([*enumerate(values)])}
        order = sorted(first, key=first.__getitem__)
        assert order == sorted(order, key=int), "what was sent again came behind what was newer"


@pytest.mark.parametrize("how", ["kill", "hang"])
@on_loop
async def test_single_messages_and_many_at_once_live_through_it_too(cluster: Cluster, stream: str, how: str) -> None:
    async with connected(cluster) as client:
        assert await client.publish(stream, b"first", ack="all") is not None
        many = [b"%d" % number for number in range(20_000)]
        publishing = asyncio.create_task(client.publish_many(stream, many, ack="all"))
        single = asyncio.create_task(client.publish(stream, b"single", ack="all"))
        large = asyncio.create_task(client.publish(stream, b"named", ack="all", correlation_id="mine"))
        await move_leader(cluster, stream, how)
        published = await soon(publishing)
        acks = [await soon(single), await soon(large)]
        assert published.errors == {}
        reading = Reading(client, stream)
        await reading.finish({b"first", b"single", b"named", *many})
        values = reading.values
        assert [values[offset] for offset in published.offsets] == many
        assert [values[ack.offset] for ack in acks if ack is not None] == [b"single", b"named"]


@on_loop
async def test_who_wants_nothing_sent_twice_is_told_that_nobody_knows(cluster: Cluster, stream: str) -> None:
    async with connected(cluster) as client:
        publisher = client.publisher(stream, ack="all", resend=False)
        await (await publisher.send(b"before"))
        leader = await asyncio.to_thread(cluster.leader_of, stream)
        await asyncio.to_thread(cluster.pause, leader)
        futures = [await publisher.send(b"%d" % number) for number in range(10)]
        single = asyncio.create_task(client.publish(stream, b"single", ack="all", resend=False))
        await asyncio.sleep(0)  # it is on its way too
        await asyncio.to_thread(cluster.kill, leader)
        waiting: list[asyncio.Future[Any]] = [*futures, single]
        for future in waiting:
            with pytest.raises(bascule.OutcomeUnknown):
                await soon(future)
        await publisher.close()


@on_loop
async def test_a_leader_ack_can_be_had_the_same_way(cluster: Cluster, stream: str) -> None:
    async with connected(cluster) as client, client.publisher(stream, resend=True, timeout=60) as publisher:
        await (await publisher.send(b"before"))
        leader = await asyncio.to_thread(cluster.leader_of, stream)
        await asyncio.to_thread(cluster.pause, leader)
        futures = [await publisher.send(b"%d" % number) for number in range(10)]
        await asyncio.to_thread(cluster.kill, leader)
        offsets = [(await soon(future)).offset for future in futures]
        assert offsets == list(range(offsets[0], offsets[0] + 10)), "sent again in their order"


@on_loop
async def test_waiting_for_a_dead_follower_is_no_reason_to_send_again(cluster: Cluster, stream: str) -> None:
    async with connected(cluster) as client:
        (dead, _) = await asyncio.to_thread(cluster.followers_of, stream)
        await asyncio.to_thread(cluster.kill, dead)
        client._brokers.timeout = 0.5  # less than a follower may lag; connecting could take longer
        async with client.publisher(stream, ack="all") as publisher:
            futures = [await publisher.send(b"%d" % number) for number in range(10)]
            single = await client.publish(stream, b"10", ack="all")
            assert [(await future).offset for future in futures] == list(range(10))
        assert single is not None
        assert single.offset == 10
        info = await client.fetch_partition_metadata(stream, 0, timeout=30)
        assert info.newest_offset == 10, "stored twice"


@on_loop
async def test_resending_needs_an_ack(cluster: Cluster, stream: str) -> None:
    async with connected(cluster) as client:
        with pytest.raises(errors.InvalidOption, match="resend"):
            client.publisher(stream, ack="none", resend=True)
        with pytest.raises(errors.InvalidOption, match="resend"):
            await client.publish(stream, b"x", resend="yes")  # type: ignore[call-overload]


# ── consumer groups ──────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_a_group_misses_nothing_when_its_coordinator_is_killed(cluster: Cluster) -> None:
    """The broker that dies also leads partitions of the stream, and perhaps the cursors."""
    name, partitions = unique_name("read"), 4
    await asyncio.to_thread(lambda: cluster.create_stream(name, partitions=partitions))
    await asyncio.to_thread(cluster.wait_until_in_sync, "__cursors")
    readers: dict[tuple[int, int], str] = {}
    read: dict[int, list[int]] = {number: [] for number in range(partitions)}
    sent: list[asyncio.Future[bascule.Ack]] = []
    stopping = asyncio.Event()

    async def consume(consumer: bascule.Consumer, who: str) -> None:
        async for message in consumer:
            held = consumer._held.get(bascule.Assignment(name, message.partition))
            if held is not None:
                reader = readers.setdefault((message.partition, held.epoch), who)
                assert reader == who, f"{reader} and {who} read partition {message.partition} in epoch {held.epoch}"
            offsets = read[message.partition]
            assert message.offset <= (max(offsets) + 1 if offsets else 0), "messages were skipped"
            offsets.append(message.offset)

    async def publish(client: bascule.Client) -> None:
        async with client.publisher(name, ack="all", partitioner="round-robin") as publisher:
            while not stopping.is_set():
                sent.append(await publisher.send(b"x"))
                await asyncio.sleep(0.002)

    def total() -> int:
        return sum(len(offsets) for offsets in read.values())

    async with connected(cluster) as one, connected(cluster) as two:
        consumers = [
            await client.consumer(name, name, consumer_id=who, auto_checkpoint=0.2).open()
            for client, who in ((one, "one"), (two, "two"))
        ]
        tasks = [asyncio.create_task(consume(each, who)) for each, who in zip(consumers, ("one", "two"), strict=True)]
        publishing = asyncio.create_task(publish(one))
        await until(
            lambda: any(task.done() for task in tasks) or (set(readers.values()) == {"one", "two"} and total() > 100),
            "both read",
        )
        for task in tasks:
            assert not task.done(), task.exception()
        victim = consumers[0]._coordination.membership.coordinator
        await asyncio.to_thread(cluster.kill, victim)
        await until(
            lambda: all(each._coordination.membership.coordinator not in ("", victim) for each in consumers),
            "another coordinator was found",
        )
        before = total()
        await until(lambda: any(task.done() for task in tasks) or total() > before + 200, "both read on")
        stopping.set()
        await soon(publishing)
        ends: dict[int, int] = {}
        for number in range(partitions):
            ends[number] = (await one.fetch_partition_metadata(name, number)).newest_offset
        await until(
            lambda: any(task.done() for task in tasks) or all(max(read[n], default=-1) == ends[n] for n in ends),
            "everything is read",
        )
        for task in tasks:
            assert not task.done(), task.exception()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in consumers:
            await each.close()
    for offsets in read.values():
        assert set(offsets) == set(range(max(offsets) + 1)), "a gap"
