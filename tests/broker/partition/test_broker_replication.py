"""Three brokers, three replicas, all of them well: what is committed is on all, followers know it at once, and may be read."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.chaos.cluster.cluster_verdict import unequal_batches
from tests.support.api_client import Api, Status, Subscription, grpc, pb, refused
from tests.support.broker_fixtures import unique_name
from tests.support.cluster import LONG_TIMEOUTS, Cluster
from tests.support.nats_client import NatsClient
from tests.support.nats_server import NatsServer
from tests.support.replicas import assert_well, directories, publish_all, values
from tests.support.waiting import eventually

AT_ONCE_SECONDS = 20.0
"""For what takes milliseconds, on a busy machine. Whoever waits for a follower's next question waits for a minute."""


@pytest.fixture(scope="module")
def whole_cluster(tmp_path_factory: pytest.TempPathFactory, nats_server: NatsServer) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("replicated"), nats=nats_server, config=LONG_TIMEOUTS) as cluster:
        yield cluster


@pytest.fixture
def cluster(whole_cluster: Cluster) -> Cluster:
    assert_well(whole_cluster)
    return whole_cluster


@pytest.fixture
def stream(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """With a replica on every broker."""
    name = unique_name(request.node.name)
    cluster.create_stream(name)
    return name


def subscribed(api: Api, stream: str) -> Subscription:
    """From a follower, which may have heard of a new stream and not have begun to follow."""

    def attempt() -> Subscription | None:
        try:
            return api.subscribe(stream, readISRReplica=True)
        except grpc.RpcError as error:
            assert error.code() is Status.UNAVAILABLE, error
            return None

    return eventually(attempt, f"{stream} has begun on a follower")


# ── committing ───────────────────────────────────────────────────────────────────────────────────


def test_what_was_acked_by_all_is_on_all_and_committed_on_all(cluster: Cluster) -> None:
    name = unique_name("two-partitions")
    cluster.create_stream(name, partitions=2)
    publish_all(cluster.api("b"), name, 100, partition=1)
    wanted = [b"%d" % number for number in range(100)]
    leader = cluster.leader_of(name, 1)
    found = cluster.api(leader).partition(name, 1)
    assert (found.highWatermark, found.newestOffset, sorted(found.isr)) == (99, 99, ["a", "b", "c"])
    for server in cluster.servers:
        # A reader gets committed messages only: that the last one comes says that 99 is the high watermark here.
        reader = cluster.api(server).subscribe(name, 1, readISRReplica=True)
        assert values(reader.take(100)) == wanted
        reader.cancel()
    assert cluster.api(cluster.leader_of(name)).partition(name).newestOffset == -1
    eventually(lambda: not unequal_batches(directories(cluster, name, 1)), "the files of all replicas are the same")


def test_an_idle_follower_hears_of_new_messages_and_of_their_commit_at_once(cluster: Cluster, stream: str) -> None:
    """A leader that has nothing to send keeps a follower's question until it has: there is no sleep to be waited out."""
    apis = [cluster.api(name) for name in cluster.followers_of(stream)]
    readers = [subscribed(api, stream) for api in apis]
    waits = []
    for number in range(10):
        began = time.monotonic()
        cluster.api("a").publish(stream, b"%d" % number, ackPolicy=pb.ALL)
        for reader in readers:
            assert reader.next().value == b"%d" % number
        waits.append(time.monotonic() - began)
    for reader in readers:
        reader.cancel()
    assert max(waits) < AT_ONCE_SECONDS, waits


def test_a_follower_shows_what_a_leader_ack_told_of_too(cluster: Cluster, stream: str) -> None:
    follower = cluster.api(cluster.followers_of(stream)[0])
    reader = subscribed(follower, stream)
    for number in range(5):
        cluster.api("a").publish(stream, b"%d" % number, ackPolicy=pb.LEADER)
        began = time.monotonic()
        assert reader.next().offset == number
        assert time.monotonic() - began < AT_ONCE_SECONDS
    reader.cancel()


def test_streams_can_be_used_the_moment_they_are_there(cluster: Cluster, nats_server: NatsServer) -> None:
    slow = []
    with NatsClient(nats_server.url) as nats:
        for number in range(20):
            name = unique_name("fresh")
            api, other = (cluster.api(cluster.servers[(number + step) % 3]) for step in range(2))
            eventually(lambda: is_created(api, name), "all servers answer")  # noqa: B023
            began = time.monotonic()
            nats.publish(name, b"plain")
            # Whoever neither made the stream nor leads it may hear of it a little later.
            eventually(lambda: other.stream(name).error == pb.StreamMetadata.OK, "another server knows of it")  # noqa: B023
            assert other.publish(name, b"x", ackPolicy=pb.ALL).offset == 1
            slow.append(time.monotonic() - began)
    assert max(slow) < AT_ONCE_SECONDS, slow


def is_created(api: Api, name: str) -> bool:
    """False when one of the servers that the stream needs stands still for a moment."""
    try:
        api.CreateStream(name=name, subject=name, replicationFactor=3)
    except grpc.RpcError as error:
        assert error.code() is Status.UNAVAILABLE, error
        return False
    return True


def test_replication_factor_minus_one_means_every_broker(cluster: Cluster) -> None:
    def created() -> str:
        """Empty when a server that stands still for a moment was left out."""
        name = unique_name("everywhere")
        cluster.create_stream(name, factor=-1, partitions=2)
        views = [cluster.view(name, partition) for partition in range(2)]
        return name if all(one is not None and one.replicas == one.in_sync == {*"abc"} for one in views) else ""

    name = eventually(created, "every broker has a replica")
    for partition in range(2):
        assert cluster.api("c").publish(name, b"x", partition=partition, ackPolicy=pb.ALL).offset == 0


def test_a_broker_without_a_replica_has_no_files_of_it(cluster: Cluster) -> None:
    name = unique_name("two-of-three")
    cluster.create_stream(name, factor=2)
    cluster.api("a").publish(name, b"x", ackPolicy=pb.ALL)
    seen = cluster.view(name)
    assert seen is not None
    (without,) = set(cluster.servers) - seen.replicas
    assert not cluster.partition_directory(without, name).exists()
    for server in seen.replicas:
        assert cluster.partition_directory(server, name).exists()


def test_deleting_a_stream_takes_the_files_of_all_replicas(cluster: Cluster, stream: str) -> None:
    publish_all(cluster.api("a"), stream, 10)
    cluster.api("c").DeleteStream(name=stream)
    eventually(
        lambda: not any(path.exists() for path in directories(cluster, stream).values()), "all replicas are gone"
    )
    cluster.create_stream(stream)
    assert cluster.api("a").publish(stream, b"new", ackPolicy=pb.ALL).offset == 0


def test_pausing_and_resuming_a_replicated_stream_loses_nothing(cluster: Cluster, stream: str) -> None:
    for offset in range(3):
        assert cluster.api("b").publish(stream, b"%d" % offset, ackPolicy=pb.ALL).offset == offset
        cluster.api("c").PauseStream(name=stream)
        # Who has not heard of it yet resumes nothing.
        eventually(
            lambda: all(cluster.api(name).stream(stream).partitions[0].paused for name in cluster.servers),
            "everybody knows of the pause",
        )
    assert cluster.api("a").publish(stream, b"3", ackPolicy=pb.ALL).offset == 3
    found = cluster.api(cluster.leader_of(stream)).read(stream)
    assert values(found) == [b"0", b"1", b"2", b"3"]
    cluster.wait_until_in_sync(stream)


def test_readonly_holds_on_followers_too(cluster: Cluster, stream: str) -> None:
    publish_all(cluster.api("a"), stream, 3)
    cluster.api("a").SetStreamReadonly(name=stream, readonly=True)
    for name in cluster.servers:
        eventually(
            lambda name=name: cluster.api(name).stream(stream).partitions[0].readonly,  # type: ignore[misc]
            f"{name} knows that it is readonly",
        )
        reader = cluster.api(name).subscribe(stream, readISRReplica=True)
        assert [one.offset for one in reader.take(3)] == [0, 1, 2]
        reader.expect_end(Status.RESOURCE_EXHAUSTED, "End of readonly partition")


# ── reading from followers ───────────────────────────────────────────────────────────────────────


def test_only_who_asks_for_it_reads_from_a_follower(cluster: Cluster, stream: str) -> None:
    publish_all(cluster.api("a"), stream, 5)
    for name in cluster.followers_of(stream):
        api = cluster.api(name)
        api.open_subscription(stream).expect_end(Status.FAILED_PRECONDITION, "Server not partition leader")
        api.open_subscription(stream, readISRReplica=True, consumer={"groupId": "g", "consumerId": "c"}).expect_end(
            Status.INVALID_ARGUMENT
        )
        with refused(Status.FAILED_PRECONDITION):
            api.partition(stream)
        reader = api.subscribe(stream, readISRReplica=True, startPosition=pb.OFFSET, startOffset=2)
        assert [one.offset for one in reader.take(3)] == [2, 3, 4]
        reader.cancel()
        assert [one.offset for one in api.read(stream, readISRReplica=True)] == [0, 1, 2, 3, 4]
        backward = api.subscribe(stream, readISRReplica=True, reverse=True, startPosition=pb.LATEST)
        assert [one.offset for one in backward.take(5)] == [4, 3, 2, 1, 0]


def test_a_broker_that_has_no_replica_refuses(cluster: Cluster) -> None:
    name = unique_name("elsewhere")
    cluster.create_stream(name, factor=2)
    seen = cluster.view(name)
    assert seen is not None
    (without,) = set(cluster.servers) - seen.replicas
    refusal = cluster.api(without).open_subscription(name, readISRReplica=True)
    refusal.expect_end(Status.FAILED_PRECONDITION, "Server not an in-sync replica of the partition")


# ── large messages ───────────────────────────────────────────────────────────────────────────────


def test_the_largest_messages_that_are_taken_are_replicated(cluster: Cluster, stream: str) -> None:
    """`clustering.replication.max.bytes` is 1 MiB, like NATS' max_payload; stored, a message is larger than it was on its way."""
    fields = {"key": b"k" * 100, "headers": {"first": b"h" * 1000, "second": b"\x00" * 300}, "ackPolicy": pb.ALL}
    stored: list[int] = []
    taken, refusal = 0, (1 << 20) + 1
    while refusal - taken > 1:
        size = refusal - 2048 if not taken else (taken + refusal) // 2
        try:
            stored.append(size)
            assert cluster.api("a").publish(stream, bytes(size), **fields).offset == len(stored) - 1
            taken = size
        except grpc.RpcError as error:
            assert error.code() in (Status.INVALID_ARGUMENT, Status.RESOURCE_EXHAUSTED, Status.UNKNOWN), error
            stored.pop()
            refusal = size
    assert taken > (1 << 20) - 2048, taken
    for name in cluster.servers:
        reader = cluster.api(name).subscribe(stream, readISRReplica=True)
        found = [(len(one.value), one.headers["first"]) for one in reader.take(len(stored))]
        assert found == [(size, b"h" * 1000) for size in stored]
        reader.cancel()
    cluster.wait_until_in_sync(stream)


def test_much_at_once_is_replicated_whole_and_in_order(cluster: Cluster, stream: str) -> None:
    session, count, size = cluster.api("a").publish_async(), 48, 500_000
    for number in range(count):
        value = b"%08d" % number + bytes(size)
        session.send(stream, value, ackPolicy=pb.ALL, correlationId=str(number))
    assert sorted(answer.ack.offset for answer in session.take(count)) == list(range(count))
    assert session.finish() == []
    follower = cluster.api(cluster.followers_of(stream)[1])
    found = follower.read(stream, readISRReplica=True)
    assert [(one.value[:8], len(one.value)) for one in found] == [(b"%08d" % n, size + 8) for n in range(count)]
    eventually(lambda: not unequal_batches(directories(cluster, stream)), "the files of all replicas are the same")
