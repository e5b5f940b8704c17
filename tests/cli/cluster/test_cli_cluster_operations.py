"""`bascule cluster …` on three real brokers: in pipes, on a terminal, and with everything that can be wrong."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import Outcome, Run, Terminal, start
from tests.support.broker_fixtures import StartBroker, unique_name
from tests.support.broker_process import BrokerProcess
from tests.support.cluster import LONG_TIMEOUTS, RECOVERY_SECONDS, Cluster
from tests.support.nats_server import NatsServer
from tests.support.waiting import PATIENCE_SECONDS, eventually

MORTAL = {"cursors.stream.partitions": 1}
CONFIG = {**MORTAL, **LONG_TIMEOUTS}
"""What is done in good order needs no time-out."""


def write_context(home: Path, cluster: Cluster) -> None:
    file = home / "bascule" / "contexts.json"
    file.parent.mkdir(exist_ok=True)
    servers = ",".join(cluster.brokers[name].address for name in cluster.well)
    document = {"current": "test", "contexts": {"test": {"server": servers, "timeout": "60s"}}}
    file.write_text(json.dumps(document), "utf-8")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, nats_server: NatsServer) -> Iterator[Cluster]:
    """For tests that leave all three brokers as they were."""
    with Cluster(tmp_path_factory.mktemp("shared-cluster"), nats=nats_server, config=CONFIG) as found:
        yield found


@pytest.fixture
def cluster(shared: Cluster, home: Path) -> Cluster:
    write_context(home, shared)
    return shared


@pytest.fixture
def own(tmp_path: Path, nats_server: NatsServer, home: Path) -> Iterator[Cluster]:
    """For tests that take brokers away, in good order."""
    with Cluster(tmp_path / unique_name("own"), nats=nats_server, config=CONFIG) as found:
        write_context(home, found)
        yield found


@pytest.fixture
def mortal(tmp_path: Path, nats_server: NatsServer, home: Path) -> Iterator[Cluster]:
    """For tests that kill brokers, which are missed soon."""
    with Cluster(tmp_path / unique_name("mortal"), nats=nats_server, config=MORTAL) as found:
        write_context(home, found)
        yield found


@pytest.fixture
def stream(cluster: Cluster) -> str:
    name = unique_name("stream")
    cluster.create_stream(name, factor=2, partitions=2)
    return name


def insist(call: Run, *arguments: str) -> Outcome:
    """Repeat a command that is refused because a server pauses for a second and does not answer."""
    deadline = time.monotonic() + RECOVERY_SECONDS
    while (found := call(*arguments)).code != 0 and time.monotonic() < deadline:
        time.sleep(0.1)
    return found.ok()


def even_out(call: Run) -> None:
    """Until nothing is left to be moved, leaderships included."""
    eventually(
        lambda: insist(call, "cluster", "rebalance").lines == ["There is nothing to move."],
        "everything is even",
        RECOVERY_SECONDS,
    )


def described(call: Run, stream: str) -> dict[int, dict[str, list[str]]]:
    document = call("stream", "describe", stream, "--json").ok().json
    return {one["partition"]: one for one in document["partitions"]}


# ── status ───────────────────────────────────────────────────────────────────────────────────────


def test_status_tells_roles_and_states(cluster: Cluster, call: Run, home: Path) -> None:
    rows = insist(call, "cluster", "status").rows[1:]
    assert [row[0] for row in rows] == ["a", "b", "c"]
    assert [row[2] for row in rows] == ["ok"] * 3
    assert sorted(row[6] for row in rows) == ["controller", "voter", "voter"]
    assert {row[7] for row in rows} == {"active"}
    document = insist(call, "cluster", "status", "--json").json
    assert document["controller"] in cluster.servers
    assert all(one["uptime_seconds"] > 0 and one["version"] for one in document["brokers"])
    assert (document["reassignments"], document["waiting"], document["throttle_bytes_per_second"]) == ([], [], 0)
    assert insist(call, "cluster", "status", "--moves").out == ""
    shown = on_terminal(home, "cluster", "status")
    assert "controller" in shown
    assert "Uptime" in shown
    assert "No partition is moving." in on_terminal(home, "cluster", "status", "--moves")


def on_terminal(home: Path, *arguments: str) -> str:
    """The command's output on a terminal, once all servers answer."""

    def look() -> str:
        with Terminal(*arguments, home=home) as terminal:
            return terminal.shown if terminal.wait() == 0 else ""

    return eventually(look, "all servers answer")


# ── moving ───────────────────────────────────────────────────────────────────────────────────────


def test_a_stream_gets_more_and_fewer_replicas(stream: str, call: Run) -> None:
    before = {number: one["replicas"] for number, one in described(call, stream).items()}
    planned = insist(call, "cluster", "reassign", stream, "--replication-factor", "3", "--dry-run")
    assert [row[:2] for row in planned.rows[:-1]] == [[stream, "0"], [stream, "1"]]
    assert planned.lines[-1] == "2 partitions and 0 leaderships would move. Nothing was changed."
    assert {number: one["replicas"] for number, one in described(call, stream).items()} == before
    done = insist(call, "cluster", "reassign", stream, "-r", "3")
    assert done.lines[-1] == "Moved 2 partitions."
    places = {line.partition(" is on ")[0] for line in done.lines if " is on " in line}
    assert places == {f"{stream}/0", f"{stream}/1"}
    assert all(sorted(one["in_sync_replicas"]) == ["a", "b", "c"] for one in described(call, stream).values())
    document = insist(call, "cluster", "reassign", stream, "-r", "1", "-p", "1", "--json").json
    assert [(one["partition"], len(one["to"])) for one in document["moves"]] == [(1, 1)]
    assert document["done"]
    found = described(call, stream)
    assert [len(found[number]["replicas"]) for number in (0, 1)] == [3, 1]
    assert insist(call, "cluster", "reassign", stream, "-r", "1", "-p", "1").lines == ["There is nothing to move."]


def test_a_partition_goes_where_it_is_sent(cluster: Cluster, stream: str, call: Run) -> None:
    call("publish", stream, *"abc").ok()
    for server in cluster.servers:
        insist(call, "cluster", "reassign", stream, "-p", "0", "--replicas", server)
        assert described(call, stream)[0]["replicas"] == [server]
    assert call("subscribe", stream, "-p", "0", "-e").ok().lines == ["a", "b", "c"]
    quick = insist(call, "cluster", "reassign", stream, "-p", "0", "--replicas", "a,b", "--no-wait")
    assert quick.lines[-1].startswith("1 partition will move")
    eventually(lambda: described(call, stream)[0]["replicas"] == ["a", "b"], "it moves by itself", RECOVERY_SECONDS)


def test_leaders_and_replicas_are_evened_out(cluster: Cluster, call: Run) -> None:
    name = unique_name("even")
    cluster.create_stream(name, factor=1, partitions=6)
    insist(call, "cluster", "reassign", name, "--replicas", "a")

    def planned() -> bool:
        document = insist(call, "cluster", "rebalance", "--dry-run", "--json").json
        counts = [one["partitions_after"] for one in document["servers"]]
        return not document["done"] and max(counts) - min(counts) <= 1

    eventually(planned, "a plan with all servers evens them out")
    even_out(call)
    hosted = [int(row[4]) for row in insist(call, "cluster", "status").rows[1:]]
    assert max(hosted) - min(hosted) <= 1
    led = [int(row[5]) for row in insist(call, "cluster", "status").rows[1:]]
    assert max(led) - min(led) <= 1
    assert call("cluster", "rebalance", name, "--leaders-only").ok().lines == ["There is nothing to move."]
    assert call("cluster", "add", "a", "--dry-run").ok().lines == ["There is nothing to move."]


def test_a_long_move_shows_how_far_it_is_and_can_be_given_up(
    cluster: Cluster, stream: str, call: Run, home: Path
) -> None:
    call("publish", stream, "x" * 1000, "--repeat", "2000", "-p", "0").ok()
    before = described(call, stream)[0]["replicas"]
    target = next(one for one in cluster.servers if one not in before)
    arguments = ("cluster", "reassign", stream, "-p", "0", "--replicas", target, "--throttle", "10kB")
    try:
        with Terminal(*arguments, home=home) as terminal:
            terminal.read_until("Moving partitions")
            terminal.read_until("Moving partitions, lag ")

            def progress() -> dict[str, Any] | None:
                """None while its leader does not say how far it is."""
                (moving,) = insist(call, "cluster", "status", "--json").json["reassignments"]
                assert (moving["stream"], moving["from"], moving["to"]) == (stream, before, [target])
                found: dict[str, Any] = next(one for one in moving["replicas"] if one["server"] == target)
                return found if found["lag_messages"] > 0 else None

            assert not eventually(progress, "the progress is reported")["in_sync"]
            assert call("cluster", "throttle", "--json").ok().json == {"throttle_bytes_per_second": 10_000}

            def catches_up() -> bool:
                rows = insist(call, "cluster", "status", "--moves").rows
                row = next(row for row in rows if row[0] == stream)
                return (row[4], row[-1]) == (target, "catching up")

            eventually(catches_up, "the table says so too")
            terminal.press_ctrl_c()
            assert terminal.wait() == 130
            assert "Traceback" not in terminal.shown
        assert len(insist(call, "cluster", "status", "--moves").rows) == 1, (
            "the move continues without a waiting command"
        )
        given_up = call("cluster", "cancel", stream).ok().lines
        assert given_up == [f"{stream}/0 stays on {', '.join(before)}", "Cancelled 1 move."]
        eventually(lambda: described(call, stream)[0]["replicas"] == before, "it is back")
        assert call("cluster", "cancel", "--all").ok().lines == ["No partition is moving."]
    finally:
        assert call("cluster", "throttle", "off").ok().lines == ["There is no limit."]


def test_a_rebalance_outlives_the_controller_that_began_it(own: Cluster, call: Run, home: Path) -> None:
    own.create_stream("orders", factor=1, partitions=24)
    insist(call, "cluster", "reassign", "orders", "--replicas", "a")
    call("publish", "orders", "x" * 1000, "--repeat", "1200", "--partitioner", "round-robin").ok()
    call("cluster", "throttle", "20kB").ok()
    with start("cluster", "rebalance", home=home) as process:
        waiting = eventually(lambda: call("cluster", "status", "--json").json["waiting"], "some wait for others")
        assert waiting
        controller = call("cluster", "status", "--json").json["controller"]
        assert own.stop(controller) == 0
        own.restart(controller)
        call("cluster", "throttle", "off").ok()
        out, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, b""), out
    hosted = [int(row[4]) for row in insist(call, "cluster", "status").rows[1:]]
    assert max(hosted) - min(hosted) <= 1
    assert len(call("subscribe", "orders", "-p", "all", "-e").ok().lines) == 1200


def test_the_throttle_is_set_and_shown(cluster: Cluster, call: Run) -> None:
    del cluster
    try:
        assert call("cluster", "throttle", "5MB").ok().lines == ["The limit is 5.0 MB/s for each server."]
        assert call("cluster", "throttle", "--json").ok().json == {"throttle_bytes_per_second": 5_000_000}
    finally:
        call("cluster", "throttle", "off").ok()
    assert call("cluster", "throttle").ok().lines == ["There is no limit."]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("reassign", "no-such", "-r", "2"), 3, ("`no-such`", "bascule stream list")),
        (("reassign", "STREAM"), 2, ("--replicas a,b,c", "--replication-factor")),
        (("reassign", "STREAM", "-r", "2", "--replicas", "a"), 2, ("--replicas a,b,c",)),
        (("reassign", "STREAM", "-r", "0"), 2, ("`--replication-factor`", "`0`", "-1")),
        (("reassign", "STREAM", "-r", "9"), 2, ("`replication_factor`", "`9`", "1 to 3")),
        (("reassign", "STREAM", "--replicas", "x"), 2, ("`replicas`", "`x`", "a, b, c")),
        (("reassign", "STREAM", "--replicas", "a,a"), 2, ("`replicas`", "`a,a`", "twice")),
        (("reassign", "STREAM", "--replicas", "a,,b"), 2, ("`--replicas`", "`a,,b`")),
        (("reassign", "STREAM", "-p", "9", "-r", "2"), 3, ("no partition 9",)),
        (("reassign", "STREAM", "-p", "x", "-r", "2"), 2, ("`--partition`", "`x`")),
        (("rebalance", "no-such"), 3, ("`no-such`",)),
        (("add", "x"), 2, ("`servers`", "`x`", "a, b, c")),
        (("remove", "x"), 2, ("`server`", "`x`", "a, b, c")),
        (("drain", "x"), 2, ("`server`", "`x`", "a, b, c")),
        (("drain", "a", "--undo", "--keep-running"), 2, ("--undo",)),
        (("cancel",), 2, ("--all",)),
        (("cancel", "STREAM", "--all"), 2, ("--all",)),
        (("cancel", "no-such"), 3, ("`no-such`",)),
        (("throttle", "fast"), 2, ("`SIZE`", "`fast`")),
        (("rebalance", "--throttle", "-5"), 2, ("`--throttle`", "`-5`")),
        (("elect", "STREAM", "0", "x"), 2, ("`replica`", "`x`", "a, b, c")),
        (("elect", "STREAM", "9", "a"), 3, ("no partition 9",)),
        (("elect", "STREAM", "x", "a"), 2, ("PARTITION",)),
        (("elect", "no-such", "0", "a"), 3, ("`no-such`",)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_is_wrong_is_named(
    shared: Cluster, home: Path, call: Run, arguments: tuple[str, ...], code: int, words: tuple[str, ...]
) -> None:
    write_context(home, shared)
    if shared.ask(lambda api: api.stream("wrong").error) != 0:
        shared.create_stream("wrong", factor=2)
    given = [one.replace("STREAM", "wrong") for one in arguments]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        found = call("cluster", *given)
        # While one of the three servers pauses, only two answer.
        if all(word in found.err for word in words) or time.monotonic() > deadline:
            break
    found.failed(code, *words)


# ── servers ──────────────────────────────────────────────────────────────────────────────────────


def test_a_server_rests_and_comes_back(cluster: Cluster, stream: str, call: Run) -> None:
    del stream
    try:
        outcome = call("cluster", "drain", "b", "--keep-running").ok()
        assert "`b` leads no partition that another server can lead" in outcome.lines[-1]
        row = next(row for row in insist(call, "cluster", "status").rows[1:] if row[0] == "b")
        assert (row[2], row[6], row[7]) == ("ok", "voter", "leaving")
        call("cluster", "add", "b").failed(3, "`b`", "leaving", "--undo")
    finally:
        assert "`b` can get partitions again" in call("cluster", "drain", "b", "--undo").ok().out
    even_out(call)
    row = next(row for row in insist(call, "cluster", "status").rows[1:] if row[0] == "b")
    assert (row[7], int(row[5]) > 0) == ("active", True)
    assert cluster.brokers["b"].is_running


def test_a_drained_server_stops(own: Cluster, call: Run, home: Path) -> None:
    own.create_stream("orders", partitions=3)
    assert call("cluster", "drain", "c").ok().lines == ["`c` has stopped."]
    assert own.brokers["c"].wait() == 0
    status = call("cluster", "status")
    assert status.code == 3, "a server that is down is not healthy"
    rows = {row[0]: row for row in status.rows[1:]}
    assert (rows["c"][2], rows["c"][5]) == ("failed", "0")
    call("cluster", "drain", "c").failed(3, "`c` does not answer", "bascule cluster remove c")
    write_context(home, own)
    # The one that is asked to stop is the one that is asked.
    with Terminal("cluster", "drain", "b", home=home) as terminal:
        assert terminal.wait() == 0
        assert "`b` has stopped." in terminal.shown
    assert own.brokers["b"].wait() == 0


def test_a_server_that_is_alone_can_be_drained_too(start_broker: StartBroker, call: Run) -> None:
    broker = start_broker({"clustering.server.id": "only"})
    call("cluster", "drain", "only", "--keep-running", "-s", broker.address).failed(3, "`only`", "another")
    outcome = call("cluster", "drain", "only", "-s", broker.address, "--timeout", "6s").ok()
    assert outcome.lines == ["`only` has stopped."]
    assert broker.wait() == 0


def join(cluster: Cluster, name: str) -> BrokerProcess:
    config = {"clustering.namespace": cluster.namespace, "clustering.server.id": name, **CONFIG, **cluster._config}
    broker = BrokerProcess(cluster.directory / name, nats_url=cluster.nats[0].url, config=config, seed=False)
    broker.start()
    cluster._stack.callback(broker.kill)
    return broker


def test_a_server_joins_and_another_leaves(own: Cluster, call: Run) -> None:
    own.create_stream("orders", partitions=2)
    call("publish", "orders", *"abc").ok()
    call("cluster", "remove", "b").failed(3, "no other server", "--replication-factor")
    join(own, "d")
    insist(call, "cluster", "add", "d")
    row = next(row for row in insist(call, "cluster", "status").rows[1:] if row[0] == "d")
    assert int(row[4]) > 0
    planned = insist(call, "cluster", "remove", "b", "--dry-run")
    assert planned.lines[-1].endswith("would move. Nothing was changed.")
    outcome = insist(call, "cluster", "remove", "b")
    assert outcome.lines[-1] == "`b` is removed from the cluster. If it still runs, it stops by itself."
    assert any(line.endswith("left on `b`") for line in outcome.lines)
    assert own.brokers["b"].wait(RECOVERY_SECONDS) == 0
    assert [row[0] for row in insist(call, "cluster", "status").rows[1:]] == ["a", "c", "d"]
    assert call("subscribe", "orders", "-e").ok().lines == ["a", "b", "c"]
    call("cluster", "remove", "b").failed(2, "`b`", "a, c, d")


def test_a_dead_server_with_the_only_copy_is_removed_by_force(mortal: Cluster, call: Run, home: Path) -> None:
    own = mortal
    own.create_stream("solo", factor=1, partitions=3)
    # A server that paused when the stream was created has no replica of it.
    insist(call, "cluster", "reassign", "solo", "-p", "0", "--replicas", "b")
    own.kill("b")
    write_context(home, own)
    found = call("cluster", "remove", "b").failed(3, "`b` does not answer", "solo/", "--force", "bascule cluster elect")
    assert found.out
    call("cluster", "remove", "b", "--force").failed(2, "would be lost", "--yes")
    with Terminal("cluster", "remove", "b", "--force", home=home) as terminal:
        terminal.read_until("Type `b` to confirm")
        terminal.enter("no\n")
        assert terminal.wait() == 1
    with Terminal("cluster", "remove", "b", "--force", home=home) as terminal:
        terminal.read_until("Type `b` to confirm")
        terminal.enter("b\n")
        assert terminal.wait(RECOVERY_SECONDS) == 0
        assert "`b` is removed from the cluster" in terminal.shown
    eventually(lambda: call("cluster", "status").code == 0, "everything has a leader", RECOVERY_SECONDS)
    call("publish", "solo", *"abc", "--partitioner", "round-robin").ok()


# ── elections ────────────────────────────────────────────────────────────────────────────────────


def test_an_unclean_election_is_asked_about_and_loses_what_it_said(mortal: Cluster, call: Run, home: Path) -> None:
    own = mortal
    own.create_stream("orders", factor=2)
    call("publish", "orders", "x", "--repeat", "10", "--ack", "all").ok()
    own.wait_until_in_sync("orders")  # both have them, also one that stood still meanwhile
    leader, (follower,) = own.leader_of("orders"), own.followers_of("orders")
    call("cluster", "elect", "orders", "0", follower, "--yes").failed(3, "is in sync", "answers")
    own.kill(follower)
    write_context(home, own)
    call("publish", "orders", "y", "--repeat", "5", "--ack", "all").ok()
    own.kill(leader)
    own.restart(follower)
    write_context(home, own)

    def dry_run() -> Outcome | None:
        found = call("cluster", "elect", "orders", "0", follower, "--dry-run", "--json")
        return found if found.code == 0 else None

    document = eventually(dry_run, "the follower says what it has", RECOVERY_SECONDS).json
    assert document["silent"] == [leader]
    assert document["lost"] == {"from_offset": 10, "to_offset": 9, "messages": 0, "committed_messages": 0}
    assert not document["elected"]
    call("cluster", "elect", "orders", "0", follower).failed(2, "would be lost", "--yes")
    with Terminal("cluster", "elect", "orders", "0", follower, home=home) as terminal:
        terminal.read_until(f"messages from offset 10 on that exist only on {leader}")
        terminal.read_until("Type `orders` to confirm the loss")
        terminal.enter("orders\n")
        assert terminal.wait() == 0
        assert f"`{follower}` is now the leader of orders/0; new messages start at offset 10." in terminal.shown
    assert call("subscribe", "orders", "-e").ok().lines == ["x"] * 10
    own.restart(leader)
    own.wait_until_in_sync("orders")
    write_context(home, own)
    assert call("subscribe", "orders", "-e").ok().lines == ["x"] * 10
