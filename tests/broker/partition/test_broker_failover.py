"""Brokers with replicas die, hang and lose their connections: who leads next has all that was committed, and nobody shows more."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.chaos.cluster.cluster_verdict import unequal_batches
from tests.support.api_client import Status, grpc, pb
from tests.support.broker_fixtures import unique_name
from tests.support.cluster import Cluster
from tests.support.replicas import (
    assert_well,
    directories,
    everybody_back,
    in_sync,
    new_leader,
    numbered,
    publish_all,
    publish_until_acked,
    read_all,
    read_committed,
)
from tests.support.tcp_proxy import SWALLOW
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def whole_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("failover"), proxied=True) as cluster:
        yield cluster


@pytest.fixture
def cluster(whole_cluster: Cluster) -> Iterator[Cluster]:
    with everybody_back(whole_cluster):
        yield whole_cluster
    assert_well(whole_cluster)


@pytest.fixture
def stream(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    name = unique_name(request.node.name)
    cluster.create_stream(name)
    return name


def test_everything_acked_by_all_is_read_from_the_next_leader(cluster: Cluster) -> None:
    name = unique_name("two-partitions")
    cluster.create_stream(name, partitions=2)
    publish_all(cluster.api("a"), name, 100, partition=1)
    old = cluster.leader_of(name, 1)
    cluster.kill(old)
    leader = new_leader(cluster, name, old, 1)
    eventually(lambda: in_sync(cluster, name, 1) == set(cluster.servers) - {old}, "the dead one has left the set")
    assert read_committed(cluster.api(leader), name, 100, 1) == numbered(100)
    found = cluster.api(leader).partition(name, 1)
    assert (found.highWatermark, found.newestOffset) == (99, 99)
    assert cluster.api(leader).publish(name, b"next", 1, ackPolicy=pb.ALL).offset == 100
    cluster.restart(old)
    cluster.wait_until_in_sync(name, 1)
    assert read_committed(cluster.api(old), name, 101, 1, readISRReplica=True) == [*numbered(100), b"next"]


def test_a_dead_follower_holds_up_all_acks_until_it_left_the_set_and_returns_when_it_has_caught_up(
    cluster: Cluster, stream: str
) -> None:
    dead, other = cluster.followers_of(stream)
    led_by = cluster.leader_of(stream)
    leader = cluster.api(led_by)
    readers = [cluster.api(other).subscribe(stream, readISRReplica=True), leader.subscribe(stream)]
    cluster.kill(dead)
    session = leader.publish_async()
    session.send(stream, b"0", ackPolicy=pb.LEADER, correlationId="leader")
    assert session.next().ack.correlationId == "leader"
    session.send(stream, b"1", ackPolicy=pb.ALL, correlationId="all")

    def first_of_follower() -> Any:
        """One that stood still itself has left the set as well, and has ended its readers: it is asked again when it is back."""
        try:
            return readers[0].next()
        except grpc.RpcError as error:
            if error.code() not in (Status.UNAVAILABLE, Status.FAILED_PRECONDITION):
                raise
        readers[0] = cluster.api(other).open_subscription(stream, readISRReplica=True)
        with suppress(grpc.RpcError):
            readers[0].shake_hands()
        return None

    for first in (first_of_follower, readers[1].next):
        assert eventually(first, "it is shown").value == b"0"
        seen = cluster.view(stream, of=led_by)
        assert seen is not None
        assert dead not in seen.in_sync, "shown before it was committed"
    for reader in readers:
        reader.cancel()
    answer = session.next().ack
    assert (answer.correlationId, answer.offset, answer.ackError) == ("all", 1, pb.Ack.OK)
    session.finish()
    publish_all(leader, stream, 50, first=2)
    cluster.restart(dead)
    cluster.wait_until_in_sync(stream)
    assert read_committed(cluster.api(dead), stream, 52, readISRReplica=True) == numbered(52)
    eventually(lambda: not unequal_batches(directories(cluster, stream)), "the files of all replicas are the same")


def test_below_the_minimum_of_in_sync_replicas_nothing_is_committed_and_nothing_is_lost(cluster: Cluster) -> None:
    name = unique_name("min-isr")
    cluster.create_stream(name, factor=2, minIsr=2)
    leader, (follower,) = cluster.leader_of(name), cluster.followers_of(name)
    publish_all(cluster.api(leader), name, 5)
    cluster.kill(follower)
    publish_all(cluster.api(leader), name, 5, first=5, policy=pb.LEADER)
    eventually(lambda: in_sync(cluster, name) == {leader}, "the follower has left")
    publish = cluster.api(leader).future("Publish", stream=name, value=b"10", ackPolicy=pb.ALL)
    found = cluster.api(leader).partition(name)
    assert (found.highWatermark, found.newestOffset) in ((4, 9), (4, 10))
    reader = cluster.api(leader).subscribe(name)
    assert [one.offset for one in reader.take(5)] == [0, 1, 2, 3, 4]
    cluster.kill(leader)
    with pytest.raises(grpc.RpcError):
        reader.next()
    assert publish.exception() is not None
    cluster.restart(leader, follower)
    cluster.wait_until_in_sync(name)
    leader = cluster.leader_of(name)
    assert read_committed(cluster.api(leader), name, 10) == numbered(10)


def test_followers_that_know_nothing_of_the_last_commits_lose_none_when_one_of_them_leads(
    cluster: Cluster, stream: str
) -> None:
    """The high watermark that a crash leaves on disk is an old one: here there is none at all."""
    publish_all(cluster.api("a"), stream, 2)
    old = cluster.leader_of(stream)
    followers = cluster.followers_of(stream)
    cluster.kill(*cluster.servers)
    for name in followers:
        checkpoints = [*cluster.brokers[name].data.rglob("*checkpoint*")]
        assert checkpoints
        for file in checkpoints:
            file.unlink()
    cluster.launch(*followers)
    leader = new_leader(cluster, stream, old)
    assert read_committed(cluster.api(leader), stream, 2) == numbered(2)
    assert publish_until_acked(cluster, stream, b"2") == 2
    cluster.restart(old)
    cluster.wait_until_in_sync(stream)
    assert read_committed(cluster.api(old), stream, 3, readISRReplica=True) == numbered(3)


def test_what_a_leader_had_alone_is_cut_when_it_comes_back(cluster: Cluster, stream: str) -> None:
    old = cluster.leader_of(stream)
    followers = cluster.followers_of(stream)
    assert cluster.api(old).publish(stream, b"hello", ackPolicy=pb.ALL).offset == 0
    for name in followers:
        cluster.cut_off(name, SWALLOW)
    reader = cluster.api(old).subscribe(stream)
    assert reader.next().value == b"hello"
    lost = cluster.api(old).publish(stream, b"world", ackPolicy=pb.LEADER)
    assert lost.offset == 1
    assert cluster.api(old).partition(stream).highWatermark == 0
    cluster.kill(old)
    with pytest.raises(grpc.RpcError):
        assert reader.next() is None, "an uncommitted message was shown"
    for name in followers:
        cluster.heal(name)
    for offset, value in ((1, b"goodnight"), (2, b"moon")):
        assert publish_until_acked(cluster, stream, value) == offset
    cluster.restart(old)
    cluster.wait_until_in_sync(stream)
    for name in cluster.servers:
        found = read_committed(cluster.api(name), stream, 3, readISRReplica=True)
        assert found == [b"hello", b"goodnight", b"moon"], name
    eventually(lambda: not unequal_batches(directories(cluster, stream)), "the files of all replicas are the same")


def test_a_follower_that_falls_out_of_the_set_ends_its_readers(cluster: Cluster, stream: str) -> None:
    publish_all(cluster.api("a"), stream, 3)
    # A paused controller may learn in one message that its replica has left the set and is back: then its readers continue.
    slow = next(name for name in cluster.followers_of(stream) if name != cluster.controller())
    reader = cluster.api(slow).subscribe(stream, readISRReplica=True)
    assert len(reader.take(3)) == 3
    cluster.pause(slow)
    eventually(lambda: slow not in in_sync(cluster, stream), "it has left the set")
    cluster.resume(slow)
    reader.expect_end(Status.UNAVAILABLE, "not in sync")
    cluster.wait_until_in_sync(stream)
    again = cluster.api(slow).subscribe(stream, readISRReplica=True, startPosition=pb.OFFSET, startOffset=3)
    publish_all(cluster.api("a"), stream, 1, first=3)
    assert again.next().offset == 3
    again.cancel()


def test_who_was_away_while_a_stream_was_deleted_and_made_again_keeps_nothing_of_the_old_one(
    cluster: Cluster, stream: str
) -> None:
    away = cluster.followers_of(stream)[0]
    gone = unique_name("gone")
    cluster.create_stream(gone)
    publish_all(cluster.api(away), stream, 10)
    publish_all(cluster.api(away), gone, 10)
    cluster.kill(away)
    api = cluster.api(cluster.well[0])
    api.DeleteStream(name=gone)
    api.DeleteStream(name=stream)
    cluster.create_stream(stream, factor=2)
    assert publish_until_acked(cluster, stream, b"new") == 0
    cluster.restart(away)
    cluster.wait_until_in_sync(stream)
    seen = cluster.view(stream)
    assert seen is not None
    for name in seen.replicas:
        assert read_committed(cluster.api(name), stream, 1, readISRReplica=True) == [b"new"], name
    for name in (gone,) if away in seen.replicas else (gone, stream):
        eventually(
            lambda name=name: not cluster.partition_directory(away, name).exists(),  # type: ignore[misc]
            f"nothing is kept of {name}",
        )


def test_a_replica_that_is_not_in_sync_is_not_read_from_nor_elected(cluster: Cluster) -> None:
    name = unique_name("out-of-sync")
    cluster.create_stream(name, factor=2)
    leader, (follower,) = cluster.leader_of(name), cluster.followers_of(name)
    publish_all(cluster.api(leader), name, 3)
    cluster.kill(follower)
    publish_until_acked(cluster, name, b"3")  # the follower has left, and does not have it
    cluster.pause(leader)
    cluster.restart(follower)
    refusal = cluster.api(follower).open_subscription(name, readISRReplica=True)
    refusal.expect_end(Status.FAILED_PRECONDITION, "not an in-sync replica")
    eventually(lambda: "its leader" in cluster.brokers[follower].said(), "the silent leader was reported")
    seen = cluster.view(name)
    assert seen is not None
    assert (seen.leader, seen.in_sync) == (leader, frozenset({leader}))
    cluster.resume(leader)
    cluster.wait_until_in_sync(name)
    assert read_committed(cluster.api(follower), name, 4, readISRReplica=True) == numbered(4)


def test_a_subscription_ends_with_unavailable_when_its_leader_stops_and_another_one_goes_on(
    cluster: Cluster, stream: str
) -> None:
    old = cluster.leader_of(stream)
    publish_all(cluster.api(old), stream, 3)
    reader = cluster.api(old).subscribe(stream)
    assert len(reader.take(3)) == 3
    assert cluster.stop(old) == 0
    reader.expect_end(Status.UNAVAILABLE)
    cluster.create_stream(unique_name("later"), factor=1)  # who knows of it knows of everything before it
    seen = cluster.view(stream)
    assert seen is not None
    assert seen.leader != old, "a server that stops hands over before it leaves"
    assert old not in seen.in_sync, "all acks would wait for a server that has said goodbye"
    again = cluster.api(seen.leader).subscribe(stream, startPosition=pb.OFFSET, startOffset=3)
    publish_all(cluster.api(seen.leader), stream, 3, first=3)
    assert [one.offset for one in again.take(3)] == [3, 4, 5]
    again.cancel()


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_session_on_a_surviving_broker_goes_on(cluster: Cluster, stream: str, how: str) -> None:
    """Whoever is not told, or told that nobody knows, sends again: nothing that was acked is lost."""
    old = cluster.leader_of(stream)
    survivor = cluster.followers_of(stream)[0]
    session = cluster.api(survivor).publish_async()
    acked: dict[bytes, int] = {}
    failed: list[bytes] = []
    end = threading.Event()

    def receive() -> None:
        with suppress(grpc.RpcError):
            for answer in session.call:
                number = (answer.correlationId or answer.ack.correlationId).encode()
                if answer.HasField("asyncError") or answer.ack.ackError != pb.Ack.OK:
                    failed.append(number)
                else:
                    acked[number] = answer.ack.offset

    receiver = threading.Thread(target=receive, daemon=True)
    receiver.start()

    def send() -> None:
        number = 0
        while not end.is_set():
            session.send(stream, b"%d" % number, ackPolicy=pb.ALL, correlationId=str(number))
            number += 1
            time.sleep(0.001)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    eventually(lambda: len(acked) > 100, "messages are acked")
    if how == "kill":
        cluster.kill(old)
    else:
        assert cluster.stop(old) == 0
    new_leader(cluster, stream, old)
    before = len(acked)
    eventually(lambda: len(acked) > before + 100 or not receiver.is_alive(), "messages are acked after the failover")
    assert receiver.is_alive(), session.call.details()
    end.set()
    sender.join()
    if how == "kill":
        session.cancel()  # some acks will never come
    else:
        session.half_close()
    receiver.join()
    assert session.call.code() is (Status.CANCELLED if how == "kill" else Status.OK), session.call.details()
    assert not set(failed) & set(acked), "refused, and stored all the same"
    found = {one.offset: one.value for one in read_all(cluster, stream)}
    assert {value: found.get(offset) for value, offset in acked.items()} == {value: value for value in acked}
    if how == "stop":
        assert len(set(found.values())) == len(found), "stored twice"
        assert failed == [], "the next leader stores what the one before did not"
