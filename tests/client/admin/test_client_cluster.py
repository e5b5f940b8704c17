"""Three brokers: leaders are found wherever they are, and a group outlives its coordinator."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from itertools import count

import pytest

import bascule
from tests.support.broker_process import BrokerProcess
from tests.support.cluster import PRODUCT_TIMEOUTS, Cluster
from tests.support.nats_server import NatsServer
from tests.support.on_loop import on_loop, soon, until
from tests.support.waiting import pause

CONFIG = {
    "cursors.stream.partitions": 1,
    "cursors.stream.replication.factor": 1,
    "cursors.stream.auto.pause.time": 0,
    "groups.consumer.timeout": "2s",
    "groups.coordinator.timeout": "1s",
}
Brokers = dict[str, BrokerProcess]


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory, nats_server: NatsServer) -> Iterator[Brokers]:
    directory = tmp_path_factory.mktemp("client-cluster")
    with Cluster(directory, nats=nats_server, seeded=True, config={**PRODUCT_TIMEOUTS, **CONFIG}) as found:
        yield found.brokers


async def spread(client: bascule.Client, name: str) -> str:
    """A stream whose partitions are led by all three. A broker that stands still for a second gets none: then there is another one."""
    for attempt in count():
        stream = f"{name}-{attempt}"
        await client.create_stream(stream, partitions=6)
        info = (await client.fetch_metadata([stream])).streams[stream]
        if len({partition.leader for partition in info.partitions.values()}) == 3:
            return stream
    raise AssertionError


@on_loop
async def test_partitions_are_reached_wherever_they_are_led(cluster: Brokers, name: str) -> None:
    for broker in cluster.values():
        async with bascule.connect(broker.address, timeout=60) as client:
            stream = await spread(client, f"{name}-{broker.address.rpartition(':')[2]}")
            await client.publish_many(stream, [b"%d" % number for number in range(600)], partitioner="round-robin")
            seen: dict[int, list[bytes | None]] = {}
            async for message in client.subscribe(stream, partition="all", start="earliest", stop="latest"):
                seen.setdefault(message.partition, []).append(message.value)
            assert seen == {n: [b"%d" % number for number in range(n, 600, 6)] for n in range(6)}
            for number in range(6):
                assert (await client.fetch_partition_metadata(stream, number)).newest_offset == 99
            await client.set_cursor("c", stream, 0, 5)
            assert await client.fetch_cursor("c", stream, 0) == 5


@on_loop
async def test_a_client_goes_on_with_the_brokers_that_are_left(cluster: Brokers, name: str) -> None:
    async with bascule.connect([broker.address for broker in cluster.values()], timeout=60) as client:
        await client.create_stream(name, partitions=3)
        info = (await client.fetch_metadata([name])).streams[name]
        victim = info.partitions[2].leader
        alive = [number for number in range(3) if info.partitions[number].leader != victim]
        await asyncio.to_thread(cluster[victim].kill)
        for number in alive:
            ack = await client.publish(name, b"x", partition=number)
            assert ack is not None
            subscription = client.subscribe(name, partition=number, start="earliest")
            assert (await soon(anext(subscription))).value == b"x"
            await subscription.close()
        with pytest.raises((bascule.Unavailable, bascule.OutcomeUnknown)):
            await client.publish(name, b"x", partition=2, timeout=1)
        await asyncio.to_thread(cluster[victim].start)
        ack = await client.publish(name, b"y", partition=2, timeout=60)
        assert ack is not None


@on_loop
async def test_a_group_gets_a_new_coordinator_when_the_old_one_dies(cluster: Brokers, name: str) -> None:
    async with bascule.connect([broker.address for broker in cluster.values()], timeout=60) as client:
        await client.create_stream(name, partitions=6)
        await client.set_cursor("c", name, 0, 5)  # there are some
        cursors = (await client.fetch_metadata()).streams["__cursors"].partitions[0].leader
        # Cursors have one replica here: without their broker no group goes on. A second group has another coordinator than the first.
        for number in count():
            consumer = await client.consumer(f"{name}-{number}", name, auto_checkpoint=0.1).open()
            victim = consumer._coordination.membership.coordinator
            if victim != cursors:
                break
        await until(lambda: len(consumer.assignments) == 6, "everything is assigned")
        await asyncio.to_thread(cluster[victim].kill)
        await until(lambda: consumer._coordination.membership.coordinator != victim, "the coordinator is replaced")
        led = (await client.fetch_metadata([name])).streams[name].partitions
        number = next(number for number, partition in led.items() if partition.leader != victim)
        await client.publish(name, b"x", partition=number)
        message = await soon(anext(consumer))
        assert (message.partition, message.offset) == (number, 0)


@on_loop
async def test_a_broker_that_hangs_is_not_waited_for_while_there_are_others(cluster: Brokers) -> None:
    async with bascule.connect([broker.address for broker in cluster.values()], timeout=12) as client:
        process = cluster["a"].process  # the first seed: the one we speak to
        assert process is not None
        pause(process.pid)
        try:
            for _ in range(3):
                found = await soon(client.fetch_metadata())
                assert found.brokers
        finally:
            process.send_signal(signal.SIGCONT)
