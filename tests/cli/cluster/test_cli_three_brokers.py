"""What a user met on one broker holds on three, whichever broker is asked and whichever leads."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle

import pytest

import bascule as api
from bascule import errors
from bascule.client.blocking import BlockingClient, BlockingClusterAdmin, BlockingStreamAdmin
from tests.cli.command_line import Outcome, Run
from tests.support.broker_fixtures import unique_name
from tests.support.cluster import LONG_TIMEOUTS, Cluster
from tests.support.nats_server import NatsServer
from tests.support.waiting import eventually

PARTITIONS = 6
"""Some are led by each broker."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, nats_server: NatsServer) -> Iterator[Cluster]:
    config = {**LONG_TIMEOUTS, "cursors.stream.partitions": 3, "clustering.min.insync.replicas": 2}
    with Cluster(tmp_path_factory.mktemp(unique_name("brokers")), nats=nats_server, config=config) as found:
        yield found


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[BlockingClient]:
    with api.blocking.connect(cluster.addresses, timeout=60) as found:
        yield found


@pytest.fixture
def bascule(cluster: Cluster, call: Run) -> Run:
    """Each command asks another broker."""
    addresses = cycle(cluster.addresses)

    def run(*arguments: str) -> Outcome:
        return call(*arguments, "--server", next(addresses), "--timeout", "60s")

    return run


@pytest.fixture
def name(client: BlockingClient) -> str:
    """A stream with ten messages in each partition."""
    found = unique_name("three")
    client.create_stream(found, partitions=PARTITIONS)
    for number in range(PARTITIONS):
        client.publish_many(found, [b"%d" % one for one in range(10)], partition=number, ack="all")
    return found


def test_a_stream_that_is_replaced_gets_every_message_of_the_same_connection(client: BlockingClient) -> None:
    """A broker that is behind must not be taken for the leader of the new stream."""
    name = unique_name("replaced")
    for turn in range(12):
        client.create_stream(name, partitions=3)
        found = [client.publish(name, b"%d" % turn, partition=number).offset for number in range(3)]
        assert found == [0, 0, 0]
        client.delete_stream(name)


def test_streams_have_as_many_replicas_as_the_settings_need(client: BlockingClient, name: str) -> None:
    info = client.fetch_metadata([name]).streams[name]
    assert {len(one.replicas) for one in info.partitions.values()} == {3}
    assert len({one.leader for one in info.partitions.values()}) > 1
    with pytest.raises(errors.CallerError, match=r"min\.insync\.replicas"):
        client.create_stream(unique_name("few"), replication_factor=1)


def test_creation_and_values_are_what_the_guides_say(client: BlockingClient, name: str) -> None:
    with pytest.raises(errors.StreamExists, match=name):
        client.create_stream(name)
    client.create_stream(name, if_not_exists=True)
    with pytest.raises(errors.InvalidOption, match="expected_offset"):
        client.publish(name, b"x", expected_offset=3)
    acks = [client.publish(name, value, partition=number, ack="all") for number, value in enumerate((None, b""))]
    assert [(ack.partition, ack.offset) for ack in acks] == [(0, 10), (1, 10)]
    assert [message.value for message in client.subscribe(name, partition=[0, 1], start=10, stop="latest")] in (
        [None, b""],
        [b"", None],
    )


def test_lag_counts_every_partition_and_a_group_can_be_moved_and_deleted(
    bascule: Run, client: BlockingClient, name: str
) -> None:
    client.set_cursor(f"__group:{name}", name, 2, 3)
    document = bascule("group", "describe", name, "--json").ok().json
    assert {one["partition"]: one["lag"] for one in document["partitions"]} == {0: 10, 1: 10, 2: 6, 3: 10, 4: 10, 5: 10}
    assert next(row for row in bascule("group", "list").ok().rows if row[0] == name)[4] == "56"
    bascule("group", "reset", name, "--to", "latest", "--yes").ok()
    assert bascule("group", "describe", name, "--json").ok().json["lag"] == 0
    bascule("group", "reset", name, "--to", "earliest", "--yes").ok()
    with client.consumer(name, name) as consumer:
        found = sorted((one.partition, one.offset) for one in (next(consumer) for _ in range(PARTITIONS * 10)))
        assert found == [(number, offset) for number in range(PARTITIONS) for offset in range(10)]
        consumer.seek(8)
        consumer.pause((name, 0))
        found = sorted((one.partition, one.offset) for one in (next(consumer) for _ in range(PARTITIONS * 2 - 2)))
        assert found == [(number, offset) for number in range(1, PARTITIONS) for offset in (8, 9)]
        consumer.resume()
        assert next(consumer).partition == 0
    bascule("group", "delete", name, "--yes").ok()
    bascule("group", "describe", name).failed(3, name)


def test_cursors_can_be_listed_and_deleted(bascule: Run, name: str) -> None:
    for number in range(PARTITIONS):
        bascule("cursor", "set", name, name, "5", "--partition", str(number)).ok()
    rows = [row for row in bascule("cursor", "list").ok().rows if row[0] == name]
    assert [row[1:4] for row in rows] == [[name, str(number), "5"] for number in range(PARTITIONS)]
    bascule("cursor", "delete", name, "--yes").ok()
    assert [row for row in bascule("cursor", "list").ok().rows if row[0] == name] == []


def test_each_broker_describes_streams_and_counts_of_all(bascule: Run, client: BlockingClient, name: str) -> None:
    found = BlockingStreamAdmin(client).describe(name)
    assert [one.messages for one in found.partitions] == [10] * PARTITIONS
    assert bascule("stream", "describe", name, "--json").ok().json["partitions"]
    counts = BlockingClusterAdmin(client).counts(["bascule_ready"])
    assert sorted((one.server, one.error) for one in counts) == [("a", ""), ("b", ""), ("c", "")]
    assert bascule("cluster", "wait", "--healthy", "--for", "60s").ok()


def test_a_paused_partition_keeps_its_offsets_on_every_broker(
    cluster: Cluster, client: BlockingClient, name: str
) -> None:
    client.pause_stream(name)
    for server in cluster.servers:

        def ends(server: str = server) -> bool:
            (stream,) = cluster.api(server).FetchMetadata(streams=[name]).streamMetadata
            return all(one.paused for one in stream.partitions.values())

        eventually(ends, "the broker knows that the stream is paused")
    found = BlockingStreamAdmin(client).describe(name)
    assert [(one.high_watermark, one.paused) for one in found.partitions] == [(9, True)] * PARTITIONS


def test_subscriptions_filter_seek_and_pause(client: BlockingClient, name: str) -> None:
    client.publish_many(name, [b"with key"] * 2, keys=["k", "l"], partition=4, ack="all")
    assert [one.offset for one in client.subscribe(name, key="k", stop="latest")] == [10]
    with client.subscribe(name) as subscription:
        assert len([next(subscription) for _ in range(PARTITIONS * 10 + 2)]) == 62
        subscription.seek(9, 1, 2)
        assert sorted(next(subscription).partition for _ in range(2)) == [1, 2]
        assert subscription.poll(0.02) is None
