"""`bascule keys status|rotate` on three real brokers, which serve encrypted streams meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bascule.cli.cluster.keys import _must_agree, removable
from bascule.client.admin.cluster import ServerKeys
from bascule.errors import OperatorError
from bascule.log.disk.master_keys import key_id
from tests.cli.command_line import Run
from tests.support.broker_fixtures import StartBroker, unique_name
from tests.support.cluster import LONG_TIMEOUTS, Cluster
from tests.support.nats_server import NatsServer

OLD, NEW = b"o" * 32, b"n" * 16
VALUES = [b"secret %d" % number for number in range(30)]


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.write_text(OLD.hex())
    return file


@pytest.fixture
def cluster(tmp_path: Path, nats_server: NatsServer, home: Path, key_file: Path) -> Iterator[Cluster]:
    config = {**LONG_TIMEOUTS, "encryption.key.file": str(key_file)}
    with Cluster(tmp_path / unique_name("keys"), nats=nats_server, config=config) as found:
        file = home / "bascule" / "contexts.json"
        file.parent.mkdir(exist_ok=True)
        servers = ",".join(found.brokers[name].address for name in found.well)
        document = {"current": "test", "contexts": {"test": {"server": servers, "timeout": "60s"}}}
        file.write_text(json.dumps(document), "utf-8")
        yield found


def batches(call: Run) -> dict[str, dict[str, int]]:
    found = call("keys", "status", "--json").ok().json["servers"]
    return {one["server"]: one["batches"] for one in found}


def test_the_master_key_of_a_cluster_is_rotated_while_it_runs(cluster: Cluster, call: Run, key_file: Path) -> None:
    cluster.create_stream("secret", factor=3, encryption=True)
    api = cluster.api("a")
    for value in VALUES:
        api.publish("secret", value)
    servers = set(cluster.servers)
    before = batches(call)
    assert set(before) == servers
    assert all(set(one) <= {key_id(OLD)} for one in before.values())
    assert any(one.get(key_id(OLD), 0) >= 1 for one in before.values())
    # without the old key, nothing could be read any more
    key_file.write_text(NEW.hex())
    call("keys", "rotate").failed(4, f"does not have the key {key_id(OLD)}")
    key_file.write_text(f"{NEW.hex()}\n{OLD.hex()}\n")
    planned = call("keys", "rotate", "--dry-run", "--json").ok().json
    assert {one["current"] for one in planned["servers"]} == {key_id(OLD)}
    said = call("keys", "rotate").ok().lines
    assert said[0].startswith(f"Key {key_id(NEW)} is current on 3 servers; ")
    api.publish("secret", b"under the new key")
    status = call("keys", "status", "--json").ok().json
    for one in status["servers"]:
        assert one["current"] == key_id(NEW)
        assert set(one["batches"]) <= {key_id(NEW)}, one
    assert status["removable"] == [key_id(OLD)]
    rows = call("keys", "status").ok().rows
    assert {tuple(row[:3]) for row in rows} == {
        (server, key_id(key), role) for server in servers for key, role in ((NEW, "current"), (OLD, "previous"))
    }
    key_file.write_text(NEW.hex())
    for name in cluster.servers:
        cluster.stop(name)
        cluster.restart(name)
    leader = cluster.leader_of("secret")
    found = cluster.api(leader).read("secret")
    assert [message.value for message in found] == [*VALUES, b"under the new key"]


def test_a_broker_without_master_keys_says_so(start_broker: StartBroker, call: Run) -> None:
    broker = start_broker()
    server = ("--server", broker.address)
    status = call("keys", "status", *server)
    assert status.code == 3
    assert "there is no master key" in status.err
    call("keys", "rotate", *server).failed(4, "there is no master key")


def test_keys_come_from_a_command_too(start_broker: StartBroker, call: Run, tmp_path: Path) -> None:
    script = tmp_path / "vault"
    script.write_text(f"#!/bin/sh\ntest \"$1\" = 'two words' && echo {OLD.hex()}\n")
    script.chmod(0o755)
    broker = start_broker({"encryption.key.command": f"{script} 'two words'"})
    api = broker.api()
    api.CreateStream(name="s", subject="s", encryption=True)
    api.publish("s", b"x")
    (one,) = call("keys", "status", "--json", "--server", broker.address).ok().json["servers"]
    assert (one["current"], one["batches"], one["source"]) == (
        key_id(OLD),
        {key_id(OLD): 1},
        f"the key command `{script}`",
    )
    api.close()


def test_two_sources_of_keys_are_refused(start_broker: StartBroker, key_file: Path) -> None:
    config = {"encryption.key.file": str(key_file)}
    broker = start_broker(config, env={"BASCULE_ENCRYPTION_KEY": "k" * 16}, launch_only=True)
    assert broker.wait() != 0
    assert "`encryption.key.file` and `BASCULE_ENCRYPTION_KEY`" in broker.said()


def server(name: str, **fields: Any) -> ServerKeys:
    blank: dict[str, Any] = {
        "server": name,
        "error": "",
        "source": "the key file keys",
        "current": "old",
        "known": ("old", "new"),
        "offered": ("new", "old"),
        "phase": "idle",
        "bytes_done": 0,
        "bytes_total": 0,
        "is_counted": True,
        "uses": {},
        "former": 0,
        "rewrapped": 0,
        "closed": 0,
        "failures": (),
    }
    return ServerKeys(**{**blank, **fields})


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (server("b", offered=("newer", "old")), "different first keys"),
        (server("b", error="does not answer"), "server b: does not answer"),
        (server("b", known=("new",), current="new"), "server b does not have the key old"),
    ],
)
def test_a_rotation_begins_only_if_all_servers_can_follow(other: ServerKeys, text: str) -> None:
    _must_agree([server("a"), server("b")])
    with pytest.raises(OperatorError, match=text):
        _must_agree([server("a"), other])


def test_a_key_can_be_removed_when_nothing_is_stored_under_it_anywhere() -> None:
    done = server("a", current="new", uses={"new": 5})
    assert removable([done, done]) == {"old"}
    for fields in ({"closed": 1}, {"failures": ("x",)}, {"is_counted": False}, {"uses": {"old": 1}}, {"error": "x"}):
        assert removable([done, server("b", **{"current": "new", **fields})]) == set()
