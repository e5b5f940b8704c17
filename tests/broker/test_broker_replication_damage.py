"""Bytes of one replica go bad, or all of them are lost: it is set aside and fetched anew, and nothing is missing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.cluster_verdict import unequal_batches
from tests.support.api_client import Api, Status, grpc, pb
from tests.support.broker_fixtures import unique_name
from tests.support.cluster import Cluster
from tests.support.nats_setup import ConfiguredNats
from tests.support.replicas import (
    assert_well,
    directories,
    everybody_back,
    in_sync,
    new_leader,
    publish_until_acked,
    read_committed,
)
from tests.support.waiting import eventually

COUNT = 40
VALUES = [b"%03d" % number + bytes(10_000) for number in range(COUNT)]


@pytest.fixture(scope="module")
def whole_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Its NATS takes small messages only: what replicas send each other has to be cut."""
    directory = tmp_path_factory.mktemp("damage")
    with ConfiguredNats(directory / "nats", "max_payload: 32KB") as nats, Cluster(directory, nats=nats) as cluster:
        yield cluster


@pytest.fixture
def cluster(whole_cluster: Cluster) -> Iterator[Cluster]:
    with everybody_back(whole_cluster):
        yield whole_cluster
    assert_well(whole_cluster)


@pytest.fixture
def stream(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """With messages that all replicas have."""
    name = unique_name(request.node.name)
    cluster.create_stream(name)
    session = cluster.api("a").publish_async()
    for number, value in enumerate(VALUES):
        session.send(name, value, ackPolicy=pb.ALL, correlationId=str(number))
    assert [answer.ack.offset for answer in session.take(COUNT)] == list(range(COUNT))
    assert session.finish() == []
    return name


def flip(directory: Path) -> None:
    """One bit in the middle of the first segment."""
    segment = min(directory.glob("*.log"))
    place = segment.stat().st_size // 2
    with segment.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 0x10]))


def wait_until_whole(cluster: Cluster, stream: str) -> None:
    """Every replica is in sync, has all messages, and the same bytes as the others."""
    cluster.wait_until_in_sync(stream)
    seen = cluster.view(stream)
    assert seen is not None
    for name in seen.replicas:
        eventually(lambda name=name: _reads_all(cluster.api(name), stream), f"{name} has everything")  # type: ignore[misc]
    files = {name: path for name, path in directories(cluster, stream).items() if name in seen.replicas}
    eventually(lambda: not unequal_batches(files), "the files of all replicas are the same")


def _reads_all(api: Api, stream: str) -> bool:
    """False when it cannot be read now: what it then finds damaged is repaired."""
    try:
        found = read_committed(api, stream, COUNT, readISRReplica=True)
    except grpc.RpcError as error:
        assert error.code() in (Status.UNAVAILABLE, Status.FAILED_PRECONDITION), error
        return False
    assert found == VALUES
    return True


def was_set_aside(cluster: Cluster, name: str, stream: str) -> bool:
    return (cluster.brokers[name].data / "quarantine" / stream / "0").is_dir()


def test_what_replicas_send_is_cut_where_nats_takes_little(cluster: Cluster, stream: str) -> None:
    follower = cluster.followers_of(stream)[0]
    cluster.kill(follower)
    assert publish_until_acked(cluster, stream, b"more") >= COUNT
    cluster.restart(follower)
    wait_until_whole(cluster, stream)


@pytest.mark.parametrize("whose", ["follower", "leader"])
def test_damage_that_a_reader_finds(cluster: Cluster, stream: str, whose: str) -> None:
    old = cluster.leader_of(stream)
    victim = old if whose == "leader" else cluster.followers_of(stream)[0]
    flip(cluster.partition_directory(victim, stream))
    reader = cluster.api(victim).subscribe(stream, readISRReplica=True)
    found = [message.value for message in reader.rest()]
    assert found == VALUES[: len(found)], "damage was shown"
    assert reader.end()[0] is Status.UNAVAILABLE, reader.end()
    if whose == "leader":
        leader = new_leader(cluster, stream, old)
        assert read_committed(cluster.api(leader), stream, COUNT) == VALUES
    eventually(lambda: was_set_aside(cluster, victim, stream), "the damaged log was set aside")
    wait_until_whole(cluster, stream)
    assert cluster.leader_of(stream) != victim


@pytest.mark.parametrize("whose", ["follower", "leader"])
@pytest.mark.parametrize("stopped", ["killed", "stopped"])
def test_damage_that_came_while_nobody_looked(cluster: Cluster, stream: str, whose: str, stopped: str) -> None:
    victim = cluster.leader_of(stream) if whose == "leader" else cluster.followers_of(stream)[0]
    if stopped == "stopped":
        assert cluster.stop(victim) == 0
    else:
        cluster.kill(*cluster.servers)  # all of them: whoever led leads again, whoever was in sync is
    flip(cluster.partition_directory(victim, stream))
    cluster.restart(*(name for name in cluster.servers if not cluster.brokers[name].is_running))
    wait_until_whole(cluster, stream)
    assert publish_until_acked(cluster, stream, b"more") == COUNT


def test_a_data_directory_that_is_gone_though_its_server_led(cluster: Cluster, stream: str) -> None:
    victim = cluster.leader_of(stream)
    cluster.kill(*cluster.servers)
    shutil.rmtree(cluster.brokers[victim].data)
    cluster.restart(*cluster.servers)
    assert read_committed(cluster.api(new_leader(cluster, stream, victim)), stream, COUNT) == VALUES
    wait_until_whole(cluster, stream)
    assert publish_until_acked(cluster, stream, b"more") == COUNT


@pytest.mark.parametrize("what", ["nothing", "an old copy"])
def test_who_comes_back_with_less_than_it_had_is_not_elected(cluster: Cluster, tmp_path: Path, what: str) -> None:
    """The metadata says that it is in sync, and the only other one that is does not come."""
    name = unique_name("less")
    cluster.create_stream(name, factor=2)
    assert publish_until_acked(cluster, name, VALUES[0]) == 0
    victim, (other,) = cluster.leader_of(name), cluster.followers_of(name)
    (third,) = set(cluster.servers) - {victim, other}
    assert cluster.stop(victim) == 0
    shutil.copytree(cluster.brokers[victim].data, tmp_path / "copy")
    cluster.restart(victim)
    cluster.wait_until_in_sync(name)
    for offset in range(1, COUNT):
        assert publish_until_acked(cluster, name, VALUES[offset]) == offset
    assert cluster.leader_of(name) == other
    cluster.kill(*cluster.servers)
    shutil.rmtree(cluster.brokers[victim].data)
    if what == "an old copy":
        shutil.copytree(tmp_path / "copy", cluster.brokers[victim].data)
    cluster.restart(victim, third)
    assert cluster.view(name) is not None
    eventually(lambda: in_sync(cluster, name) == {other}, "the metadata knows that it cannot be relied on")
    cluster.restart(other)
    wait_until_whole(cluster, name)
