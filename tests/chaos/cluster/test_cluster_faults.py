"""Three brokers, three replicas, writers and readers that never stop: whatever fails, nothing that was acked or shown is lost, changed
or out of order, and it goes on. `make chaos` does the same for as long as one likes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import pytest

from tests.chaos.cluster.cluster_faults import cut_off, full_disk, killed, nats_away, paused
from tests.chaos.cluster.cluster_history import PartitionHistory
from tests.chaos.cluster.cluster_load import NOBODY, OUR_CLIENT, ClusterLoad, Pace
from tests.chaos.cluster.cluster_verdict import judge
from tests.support.api_client import grpc, pb
from tests.support.broker_fixtures import unique_name
from tests.support.cluster import ASK_SECONDS, Cluster
from tests.support.small_disk import is_permitted
from tests.support.tcp_proxy import HOLD, RESET
from tests.support.waiting import eventually

DISK_BYTES: Final = 64 << 20
PACE: Final = Pace(windowed=150, unary=30, ack_seconds=4.0, call_seconds=2.0)
MESSAGES: Final = 8
METADATA_OPS_MAX: Final = 300


@pytest.fixture(scope="module")
def whole_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    disks = dict.fromkeys("abc", DISK_BYTES) if is_permitted(directory / "probe") else {}
    with Cluster(directory, proxied=True, disks=disks) as cluster:
        yield cluster


@pytest.fixture
def cluster(whole_cluster: Cluster) -> Cluster:
    for name, broker in whole_cluster.brokers.items():
        assert broker.is_running, f"{name} did not survive the last test:\n{broker.tail()}"
    return whole_cluster


@contextmanager
def load_on(cluster: Cluster, hint: str, **settings: int) -> Iterator[tuple[ClusterLoad, PartitionHistory]]:
    """A stream under load; in the end everything that was promised is looked up."""
    history = PartitionHistory(unique_name(hint))
    cluster.create_stream(history.stream, **settings)
    load = ClusterLoad(cluster, [history], PACE)
    load.start()
    try:
        load.wait_for_progress(MESSAGES)
        yield load, history
        load.wait_for_progress(MESSAGES)
        verdict = judge(cluster, load)
    finally:
        load.abort()
    print("\n".join(verdict.lines()))
    assert not verdict.violations, "\n".join(verdict.violations)


def test_another_leader_takes_over_when_it_is_killed(cluster: Cluster) -> None:
    with load_on(cluster, "kill-leader") as (load, history):
        leader = cluster.leader_of(history.stream)
        with killed(cluster, leader):
            load.wait_for_progress(MESSAGES)
            assert cluster.leader_of(history.stream) != leader


def test_messages_go_on_without_a_follower_that_is_killed(cluster: Cluster) -> None:
    with load_on(cluster, "kill-follower", minIsr=2) as (load, history):
        leader = cluster.leader_of(history.stream)
        with killed(cluster, cluster.followers_of(history.stream)[0]):
            load.wait_for_progress(MESSAGES)
            assert cluster.leader_of(history.stream) == leader
        cluster.wait_until_in_sync(history.stream)


def test_a_leader_that_was_paused_does_no_harm_when_it_comes_back(cluster: Cluster) -> None:
    with load_on(cluster, "pause-leader") as (load, history):
        leader = cluster.leader_of(history.stream)
        with paused(cluster, leader):
            load.wait_for_progress(MESSAGES)
            assert cluster.leader_of(history.stream) != leader
        cluster.wait_until_in_sync(history.stream)


@pytest.mark.parametrize("how", [HOLD, RESET])
def test_a_leader_that_was_cut_off_does_no_harm_when_it_comes_back(cluster: Cluster, how: str) -> None:
    """It may still have taken messages; nobody was told that they are safe."""
    with load_on(cluster, f"cut-{how}") as (load, history):
        leader = cluster.leader_of(history.stream)
        with cut_off(cluster, leader, how):
            # Behind a line that swallows everything a broker takes longer to notice that it is alone than this test has.
            load.wait_for_progress(MESSAGES, but=OUR_CLIENT if how == HOLD else NOBODY)
            assert cluster.leader_of(history.stream) != leader
        cluster.wait_until_in_sync(history.stream)


def test_nats_may_be_restarted(cluster: Cluster) -> None:
    with load_on(cluster, "nats"), nats_away(cluster):
        pass


def test_a_cluster_that_was_killed_as_a_whole_goes_on_where_it_was(cluster: Cluster) -> None:
    with load_on(cluster, "kill-all") as (_, history):
        with killed(cluster, *cluster.servers):
            pass
        cluster.wait_until_in_sync(history.stream)


def is_felt(cluster: Cluster, history: PartitionHistory, leader: str) -> bool:
    """It takes nothing any more, or does not lead any more."""
    if cluster.leader_of(history.stream) != leader:
        return True
    _, value = history.writers[-1].begin(anywhere=True)
    try:
        cluster.api(leader).publish(history.stream, value, timeout=ASK_SECONDS)
    except grpc.RpcError:
        return True
    return False


@pytest.mark.parametrize("whose", ["leader", "follower"])
def test_a_disk_that_is_full_costs_nothing_that_was_acked(cluster: Cluster, whose: str) -> None:
    if not cluster.disks:
        pytest.skip("mounting a file system is not permitted here")
    with load_on(cluster, f"full-{whose}") as (load, history):
        leader, followers = cluster.leader_of(history.stream), cluster.followers_of(history.stream)
        with full_disk(cluster, leader if whose == "leader" else followers[0]):
            if whose == "follower":
                load.wait_for_progress(MESSAGES)  # as soon as it has left the in-sync replicas
            else:
                eventually(lambda: is_felt(cluster, history, leader), "the leader has no room")
        cluster.wait_until_in_sync(history.stream, revive=True)


def test_a_broker_that_cannot_write_its_metadata_leaves_and_comes_back(cluster: Cluster) -> None:
    """It would hear nothing of the cluster any more, and not know it."""
    if not cluster.disks:
        pytest.skip("mounting a file system is not permitted here")
    victim = next(name for name in cluster.servers if name != cluster.controller())
    broker, witness = cluster.brokers[victim], cluster.api(cluster.controller())
    made = []
    with full_disk(cluster, victim):
        while broker.is_running:
            name = unique_name("metadata")
            with suppress(grpc.RpcError):  # another server may just have become controller
                witness.CreateStream(name=name, subject=name)
                made.append(name)
            assert len(made) < METADATA_OPS_MAX, "the disk is full, and the broker does not mind"
        assert broker.wait() == 4, broker.tail()
        assert "the metadata log of this server has failed" in broker.said()

    def knows() -> bool:
        known = cluster.api(victim).FetchMetadata(streams=made).streamMetadata
        return all(one.error == pb.StreamMetadata.OK for one in known)

    eventually(knows, "the broker is back and has heard of everything")
    for name in made:
        witness.DeleteStream(name=name)


def test_one_of_three_nats_servers_may_be_killed(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Its broker moves to another one."""
    with (
        Cluster(tmp_path_factory.mktemp("three-nats"), nats_servers=3) as cluster,
        load_on(cluster, "three-nats") as (load, history),
    ):
        place = cluster.servers.index(cluster.leader_of(history.stream))
        with nats_away(cluster, place):
            load.wait_for_progress(MESSAGES)
        cluster.wait_until_in_sync(history.stream)
