"""Three brokers that are one cluster: every call may go to any of them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.support.api_client import Api, Status, pb, refused
from tests.support.broker_fixtures import StartBroker, unique_name
from tests.support.broker_process import BrokerProcess

IDS = ("a", "b", "c")


@pytest.fixture
def cluster(start_broker: StartBroker) -> dict[str, BrokerProcess]:
    namespace = unique_name("cluster")
    brokers = {}
    for name in IDS:
        peers = [flag for other in IDS if other != name for flag in ("--raft-bootstrap-peers", other)]
        config = {"clustering.namespace": namespace, "cursors.stream.partitions": 6, "activity.stream.enabled": True}
        arguments = ["--server-id", name, *peers]
        brokers[name] = start_broker(config, seed=False, arguments=arguments, launch_only=True)
    for broker in brokers.values():
        broker.wait_ready(60)
    return brokers


@pytest.fixture
def apis(cluster: dict[str, BrokerProcess]) -> Iterator[dict[str, Api]]:
    clients = {name: broker.api() for name, broker in cluster.items()}
    yield clients
    for client in clients.values():
        client.close()


def test_whatever_one_broker_is_told_all_know(cluster: dict[str, BrokerProcess], apis: dict[str, Api]) -> None:
    a, b, c = (apis[name] for name in IDS)
    b.CreateStream(name="orders", subject="orders", partitions=6)
    for api in (a, c):
        with refused(Status.ALREADY_EXISTS):
            api.CreateStream(name="orders", subject="other")
    partitions = b.FetchMetadata(streams=["orders"]).streamMetadata[0].partitions
    assert {partition.leader for partition in partitions.values()} == set(IDS)
    with refused(Status.FAILED_PRECONDITION, "one replica"):
        a.CreateStream(name="copies", subject="x", replicationFactor=3)
    with refused(Status.INVALID_ARGUMENT):
        a.CreateStream(name="copies", subject="x", replicationFactor=4)
    found = c.FetchMetadata()
    assert [broker.id for broker in found.brokers] == ["c", "a", "b"]
    assert {f"{broker.host}:{broker.port}" for broker in found.brokers} == {each.address for each in cluster.values()}
    # published anywhere, read where the partition is led
    for number, partition in partitions.items():
        for api in (a, b, c):
            api.publish("orders", b"x", partition=number, ackPolicy=pb.ALL)
        assert apis[partition.leader].partition("orders", number).newestOffset == 2
        other = next(api for name, api in apis.items() if name != partition.leader)
        with refused(Status.FAILED_PRECONDITION):
            other.partition("orders", number)


def test_any_broker_keeps_and_knows_any_cursor(apis: dict[str, Api]) -> None:
    clients = list(apis.values())
    for number in range(18):
        clients[number % 3].SetCursor(stream="orders", cursorId=f"c{number}", offset=number)
    for number in range(18):
        for api in clients:
            assert api.FetchCursor(stream="orders", cursorId=f"c{number}").offset == number
    assert clients[0].FetchCursor(stream="orders", cursorId="nobody").offset == -1


def test_paused_partitions_are_resumed_by_a_publish_through_any_broker(apis: dict[str, Api]) -> None:
    a, b, c = (apis[name] for name in IDS)
    a.CreateStream(name="orders", subject="orders", partitions=3)
    b.PauseStream(name="orders", resumeAll=True)
    c.publish("orders", b"x", partition=1, ackPolicy=pb.ALL)
    assert not any(each.paused for each in c.FetchMetadata(streams=["orders"]).streamMetadata[0].partitions.values())
    b.DeleteStream(name="orders")
    with refused(Status.NOT_FOUND):
        b.DeleteStream(name="orders")


def test_a_group_is_coordinated_by_one_of_them(apis: dict[str, Api]) -> None:
    a, b = apis["a"], apis["b"]
    a.CreateStream(name="orders", subject="orders", partitions=4)
    a.JoinConsumerGroup(groupId="g", consumerId="c1", streams=["orders"])
    joined = b.JoinConsumerGroup(groupId="g", consumerId="c2", streams=["orders"])
    coordinator = apis[joined.coordinator]
    members = {"groupId": "g", "epoch": joined.epoch}
    shares = [
        coordinator.FetchConsumerGroupAssignments(consumerId=consumer, **members).assignments[0].partitions
        for consumer in ("c1", "c2")
    ]
    assert sorted(number for share in shares for number in share) == [0, 1, 2, 3]
    other = next(api for name, api in apis.items() if name != joined.coordinator)
    with refused(Status.FAILED_PRECONDITION):
        other.FetchConsumerGroupAssignments(consumerId="c1", **members)
    for consumer in ("c1", "c2"):
        other.ReportConsumerGroupCoordinator(coordinator=joined.coordinator, consumerId=consumer, **members)
    (group,) = other.FetchMetadata(groups=["g"]).groupMetadata
    assert group.coordinator != joined.coordinator
    assert group.epoch > joined.epoch


def test_streams_are_created_on_whoever_is_left(cluster: dict[str, BrokerProcess], apis: dict[str, Api]) -> None:
    apis["a"].CreateStream(name="before", subject="before", partitions=3)
    cluster["c"].kill()
    time.sleep(2.5)  # what was heard of it grows old
    for number in range(3):
        apis["a"].CreateStream(name=f"after-{number}", subject=f"after-{number}", timeout=60)
        apis["b"].publish(f"after-{number}", b"x", ackPolicy=pb.ALL)
    assert sorted(broker.id for broker in apis["a"].FetchMetadata().brokers) == ["a", "b"]
