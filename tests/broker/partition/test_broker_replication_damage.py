"""Bytes of one replica go bad, or all of them are lost: it is set aside and fetched anew, and nothing is missing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.cluster.cluster_verdict import unequal_batches
from tests.support.api_client import Api, Status, grpc
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
def stream(cluster: Cluster) -> str:
    """With messages that all replicas have."""
    return make_stream(cluster)


def make_stream(cluster: Cluster, count: int = COUNT) -> str:
    name = unique_name("stream")
    cluster.create_stream(name)
    fill(cluster, name, 0, count)
    return name


def fill(cluster: Cluster, stream: str, first: int, end: int) -> None:
    """Whoever leads: a server that stood still may have lost its part, and its place in the in-sync set, for a moment."""
    for number in range(first, end):
        assert publish_until_acked(cluster, stream, VALUES[number]) == number
    cluster.wait_until_in_sync(stream)


def flip(directory: Path, part: float = 0.5) -> None:
    """One bit of the first segment, in the middle of it or elsewhere."""
    segment = min(directory.glob("*.log"))
    place = int(segment.stat().st_size * part)
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


def test_damage_that_came_while_the_server_was_stopped(cluster: Cluster) -> None:
    """What was synced is not read again at a start: it is found when somebody does."""
    streams = [make_stream(cluster) for _ in range(3)]
    victim = cluster.leader_of(streams[0])
    assert cluster.stop(victim) == 0
    for name in streams:
        flip(cluster.partition_directory(victim, name))
    cluster.restart(victim)
    for name in streams:
        wait_until_whole(cluster, name)
        assert was_set_aside(cluster, victim, name)


def test_damage_that_came_while_all_were_dead(cluster: Cluster) -> None:
    """Whoever led leads again, and whoever was in sync is: until it is known what has become of its files."""
    in_tail = [make_stream(cluster, COUNT // 2) for _ in range(2)]
    cluster.kill(*cluster.servers)
    cluster.restart(*cluster.servers)  # writes checkpoints: what comes now may be cut at the next start
    for name in in_tail:
        cluster.wait_until_in_sync(name)
        fill(cluster, name, COUNT // 2, COUNT)
    in_middle, gone = [make_stream(cluster) for _ in range(2)], [make_stream(cluster) for _ in range(2)]
    victims = {
        name: cluster.leader_of(name) if number % 2 else cluster.followers_of(name)[0]
        for number, name in enumerate(in_tail + in_middle + gone)
    }
    cluster.kill(*cluster.servers)
    for name, victim in victims.items():
        directory = cluster.partition_directory(victim, name)
        if name in gone:
            shutil.rmtree(directory)
        else:
            flip(directory, 0.75 if name in in_tail else 0.1)
    cluster.restart(*cluster.servers)
    for name, victim in victims.items():
        wait_until_whole(cluster, name)
        assert cluster.leader_of(name) != victim
        assert publish_until_acked(cluster, name, b"more") >= COUNT


def test_a_data_directory_that_is_gone_though_its_server_led(cluster: Cluster, stream: str) -> None:
    victim = cluster.leader_of(stream)
    cluster.kill(*cluster.servers)
    shutil.rmtree(cluster.brokers[victim].data)
    cluster.restart(*cluster.servers)
    assert read_committed(cluster.api(new_leader(cluster, stream, victim)), stream, COUNT) == VALUES
    wait_until_whole(cluster, stream)
    assert publish_until_acked(cluster, stream, b"more") == COUNT


def test_who_comes_back_with_an_old_copy_is_not_elected(cluster: Cluster, tmp_path: Path) -> None:
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
    shutil.copytree(tmp_path / "copy", cluster.brokers[victim].data)
    cluster.launch(victim, third)
    eventually(lambda: in_sync(cluster, name) == {other}, "the metadata knows that it cannot be relied on")
    cluster.launch(other)
    wait_until_whole(cluster, name)
