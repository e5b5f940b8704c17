"""Metrics of three brokers: each tells of what it leads, the controller of all, and nobody's lag is told twice or not at all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.api_client import pb
from tests.support.cluster import RECOVERY_SECONDS, Cluster
from tests.support.monitoring import get, scrape
from tests.support.nats_server import NatsServer
from tests.support.prometheus_text import Samples
from tests.support.waiting import eventually

CURSORS = 2
NAMES = ("first", "second", "third", "fourth")
"""Enough that both partitions of the cursors' stream have some."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, nats_server: NatsServer) -> Iterator[Cluster]:
    """Cursors are kept by one server each, so that most leaders have to ask for theirs."""
    config = {
        "cursors.stream.partitions": CURSORS,
        "cursors.stream.replication.factor": 1,
        "cursors.stream.auto.pause.time": 0,
    }
    with Cluster(tmp_path_factory.mktemp("monitored"), nats=nats_server, config=config) as found:
        found.create_stream("s", factor=3, partitions=3)
        for number in range(3):
            for _ in range(number + 4):
                found.api("a").publish("s", b"x", partition=number, ackPolicy=pb.ALL)
            for cursor in NAMES:
                found.api("a").SetCursor(stream="s", partition=number, cursorId=cursor, offset=1)
        yield found


def pages(cluster: Cluster) -> dict[str, Samples]:
    return {name: scrape(cluster.brokers[name]) for name in cluster.well}


def test_every_lag_is_told_by_the_leader_of_the_partition_and_by_nobody_else(cluster: Cluster) -> None:
    found = pages(cluster)
    keepers = {cluster.leader_of("__cursors", number) for number in range(CURSORS)}
    leaders = {number: cluster.leader_of("s", number) for number in range(3)}
    assert set(leaders.values()) - keepers, "somebody has to ask another one"
    for number, leader in leaders.items():
        for cursor in NAMES:
            place = {"cursor": cursor, "stream": "s", "partition": number}
            tellers = [name for name, page in found.items() if page.find("bascule_cursor_lag_offsets", **place)]
            assert tellers == [leader]
            assert found[leader].value("bascule_cursor_lag_offsets", **place) == number + 2
            assert found[leader].value("bascule_cursor_offset", **place) == 1
    assert all(page.value("bascule_cursors_unknown_partitions") == 0 for page in found.values())


def test_leaders_tell_of_their_followers(cluster: Cluster) -> None:
    cluster.wait_until_in_sync("s")
    found = pages(cluster)
    for number in range(3):
        leader = cluster.leader_of("s", number)
        place = {"stream": "s", "partition": number}
        for name, page in found.items():
            assert page.value("bascule_partition_leader", **place) == (name == leader)
            assert page.value("bascule_partition_log_end_offset", **place) == number + 4
        assert found[leader].value("bascule_partition_in_sync_replicas", **place) == 3
        followers = found[leader].find("bascule_replica_lag_offsets", **place)
        assert {dict(labels)["replica"] for labels in followers} == set(cluster.servers) - {leader}
        assert set(followers.values()) == {0}
        assert all(value == 1 for value in found[leader].find("bascule_replica_in_sync", **place).values())
        assert not any(found[name].find("bascule_replica_lag_offsets", **place) for name in found if name != leader)


def test_one_controller_tells_of_the_cluster(cluster: Cluster) -> None:
    found = pages(cluster)
    controllers = [name for name, page in found.items() if page.value("bascule_controller") == 1]
    assert controllers == [cluster.controller()]
    assert [name for name, page in found.items() if "bascule_cluster_partitions" in page] == controllers
    page = found[controllers[0]]
    assert page.value("bascule_cluster_streams") == 2
    assert page.value("bascule_cluster_partitions") == 3 + CURSORS
    assert page.value("bascule_cluster_servers", state="answering") == 3
    assert page.value("bascule_raft_members", kind="voter") == 3
    assert all(page.value("bascule_controller_info", controller=controllers[0]) == 1 for page in found.values())


def test_a_server_that_dies_is_missed_and_welcomed_back(cluster: Cluster) -> None:
    cluster.wait_until_in_sync("s")
    victim = next(name for name in cluster.servers if name != cluster.controller())
    keeps = [number for number in range(CURSORS) if cluster.leader_of("__cursors", number) == victim]
    cluster.kill(victim)

    def missed() -> bool:
        page = scrape(cluster.brokers[cluster.controller()])
        return (
            page.value("bascule_cluster_servers", state="silent") == 1
            and page.value("bascule_cluster_partitions_under_replicated") >= 3
            # with one replica there is nobody else to lead
            and page.value("bascule_cluster_partitions_leaderless") == len(keeps)
        )

    eventually(missed, "the controller misses it", RECOVERY_SECONDS)

    def noticed() -> bool:
        found = pages(cluster).values()
        under = sum(page.value("bascule_partitions_under_replicated") for page in found)
        return under == 3 and all(page.value("bascule_cursors_unknown_partitions") == len(keeps) for page in found)

    eventually(noticed, "those that lead now miss a replica", RECOVERY_SECONDS)
    assert all(get(cluster.brokers[name].http_address, "/readyz").status == 200 for name in cluster.well)
    cluster.restart(victim)
    for number in range(3):
        cluster.wait_until_in_sync("s", number)

    def whole() -> bool:
        return all(
            page.value("bascule_partitions_under_replicated") == 0
            and page.value("bascule_cursors_unknown_partitions") == 0
            for page in pages(cluster).values()
        )

    eventually(whole, "nothing is missed any more", RECOVERY_SECONDS)
