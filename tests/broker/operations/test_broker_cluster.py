"""Three brokers on one NATS server: every call may arrive at any of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.api_client import Api, Status, grpc, pb, refused
from tests.support.broker_fixtures import unique_name
from tests.support.broker_process import BrokerProcess
from tests.support.cluster import PRODUCT_TIMEOUTS, SERVERS, Cluster
from tests.support.nats_client import NatsClient
from tests.support.nats_server import NatsServer
from tests.support.waiting import eventually


@dataclass
class Three:
    brokers: dict[str, BrokerProcess]
    apis: dict[str, Api]

    def create(self, through: str = "a", **fields: Any) -> str:
        """A stream that every server has heard of."""
        name = unique_name("stream")
        self.apis[through].CreateStream(**{"name": name, "subject": f"subject.{name}", **fields})
        self.settle(name)
        return name

    def settle(self, name: str) -> None:
        eventually(
            lambda: all(api.stream(name).error == pb.StreamMetadata.OK for api in self.apis.values()),
            "all servers know the stream",
        )
        eventually(lambda: self.is_led(name), "the leaders of the stream have begun")

    def is_led(self, name: str) -> bool:
        """A creation does not wait for a leader that is slow to begin."""
        try:
            for number in self.apis["a"].stream(name).partitions:
                self.leader_api(name, number).partition(name, number)
        except grpc.RpcError:
            return False
        return True

    def leader(self, name: str, partition: int = 0) -> str:
        return str(self.apis["a"].stream(name).partitions[partition].leader)

    def leader_api(self, name: str, partition: int = 0) -> Api:
        return self.apis[self.leader(name, partition)]

    def others(self, name: str, partition: int = 0) -> list[Api]:
        return [api for server, api in self.apis.items() if server != self.leader(name, partition)]


@contextmanager
def started(directory: Path, nats: NatsServer) -> Iterator[Three]:
    config = {**PRODUCT_TIMEOUTS, "cursors.stream.partitions": 3}
    with Cluster(directory, nats=nats, seeded=True, config=config) as found:
        yield Three(found.brokers, {server: found.api(server) for server in SERVERS})


@pytest.fixture(scope="module")
def whole_cluster(tmp_path_factory: pytest.TempPathFactory, nats_server: NatsServer) -> Iterator[Three]:
    with started(tmp_path_factory.mktemp("cluster-of-three"), nats_server) as found:
        yield found


@pytest.fixture
def cluster(whole_cluster: Three) -> Three:
    for broker in whole_cluster.brokers.values():
        assert broker.is_running, broker.tail()
    return whole_cluster


@pytest.mark.parametrize("server", SERVERS)
def test_every_broker_is_told_by_every_broker_itself_first(cluster: Three, server: str) -> None:
    # One that has stood still for some seconds is left out until it answers again.
    found = eventually(
        lambda: told if len(told := cluster.apis[server].FetchMetadata().brokers) == 3 else None,
        "all three are told of",
    )
    assert found[0].id == server
    told = {one.id: f"{one.host}:{one.port}" for one in found}
    assert told == {name: broker.address for name, broker in cluster.brokers.items()}


@pytest.mark.parametrize("server", SERVERS)
def test_streams_are_created_and_deleted_through_anybody(cluster: Three, server: str) -> None:
    name = cluster.create(server)
    for api in cluster.apis.values():
        with refused(Status.ALREADY_EXISTS, "stream already exists"):
            api.CreateStream(name=name, subject="x")
    api = cluster.apis[server]
    for fields in ({"name": "", "subject": "x"}, {"name": "__cursors", "subject": "x"}, {"name": "x", "subject": ""}):
        with refused(Status.INVALID_ARGUMENT):
            api.CreateStream(**fields)
    with refused(Status.INVALID_ARGUMENT):
        api.CreateStream(name="x", subject="x", replicationFactor=4)
    with refused(Status.NOT_FOUND, "stream does not exist"):
        api.DeleteStream(name="never-was")
    api.DeleteStream(name=name)
    eventually(
        lambda: all(one.stream(name).error == pb.StreamMetadata.UNKNOWN_STREAM for one in cluster.apis.values()),
        "nobody knows the stream any more",
    )


def test_what_was_created_through_one_can_be_used_through_another_at_once(cluster: Three) -> None:
    for number in range(9):
        name = unique_name("at-once")
        cluster.apis[SERVERS[number % 3]].CreateStream(name=name, subject=name)
        leader = cluster.apis[SERVERS[number % 3]].stream(name).partitions[0].leader
        assert cluster.apis[leader].publish(name, b"x").offset == 0


def test_partitions_of_one_stream_are_spread(cluster: Three) -> None:
    def leaders() -> list[str]:
        name = cluster.create(partitions=6)
        return sorted(partition.leader for partition in cluster.apis["a"].stream(name).partitions.values())

    # A server that a busy machine keeps from answering in time gets nothing: that is right, and not what is looked at here.
    eventually(lambda: leaders() == ["a", "a", "b", "b", "c", "c"], "six partitions are spread over three servers")


@pytest.mark.parametrize("policy", [pb.LEADER, pb.ALL])
def test_publishing_works_on_any_server_for_any_partition(cluster: Three, policy: int) -> None:
    name = cluster.create(partitions=3)
    for partition in range(3):
        for offset, api in enumerate(cluster.apis.values()):
            ack = api.publish(name, b"%d" % offset, partition=partition, ackPolicy=policy, correlationId="c")
            assert (ack.offset, ack.correlationId, ack.stream) == (offset, "c", name)
        found = cluster.leader_api(name, partition).read(name, partition)
        assert [message.value for message in found] == [b"0", b"1", b"2"]


def test_a_session_publishes_to_partitions_of_all_servers(cluster: Three) -> None:
    name = cluster.create(partitions=6)
    session = cluster.apis["b"].publish_async()
    for number in range(600):
        session.send(name, b"%d" % number, partition=number % 6, correlationId=str(number))
    answers = session.take(600)
    assert all(int(answer.correlationId) // 6 == answer.ack.offset for answer in answers)
    assert session.finish() == []
    for partition in range(6):
        found = cluster.leader_api(name, partition).read(name, partition)
        assert [int(message.value) for message in found] == list(range(partition, 600, 6))


def test_only_the_leader_serves_subscribers_and_partition_metadata(cluster: Three) -> None:
    name = cluster.create()
    cluster.apis["a"].publish(name, b"x")
    assert [message.value for message in cluster.leader_api(name).read(name)] == [b"x"]
    assert cluster.leader_api(name).partition(name).newestOffset == 0
    for api in cluster.others(name):
        api.open_subscription(name).expect_end(Status.FAILED_PRECONDITION, "Server not partition leader")
        api.open_subscription(name, readISRReplica=True).expect_end(Status.FAILED_PRECONDITION)
        with refused(Status.FAILED_PRECONDITION):
            api.partition(name)
        api.open_subscription(name, readISRReplica=True, consumer={"groupId": "g", "consumerId": "c"}).expect_end(
            Status.INVALID_ARGUMENT
        )


@pytest.mark.parametrize("server", SERVERS)
def test_pause_and_readonly_through_anybody(cluster: Three, server: str) -> None:
    name, api = cluster.create(partitions=3), cluster.apis[server]
    api.PauseStream(name=name)

    def paused(one: Api) -> list[bool]:
        return [partition.paused for _, partition in sorted(one.stream(name).partitions.items())]

    eventually(lambda: all(paused(one) == [True] * 3 for one in cluster.apis.values()), "all see the pause")
    for partition in range(3):
        assert api.publish(name, b"x", partition=partition).offset == 0
    api.SetStreamReadonly(name=name, partitions=[1], readonly=True)
    eventually(
        lambda: all(one.stream(name).partitions[1].readonly for one in cluster.apis.values()), "all see the flag"
    )
    for one in cluster.apis.values():
        with refused(Status.FAILED_PRECONDITION):
            one.publish(name, b"x", partition=1)
    subscription = cluster.leader_api(name, 1).subscribe(name, 1)
    assert subscription.next().value == b"x"
    subscription.expect_end(Status.RESOURCE_EXHAUSTED, "End of readonly partition")


def test_cursors_work_on_any_server(cluster: Three) -> None:
    for number in range(12):
        cursor = {"stream": "s", "partition": 0, "cursorId": unique_name("c")}
        setter, getter = cluster.apis[SERVERS[number % 3]], cluster.apis[SERVERS[(number + 1) % 3]]
        setter.SetCursor(**cursor, offset=number)
        assert getter.FetchCursor(**cursor).offset == number
        getter.SetCursor(**cursor, offset=number + 1)
        assert setter.FetchCursor(**cursor).offset == number + 1


def test_groups_are_joined_through_anybody_and_asked_at_their_coordinator(cluster: Three) -> None:
    name, group = cluster.create(partitions=3), unique_name("g")
    for number, api in enumerate(cluster.apis.values()):
        joined = api.JoinConsumerGroup(groupId=group, consumerId=f"c{number}", streams=[name])
    asked = {"groupId": group, "consumerId": "c0", "epoch": joined.epoch}
    coordinator = cluster.apis[joined.coordinator]

    def answers() -> bool:
        return bool(coordinator.future("FetchConsumerGroupAssignments", **asked).code() is Status.OK)

    eventually(answers, "the coordinator answers")
    for server, api in cluster.apis.items():
        if server != joined.coordinator:
            with refused((Status.FAILED_PRECONDITION, Status.NOT_FOUND)):
                api.FetchConsumerGroupAssignments(**asked)


def test_a_majority_of_reports_moves_the_coordinator(cluster: Three) -> None:
    name, group = cluster.create(), unique_name("g")
    for consumer in ("x", "y", "z"):
        joined = cluster.apis["a"].JoinConsumerGroup(groupId=group, consumerId=consumer, streams=[name])
    old = {"coordinator": joined.coordinator, "epoch": joined.epoch}

    def moved() -> bool:
        """Reports are made again, as members do: a controller that has just begun knows nothing of those before."""
        for consumer in ("x", "y"):
            report = {"groupId": group, "consumerId": consumer, **old}
            cluster.apis["b"].future("ReportConsumerGroupCoordinator", **report).exception()
        (found,) = cluster.apis["a"].FetchMetadata(groups=[group]).groupMetadata
        return bool(found.coordinator != joined.coordinator and found.epoch > joined.epoch)

    eventually(moved, "another coordinator was chosen")


def test_plain_messages_reach_the_leader_wherever_it_is(cluster: Three) -> None:
    name = cluster.create(partitions=3)
    with NatsClient(cluster.brokers["a"].nats_url) as nats:
        for subject in ("", ".1", ".2"):
            nats.publish(f"subject.{name}{subject}", b"x")
    for partition in range(3):
        subscription = cluster.leader_api(name, partition).subscribe(name, partition)
        assert subscription.next().value == b"x"
        subscription.cancel()


def test_two_of_three_go_on_when_one_was_killed(
    tmp_path_factory: pytest.TempPathFactory, nats_server: NatsServer
) -> None:
    with started(tmp_path_factory.mktemp("killed"), nats_server) as cluster:
        name = cluster.create(partitions=9)
        for partition in range(9):
            cluster.apis["a"].publish(name, b"before", partition=partition)
        cluster.brokers["a"].kill()
        alive = [cluster.apis["b"], cluster.apis["c"]]

        def creates() -> bool:
            call = alive[0].future("CreateStream", name="after", subject="after", timeout=5)
            return call.code() in (Status.OK, Status.ALREADY_EXISTS)  # there, though an earlier answer came too late

        eventually(creates, "streams can be created again")
        survivors = [n for n, one in alive[0].stream(name).partitions.items() if one.leader != "a"]
        for partition in survivors:
            assert alive[1].publish(name, b"after", partition=partition).offset == 1
        cluster.brokers["a"].start()
        back = cluster.brokers["a"].api()
        eventually(lambda: back.stream("after").error == pb.StreamMetadata.OK, "the killed one has caught up")
        led = set(range(9)) - set(survivors)
        assert led
        cluster.apis["a"] = back
        eventually(lambda: cluster.is_led(name), "the killed one leads again")
        for partition in led:
            assert [message.value for message in back.read(name, partition)] == [b"before"]
