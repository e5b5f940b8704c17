"""What an operator's scripts rely on: `cluster status` in a pipe, `cluster wait`, the names of processes, and closed terminals."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command_line import COMMAND, Outcome, Run, environ, start
from tests.support.api_client import pb
from tests.support.broker_fixtures import unique_name
from tests.support.cluster import Cluster
from tests.support.nats_server import NatsServer
from tests.support.waiting import PATIENCE_SECONDS, eventually

HEADER = [
    "broker",
    "address",
    "answers",
    "latency",
    "partitions",
    "leads",
    "role",
    "state",
    "version",
    "uptime",
    "lagging",
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, nats_server: NatsServer) -> Iterator[Cluster]:
    config = {"cursors.stream.partitions": 1, "cursors.stream.auto.pause.time": "100ms"}
    with Cluster(tmp_path_factory.mktemp(unique_name("operator")), nats=nats_server, config=config) as found:
        yield found


@pytest.fixture
def bascule(cluster: Cluster, call: Run) -> Run:
    def run(*arguments: str) -> Outcome:
        return call(*arguments, "--server", cluster.brokers["a"].address)

    return run


def test_a_pipe_shows_what_is_wrong_and_a_script_can_wait_until_it_is_right(cluster: Cluster, bascule: Run) -> None:
    name = unique_name("watched")
    cluster.create_stream(name)
    cluster.api("a").publish(name, b"x", ackPolicy=pb.ALL)
    assert bascule("cluster", "wait", "--healthy", "--for", "60s").ok().lines == ["The cluster is healthy."]
    well = bascule("cluster", "status").ok()
    assert well.rows[0] == HEADER
    assert [row[0] for row in well.rows[1:]] == ["a", "b", "c"]
    assert {len(row) for row in well.rows} == {len(HEADER)}
    assert bascule("cluster", "status", "--json").ok().json["partitions"]["paused"] == 0, (
        "internal streams do not count"
    )

    cluster.kill("c")
    try:
        eventually(lambda: "c" not in cluster.view(name).in_sync, "the dead replica is out of sync")  # type: ignore[union-attr]
        ill = bascule("cluster", "status")
        assert ill.code == 3
        (dead,) = [dict(zip(HEADER, row, strict=True)) for row in ill.rows if row[0] == "c"]
        assert (dead["answers"], dead["state"]) == ("failed", "down")
        assert int(dead["lagging"]) >= 1
        assert "warning: broker c does not answer\n" in ill.err
        assert f"warning: {name}/0: under-replicated\n" in ill.err
        bascule("cluster", "wait", "--healthy", "--for", "1s").failed(3, "broker c does not answer", "cluster status")
    finally:
        cluster.revive()
    cluster.wait_until_in_sync(name)
    bascule("cluster", "wait", "--healthy", "--for", "60s").ok()
    bascule("cluster", "wait").failed(2, "--healthy")


def test_a_closed_terminal_leaves_no_stream_of_a_bench(cluster: Cluster, home: Path) -> None:
    def streams() -> set[str]:
        found = cluster.api("a").FetchMetadata().streamMetadata
        return {one.name for one in found if one.name.startswith("bascule-bench-")}

    address = cluster.brokers["a"].address
    inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup, the command would ignore it
    try:
        process = start("bench", "latency", "-n", "10000000", "--server", address, home=home)
    finally:
        signal.signal(signal.SIGHUP, inherited)
    with process:
        try:
            eventually(streams, "the bench has made its stream")
            process.send_signal(signal.SIGHUP)
            assert process.wait(PATIENCE_SECONDS) == 128 + signal.SIGHUP
        finally:
            process.kill()
    assert streams() == set()


def test_ps_shows_a_broker_as_bascule_server(tmp_path: Path, home: Path) -> None:
    command = [
        *COMMAND,
        "server",
        "--embedded-nats",
        "--raft-bootstrap-seed",
        "--port",
        "0",
        "-d",
        str(tmp_path / "data"),
    ]
    config = {
        "BASCULE_NATS_EMBEDDED_PORT": "0",
        "BASCULE_FLIGHT_ENABLED": "false",
        "BASCULE_HTTP_LISTEN": "127.0.0.1:0",
    }
    with subprocess.Popen(command, env=environ(home, config), stderr=subprocess.DEVNULL) as process:
        try:
            eventually((tmp_path / "data" / "addresses.json").exists, "the broker serves")
            shown = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
            assert shown[0] == sys.executable.encode()
            assert b" ".join(shown[2:5]).endswith(b"bascule.cli.main server --embedded-nats")
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_SECONDS) == 0
        finally:
            process.kill()
