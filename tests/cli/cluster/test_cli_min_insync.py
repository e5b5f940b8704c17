"""`min.insync.replicas`: no stream is created that could never be read, and a reader that would wait for ever learns why it waits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.command_line import Outcome, Run
from tests.support.api_client import Status, pb
from tests.support.broker_fixtures import StartBroker, unique_name
from tests.support.cluster import Cluster
from tests.support.nats_server import NatsServer
from tests.support.waiting import eventually

DOCUMENTED = {"clustering.min.insync.replicas": 2}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, nats_server: NatsServer) -> Iterator[Cluster]:
    """The settings of docs/guides/operating-a-cluster.md."""
    with Cluster(
        tmp_path_factory.mktemp(unique_name("insync")), nats=nats_server, servers=("a", "b", "c"), config=DOCUMENTED
    ) as found:
        yield found


@pytest.fixture
def bascule(cluster: Cluster, call: Run) -> Run:
    """`bascule` on a server that is well."""

    def run(*arguments: str) -> Outcome:
        return call(*arguments, "--server", cluster.brokers[cluster.well[0]].address)

    return run


def replicas_of(cluster: Cluster, name: str) -> int:
    seen = cluster.view(name)
    assert seen is not None
    return len(seen.replicas)


def assert_refused(outcome: Outcome, code: int, *words: str) -> None:
    """The server's own text says what is wrong and what would be right."""
    assert outcome.code == code, outcome
    for word in words:
        assert word in outcome.err, (word, outcome)


def test_a_stream_gets_one_replica_more_than_must_be_in_sync(cluster: Cluster, bascule: Run) -> None:
    name = unique_name("defaults")
    bascule("stream", "create", name).ok()
    assert replicas_of(cluster, name) == 3
    bascule("publish", name, "a", "b", "--ack", "all").ok()
    assert bascule("subscribe", name, "--no-follow").ok().lines == ["a", "b"]


def test_too_few_replicas_are_refused_and_named(cluster: Cluster, bascule: Run) -> None:
    name = unique_name("refused")
    one = bascule("stream", "create", name, "--replicas", "1")
    assert_refused(one, 2, "replicationFactor is 1", "minIsr is 2", "use replicationFactor 2 to 3")
    four = bascule("stream", "create", name, "--min-in-sync", "4")
    assert_refused(four, 3, "minIsr is 4", "3 servers", "minIsr 3")
    bascule("stream", "describe", name).failed(3, f"`{name}`")
    bascule("stream", "create", name, "--replicas", "1", "--min-in-sync", "1").ok()
    assert replicas_of(cluster, name) == 1


def test_a_replica_that_is_needed_is_not_taken_away(cluster: Cluster, bascule: Run) -> None:
    name = unique_name("kept")
    cluster.create_stream(name, factor=2)
    bascule("cluster", "reassign", name, "--replication-factor", "1").failed(
        2, "min.insync.replicas", "2 replicas or more"
    )
    assert replicas_of(cluster, name) == 2


def test_a_lone_broker_with_the_documented_settings_says_what_it_lacks(start_broker: StartBroker, call: Run) -> None:
    address = start_broker(DOCUMENTED).address
    created = call("stream", "create", "orders", "-s", address)
    assert_refused(created, 3, "minIsr is 2", "1 server:", "start 2 servers")
    checks = call("doctor", "--write", "--json", "-s", address)
    assert checks.code == 3
    found = {one["check"]: one for one in checks.json}
    assert found["api"]["state"] == "ok"
    assert (found["write"]["state"], "minIsr is 2" in found["write"]["found"]) == ("failed", True)
    assert_refused(call("bench", "latency", "-n", "3", "-s", address), 3, "minIsr is 2")


def test_readers_and_tools_say_that_messages_cannot_be_committed(cluster: Cluster, bascule: Run) -> None:
    name = unique_name("short")
    cluster.create_stream(name, factor=2)
    (away,) = cluster.followers_of(name)
    cluster.api("a").publish(name, b"committed", ackPolicy=pb.ALL)
    cluster.kill(away)
    try:
        eventually(lambda: len(cluster.view(name).in_sync) == 1, "the leader goes on alone")  # type: ignore[union-attr]
        bascule("publish", name, "stored", "--ack", "leader").ok()
        read = bascule("subscribe", name, "--no-follow")
        assert (read.code, read.lines) == (5, ["committed"])
        assert read.err.startswith("warning: "), read
        assert "\nerror: offsets 1 to 1 are stored and not committed" in read.err, read
        assert f"start {away}" in read.err, read
        found = {one["check"]: one for one in bascule("doctor", "--json").json}
        assert (found["streams"]["state"], f"`{name}`" in found["streams"]["found"]) == ("failed", True)
        bascule("bench", "latency", name, "-n", "3").failed(5, f"`{name}`", "1 of the 2 in-sync replicas")
        assert "cannot commit" in bascule("stream", "describe", name).ok().out
        assert_raw_reader_ends(cluster, name)
    finally:
        cluster.revive()
    cluster.wait_until_in_sync(name)
    assert bascule("subscribe", name, "--no-follow").ok().lines == ["committed", "stored"]


def assert_raw_reader_ends(cluster: Cluster, name: str) -> None:
    """Any client of the API: it got the messages that are committed, and then a status that its library does not retry for ever."""
    read = cluster.api(cluster.leader_of(name)).subscribe(name, startPosition=pb.EARLIEST, stopPosition=pb.STOP_LATEST)
    assert read.next().value == b"committed"
    read.expect_end(Status.OUT_OF_RANGE, "offsets 1 to 1 are stored and not committed")
