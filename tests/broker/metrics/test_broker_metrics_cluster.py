"""Metrics of three brokers: each tells of what it leads, the controller of all, and nobody's lag is told twice or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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


@dataclass
class Seen:
    """Pages of all servers, and who leads what."""

    pages: dict[str, Samples]
    keepers: dict[int, str]
    leaders: dict[int, str]


def look(cluster: Cluster) -> Seen:
    """At a moment in which all is well and nobody comes to lead: on a busy machine servers may miss each other for a while."""

    def who() -> tuple[dict[int, str], dict[int, str]]:
        for number in range(3):
            cluster.wait_until_in_sync("s", number)
        return tuple(  # type: ignore[return-value]
            {number: cluster.leader_of(stream, number) for number in range(count)}
            for stream, count in (("__cursors", CURSORS), ("s", 3))
        )

    def attempt() -> Seen | None:
        before = who()
        found = pages(cluster)
        known = all(page.value("bascule_cursors_unknown_partitions") == 0 for page in found.values())
        is_spread = set(before[1].values()) - set(before[0].values())
        return Seen(found, *before) if known and is_spread and who() == before else None

    return eventually(attempt, "all is well, and somebody has to ask another one for cursors", RECOVERY_SECONDS)


def test_every_lag_is_told_by_the_leader_of_the_partition_and_by_nobody_else(cluster: Cluster) -> None:
    seen = look(cluster)
    for number, leader in seen.leaders.items():
        for cursor in NAMES:
            place = {"cursor": cursor, "stream": "s", "partition": number}
            tellers = [name for name, page in seen.pages.items() if page.find("bascule_cursor_lag_offsets", **place)]
            assert tellers == [leader]
            assert seen.pages[leader].value("bascule_cursor_lag_offsets", **place) == number + 2
            assert seen.pages[leader].value("bascule_cursor_offset", **place) == 1


def test_leaders_tell_of_their_followers(cluster: Cluster) -> None:
    seen = look(cluster)
    found = seen.pages
    for number, leader in seen.leaders.items():
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
    def attempt() -> tuple[dict[str, Samples], str] | None:
        """Pages of a moment in which nobody is missed and the controller stays the same."""
        controller = cluster.controller()
        found = pages(cluster)
        answering = found[controller].find("bascule_cluster_servers", state="answering")
        knows = all(page.find("bascule_controller_info", controller=controller) for page in found.values())
        is_well = list(answering.values()) == [3] and knows and cluster.controller() == controller
        return (found, controller) if is_well else None

    found, controller = eventually(attempt, "the controller hears of everybody", RECOVERY_SECONDS)
    assert [name for name, page in found.items() if page.value("bascule_controller") == 1] == [controller]
    assert [name for name, page in found.items() if "bascule_cluster_partitions" in page] == [controller]
    page = found[controller]
    assert page.value("bascule_cluster_streams") == 2
    assert page.value("bascule_cluster_policies") == 0
    assert page.value("bascule_cluster_partitions") == 3 + CURSORS
    assert page.value("bascule_raft_members", kind="voter") == 3
    assert all(page.value("bascule_controller_info", controller=controller) == 1 for page in found.values())


def test_a_server_that_dies_is_missed_and_welcomed_back(cluster: Cluster) -> None:
    for number in range(3):
        cluster.wait_until_in_sync("s", number)
    controller = cluster.controller()
    victim = next(name for name in cluster.servers if name != controller)
    keeps = [number for number in range(CURSORS) if cluster.leader_of("__cursors", number) == victim]
    cluster.kill(victim)

    def missed() -> bool:
        page = scrape(cluster.brokers[cluster.controller()])
        if "bascule_cluster_servers" not in page:
            return False  # the controller is another one by now
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
    eventually(
        lambda: all(get(cluster.brokers[name].http_address, "/readyz").status == 200 for name in cluster.well),
        "those that are left are ready",
    )
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
