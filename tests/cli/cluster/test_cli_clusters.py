"""`bascule group`, `top`, `bench` and `doctor` on a real broker."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bascule.cli.server import doctor
from bascule.client.connection.metadata import EventTimes, PartitionInfo, StreamInfo
from tests.cli.command_line import Run, Terminal, read_exactly, start
from tests.cli.conftest import write_context
from tests.support.broker_fixtures import MakeStream, StartBroker, unique_name
from tests.support.broker_process import BrokerProcess
from tests.support.cluster import PRODUCT_TIMEOUTS, Cluster
from tests.support.nats_server import NatsServer
from tests.support.waiting import PATIENCE_SECONDS, eventually

# ── groups ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    return unique_name(request.node.name)


def test_a_group_goes_on_where_it_was(bascule: Run, make_stream: MakeStream, group: str) -> None:
    name = make_stream().name
    bascule("publish", name, *"abcde").ok()
    assert bascule("group", "consume", group, name, "-n", "2").ok().lines == ["a", "b"]
    assert bascule("group", "consume", group, name, "-n", "1", "--json").ok().json["value"] == "c"
    row = next(row for row in bascule("group", "list").ok().rows if row[0] == group)
    assert row == [group, "empty", name, "1", "2"]
    assert bascule("group", "describe", group).ok().rows[-1] == [name, "0", "2", "4", "2", "-"]
    document = bascule("group", "describe", group, "--json").ok().json
    assert document["lag"] == 2
    assert document["partitions"] == [
        {"stream": name, "partition": 0, "offset": 2, "newest_offset": 4, "lag": 2, "owner": None}
    ]
    assert group in [one["group"] for one in bascule("group", "list", "--json").ok().json]
    assert bascule("top", "-i", "100ms", "--json").ok().json != []


def test_a_member_is_seen_and_ctrl_c_keeps_what_it_read(
    connected: Path, bascule: Run, make_stream: MakeStream, group: str
) -> None:
    name = make_stream().name
    bascule("publish", name, "a").ok()
    with start("group", "consume", group, name, home=connected) as process:
        assert read_exactly(process.stdout, 2) == b"a\n"
        assert bascule("group", "describe", group, "--json").ok().json["state"] == "active"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 130
        assert process.stderr is not None
        assert process.stderr.read() == b""
    bascule("publish", name, "b").ok()
    assert bascule("group", "consume", group, name, "-n", "1").ok().lines == ["b"]


def test_what_is_wrong_with_groups_is_named(bascule: Run, make_stream: MakeStream, group: str) -> None:
    name = make_stream().name
    bascule("group", "describe", group).failed(3, f"`{group}`", "bascule group list")
    bascule("group", "consume", group, "no-such").failed(3, "`no-such`", "bascule stream list")
    bascule("group", "consume", group, name, "--from", "-3").failed(2, "`--from`", "`-3`")
    bascule("group", "consume", group, name, "--format", "xml").failed(2, "`--format`", "`xml`")
    bascule("group", "consume", group).failed(2, "STREAM")


def test_without_cursors_groups_cannot_be_listed(start_broker: StartBroker, call: Run) -> None:
    server = start_broker({"cursors.stream.partitions": 0}).address
    call("group", "list", "-s", server).failed(3, "cursors", "cursors.stream.partitions")
    checks = {one["check"]: one for one in call("doctor", "-s", server, "--json").ok().json}
    assert (checks["cursors"]["state"], checks["clock"]["state"]) == ("warning", "skipped")
    assert call("top", "-s", server, "-i", "100ms").ok().out == ""


# ── top ──────────────────────────────────────────────────────────────────────────────────────────


def test_top_in_a_pipe_looks_once(bascule: Run, make_stream: MakeStream) -> None:
    name = make_stream(partitions=2).name
    bascule("publish", name, "a", "b", "c").ok()
    row = next(row for row in bascule("top", "-i", "200ms").ok().rows if row[0] == name)
    assert row == [name, "2", "0", "3", "-", "1/1", "ok"]
    parts = [row for row in bascule("top", "-i", "200ms", "--partitions").ok().rows if row[0] == name]
    assert [row[1] for row in parts] == ["#0", "#1"]
    bascule("top", "-i", "never").failed(2, "`--interval`", "`never`")


def test_top_sees_rates(connected: Path, bascule: Run, make_stream: MakeStream) -> None:
    name = make_stream().name
    with start("publish", name, "x", "--repeat", "100000", "--rate", "200", home=connected) as publisher:
        eventually(
            lambda: bascule("stream", "describe", name, "--json").json["partitions"][0]["newest_offset"] >= 0,
            "it publishes",
        )
        rate = eventually(
            lambda: next(one for one in bascule("top", "-i", "1s", "--json").ok().json if one["stream"] == name)[
                "rate"
            ],
            "it is seen to publish",
        )
        publisher.kill()
    assert 2 < rate < 4000, "two hundred, or what a publisher that was held up catches up with"


def test_top_on_a_terminal_is_live(home: Path, call: Run, start_broker: StartBroker) -> None:
    """On a broker of its own: a screen has room for some forty streams."""
    write_context(home, start_broker())
    call("stream", "create", "shown").ok()
    with Terminal("top", "-i", "200ms", home=home) as terminal:
        terminal.read_until("shown")
        terminal.read_until("messages/s")
        call("publish", "shown", "x").ok()
        terminal.press_ctrl_c()
        assert terminal.wait() == 130
        assert "Traceback" not in terminal.shown


# ── bench ────────────────────────────────────────────────────────────────────────────────────────


def test_benches_measure_and_leave_nothing_behind(bascule: Run, make_stream: MakeStream) -> None:
    published = bascule("bench", "publish", "-n", "3000", "--size", "64B", "--json").ok().json
    assert (published["messages"], published["message_bytes"]) == (3000, 64)
    assert published["messages_per_second"] > 0
    read = bascule("bench", "subscribe", "-n", "3000", "-p", "2", "--json").ok().json
    assert (read["messages"], read["message_bytes"]) == (3000, 128)
    latency = bascule("bench", "latency", "-n", "20", "--ack", "all", "--json").ok().json
    assert 0 < latency["ack_p50_seconds"] <= latency["ack_max_seconds"]
    assert 0 < latency["delivery_p50_seconds"] <= latency["delivery_max_seconds"]
    assert "bascule-bench" not in bascule("stream", "list").ok().out
    name = make_stream().name
    assert ["messages", "500"] in bascule("bench", "publish", name, "-n", "500").ok().rows
    assert ["messages", "500"] in bascule("bench", "subscribe", name, "--objects").ok().rows
    assert name in bascule("stream", "list").ok().out


def test_what_is_wrong_with_benches_is_named(bascule: Run) -> None:
    bascule("bench", "publish", "no-such").failed(3, "`no-such`")
    bascule("bench", "publish", "--size", "big").failed(2, "`--size`", "`big`")
    bascule("bench", "publish", "--ack", "none").failed(2, "`--ack`", "`none`")
    bascule("bench", "latency", "-n", "0").failed(2, "'--messages'", "`0`")


# ── doctor ───────────────────────────────────────────────────────────────────────────────────────


def test_a_healthy_cluster(bascule: Run, broker: BrokerProcess) -> None:
    outcome = bascule("doctor", "--write", "--nats", broker.nats_url, "--data-dir", str(broker.data)).ok()
    states = {row[0]: row[1] for row in outcome.rows if len(row) == 4}
    assert {
        "server",
        "api",
        "streams",
        "cursors",
        "clock",
        "nats",
        "internal subjects",
        "data directory",
        "disk",
        "open files",
    } <= states.keys()
    assert "failed" not in states.values()
    assert "bascule-doctor" not in bascule("stream", "list").out


def test_on_a_terminal_it_is_for_the_eye(connected: Path) -> None:
    with Terminal("doctor", home=connected) as terminal:
        assert terminal.wait() == 0
        assert "✓ api: " in terminal.shown


def test_a_broker_that_is_not_there(call: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        outcome = call(
            "doctor", "-s", address, "--timeout", "1s", "--nats", f"nats://{address}", "--data-dir", "missing", "--json"
        )
    assert outcome.code == 3
    checks = {one["check"]: one for one in outcome.json}
    for name in (f"connection {address}", "nats", "data directory"):
        assert checks[name]["state"] == "failed", checks
        assert checks[name]["next"], checks
    assert checks["api"]["state"] == "skipped"
    assert checks[f"connection {address}"]["found"] == "connection refused"


def test_a_name_that_nobody_knows_and_tls_that_nobody_speaks(bascule: Run, broker: BrokerProcess) -> None:
    outcome = bascule("doctor", "-s", "nowhere.invalid", "--timeout", "2s", "--json")
    assert {one["check"]: one["state"] for one in outcome.json}["name nowhere.invalid"] == "failed"
    outcome = bascule("doctor", "-s", broker.address, "--tls", "--timeout", "1s", "--json")
    assert outcome.code == 3
    assert {one["check"]: one["state"] for one in outcome.json}["tls"] == "failed"


def test_streams_that_need_somebody() -> None:
    def verdict(leader: str, in_sync: tuple[str, ...]) -> str:
        never = EventTimes(None, None)
        partition = PartitionInfo(0, leader, ("a", "b"), in_sync, 0, 0, False, False, never, never, never)
        stream = StreamInfo("s", "s", datetime.now(UTC), {0: partition})
        return doctor._streams([stream]).state

    assert verdict("a", ("a", "b")) == "ok"
    assert verdict("a", ("a",)) == "warning"
    assert verdict("", ("a", "b")) == "failed"


# ── three brokers ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def three(tmp_path: Path, nats_server: NatsServer) -> Iterator[dict[str, BrokerProcess]]:
    config = {**PRODUCT_TIMEOUTS, "cursors.stream.partitions": 1}
    with Cluster(tmp_path / unique_name("three"), nats=nats_server, seeded=True, config=config) as found:
        yield found.brokers


def test_a_cluster_of_three_that_loses_one(three: dict[str, BrokerProcess], call: Run) -> None:
    servers = ",".join(broker.address for broker in three.values())
    call("context", "add", "three", "-s", servers).ok()
    eventually(lambda: [row[2] for row in call("cluster", "status").rows[1:]] == ["ok"] * 3, "all brokers are known")

    def is_wide() -> bool:
        """Create the stream again if a server that paused for a second got no replica of it."""
        call("stream", "create", "wide", "-p", "6").ok()
        document = call("stream", "describe", "wide", "--json").ok().json
        if {one["leader"] for one in document["partitions"]} == set(three):
            return True
        call("stream", "delete", "wide", "--yes").ok()
        return False

    eventually(is_wide, "all three lead some of it")
    call("publish", "wide", *map(str, range(30)), "--partitioner", "round-robin").ok()
    # Whichever broker answers, the offsets are those of the leaders.
    for broker in three.values():
        document = call("stream", "describe", "wide", "--json", "-s", broker.address).ok().json
        assert [one["newest_offset"] for one in document["partitions"]] == [4] * 6
    assert sorted(map(int, call("subscribe", "wide", "-e").ok().lines)) == list(range(30))
    led = {one["partition"] for one in document["partitions"] if one["leader"] == "b"}
    assert led
    three["b"].kill()

    def is_missed() -> bool:
        outcome = call("cluster", "status", "--json")
        assert outcome.code == 3
        answers = {one["id"]: one["answers"] for one in outcome.json["brokers"]}
        problems = {one["partition"] for one in outcome.json["problems"] if one["stream"] == "wide"}
        return answers == {"a": True, "b": False, "c": True} and problems == led

    eventually(is_missed, "the others answer, and what only it has is in trouble")
    row = next(row for row in call("stream", "list").ok().rows if row[0] == "wide")
    assert row[4] == f"no leader {len(led)}/6"
    assert call("doctor", "--json").code == 3
