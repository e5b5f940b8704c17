"""What a cluster tells about itself: paused and restarted partitions, dead brokers, streams with their bytes, counts of all brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import bascule
from bascule.client.admin.cluster import ClusterAdmin, ServerCounts
from bascule.client.admin.streams import StreamAdmin, StreamDescription
from tests.support.api_client import pb
from tests.support.broker_fixtures import unique_name
from tests.support.cluster import Cluster
from tests.support.nats_server import NatsServer
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, nats_server: NatsServer) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp(unique_name("views")), nats=nats_server) as found:
        yield found


def publish(cluster: Cluster, name: str, count: int) -> None:
    for number in range(count):
        cluster.api("a").publish(name, b"%d" % number, ackPolicy=pb.ALL)


def test_a_paused_partition_shows_its_last_offsets_and_times(cluster: Cluster) -> None:
    name = unique_name("paused")
    cluster.create_stream(name, factor=1)
    publish(cluster, name, 5)
    leader = cluster.api(cluster.leader_of(name))
    before = leader.stream(name).partitions[0]
    leader.PauseStream(name=name)
    after = leader.stream(name).partitions[0]
    assert after.paused
    assert (after.highWatermark, after.newestOffset) == (4, 4)
    assert after.messagesReceivedTimestamps == before.messagesReceivedTimestamps
    assert after.messagesReceivedTimestamps.latestTimestamp > 0


@pytest.mark.parametrize("paused", [True, False])
def test_after_a_restart_an_untouched_partition_shows_its_last_offsets_and_times(
    cluster: Cluster, paused: bool
) -> None:
    name = unique_name("restarted")
    cluster.create_stream(name, factor=1)
    publish(cluster, name, 5)
    server = cluster.leader_of(name)
    before = cluster.api(server).stream(name).partitions[0].messagesReceivedTimestamps
    if paused:
        cluster.api(server).PauseStream(name=name)
    assert cluster.stop(server) == 0
    cluster.restart(server)
    after = eventually(lambda: known(cluster, server, name), "the restarted server knows the stream")
    assert (after.highWatermark, after.newestOffset) == (4, 4)
    assert abs(after.messagesReceivedTimestamps.firstTimestamp - before.firstTimestamp) < 1_000_000_000
    assert abs(after.messagesReceivedTimestamps.latestTimestamp - before.latestTimestamp) < 1_000_000_000


def known(cluster: Cluster, server: str, name: str) -> Any:
    found = cluster.api(server).stream(name)
    return found.partitions[0] if found.error == pb.StreamMetadata.OK else None


def test_a_stream_is_described_by_its_leaders_through_any_server(cluster: Cluster) -> None:
    name = unique_name("described")
    cluster.create_stream(name, partitions=3, retentionMaxMessages=1000)
    for partition in range(3):
        cluster.api("a").publish(name, b"x" * 1000, partition=partition, ackPolicy=pb.ALL)
    for server in cluster.servers:
        found = describe(cluster, server, name)
        assert found.settings["retentionMaxMessages"] == "1000"
        assert [one.partition for one in found.partitions] == [0, 1, 2]
        for one in found.partitions:
            assert one.error == ""
            assert (one.log_start_offset, one.log_end_offset, one.messages) == (0, 1, 1)
            assert 1000 < one.size_bytes < 2000
            assert one.first_message == one.last_message is not None
            assert set(one.replicas) == set(cluster.servers)


def describe(cluster: Cluster, server: str, name: str) -> StreamDescription:
    async def ask() -> StreamDescription:
        async with bascule.connect(cluster.brokers[server].address, timeout=60) as client:
            return await StreamAdmin(client).describe(name, timeout=60)

    return asyncio.run(ask())


def counts(cluster: Cluster, server: str, *names: str) -> dict[str, ServerCounts]:
    async def ask() -> tuple[ServerCounts, ...]:
        async with bascule.connect(cluster.brokers[server].address, timeout=60) as client:
            return await ClusterAdmin(client).counts(names, timeout=60)

    return {one.server: one for one in asyncio.run(ask())}


def test_one_call_returns_what_every_broker_counts(cluster: Cluster) -> None:
    name = unique_name("counted")
    cluster.create_stream(name)
    publish(cluster, name, 7)
    found = counts(cluster, "b")
    assert sorted(found) == ["a", "b", "c"]
    for one in found.values():
        assert (one.error, one.left_out) == ("", 0)
        names = {count.name for count in one.counts}
        assert {"bascule_ready", "bascule_ingest_messages_total", "bascule_disk_full"} <= names
        assert not any("stream" in count.labels for count in one.counts)
    sizes = counts(cluster, "c", "bascule_partition_size_bytes", "bascule_partition_log_end*")
    for one in sizes.values():
        ends = [count.value for count in one.counts if count.labels["stream"] == name and "end" in count.name]
        assert ends == [7.0]
        assert {count.name for count in one.counts} == {
            "bascule_partition_size_bytes",
            "bascule_partition_log_end_offset",
        }


def test_a_dead_broker_leaves_the_metadata_and_is_named_by_the_others(cluster: Cluster) -> None:
    """After the failure timeout, two seconds here, and not after the two minutes of the cache."""
    cluster.api("a").FetchMetadata()
    cluster.kill("c")
    try:
        eventually(
            lambda: sorted(one.id for one in cluster.api("a").FetchMetadata().brokers) == ["a", "b"],
            "the dead broker is not listed any more",
            45,
        )
        found = counts(cluster, "a")
        assert ("`c`" in found["c"].error, found["a"].error, found["b"].error) == (True, "", "")
    finally:
        cluster.revive()
    cluster.wait_for_members()
