"""How it looks on a terminal, and how it speaks TLS."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command_line import Run, Terminal
from tests.support.api_client import Health, grpc
from tests.support.broker_fixtures import MakeStream, StartBroker
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import Authority, Certificate
from tests.support.waiting import eventually


def shown(home: Path, *arguments: str, env: dict[str, str] | None = None) -> tuple[str, str]:
    """What is on the screen, and the bytes that made it."""
    with Terminal(*arguments, home=home, env=env) as terminal:
        assert terminal.wait() == 0, terminal.shown
        return terminal.shown, terminal.raw


def test_lists_are_tables(connected: Path, make_stream: MakeStream, bascule: Run) -> None:
    name = make_stream(partitions=2).name
    bascule("publish", name, "x", "--repeat", "1500").ok()
    screen, raw = shown(connected, "stream", "list")
    assert screen.splitlines()[0].split() == ["Name", "Subject", "Partitions", "Received", "State", "Created"]
    assert "1,500" in screen
    assert "\x1b[32mok" in raw


def test_descriptions_are_facts_and_a_table(connected: Path, make_stream: MakeStream) -> None:
    screen, _ = shown(connected, "stream", "describe", make_stream().name)
    assert "In sync" in screen
    assert "subject" in screen


def test_the_cluster_in_a_sentence(connected: Path, make_stream: MakeStream, bascule: Run) -> None:
    bascule("stream", "pause", make_stream().name).ok()
    screen, _ = shown(connected, "cluster", "status")
    assert "Latency" in screen
    assert "paused" in screen


def test_emptiness_is_explained(home: Path, start_broker: StartBroker) -> None:
    server = ("-s", start_broker({"cursors.stream.partitions": 1}).address, "--timeout", "60s")
    assert "bascule stream create" in shown(home, "stream", "list", *server)[0]
    assert "bascule context add" in shown(home, "context", "list")[0]
    assert "bascule group consume" in shown(home, "group", "list", *server)[0]


def test_json_is_json_on_a_terminal_too(connected: Path, make_stream: MakeStream) -> None:
    name = make_stream().name
    assert json.loads(shown(connected, "stream", "describe", name, "--json")[0])["name"] == name


def test_an_error_is_red_unless_colours_are_unwanted(connected: Path) -> None:
    with Terminal("stream", "describe", "no-such", home=connected) as terminal:
        assert terminal.wait() == 3
        assert "\x1b[31m" in terminal.raw
        assert "error: there is no stream `no-such`" in terminal.shown
    with Terminal("stream", "describe", "no-such", home=connected, env={"NO_COLOR": "1"}) as terminal:
        assert terminal.wait() == 3
        assert "\x1b[" not in terminal.raw


def test_no_color_holds_for_messages(connected: Path, make_stream: MakeStream, bascule: Run) -> None:
    name = make_stream().name
    bascule("publish", name, "x").ok()
    assert "\x1b[" not in shown(connected, "subscribe", name, "-e", env={"NO_COLOR": "1"})[1]


# ── TLS ──────────────────────────────────────────────────────────────────────────────────────────


class Guarded:
    """A broker that wants certificates."""

    def __init__(self, directory: Path, start_broker: StartBroker) -> None:
        self.authority = Authority(directory)
        server = self.authority.issue("server")
        self.own: Certificate = self.authority.issue("alice")
        config = {
            "tls.cert": str(server.cert),
            "tls.key": str(server.key),
            "tls.client.auth.enabled": True,
            "tls.client.auth.ca": str(self.authority.file),
        }
        self.broker: BrokerProcess = start_broker(config, launch_only=True)
        eventually(self.broker.addresses_file.exists, "it serves")
        self.address = json.loads(self.broker.addresses_file.read_text())["grpc"]
        eventually(self._is_ready, "it is ready")

    def _is_ready(self) -> bool:
        self.broker.address = self.address
        api = self.broker.api(credentials=self.authority.credentials(self.own))
        try:
            return Health(api).check() == Health.SERVING and bool(api.FetchMetadata().brokers)
        except grpc.RpcError:
            return False
        finally:
            api.close()


@pytest.fixture
def guarded(tmp_path: Path, start_broker: StartBroker) -> Guarded:
    directory = tmp_path / "tls"
    directory.mkdir()
    return Guarded(directory, start_broker)


def test_tls_with_a_certificate_of_our_own(guarded: Guarded, call: Run) -> None:
    files = [
        "--tls-ca",
        str(guarded.authority.file),
        "--tls-cert",
        str(guarded.own.cert),
        "--tls-key",
        str(guarded.own.key),
    ]
    call("context", "add", "secure", "-s", guarded.address, "--timeout", "60s", *files).ok()
    call("stream", "create", "s").ok()
    call("publish", "s", "x").ok()
    assert call("subscribe", "s", "-e").ok().lines == ["x"]
    checks = {one["check"]: one for one in call("doctor", "--json").ok().json}
    assert checks["tls"]["state"] == "ok"
    assert "TLSv1" in checks["tls"]["found"]
    assert call("cluster", "status", "--json").ok().json["brokers"][0]["answers"] is True


def test_tls_that_does_not_fit_is_explained(guarded: Guarded, call: Run) -> None:
    where = ["-s", guarded.address, "--timeout", "20s"]
    call("stream", "list", *where).failed(5, guarded.address, "bascule doctor")
    outcome = call("doctor", *where, "--tls", "--json")
    assert outcome.code == 3
    tls = next(one for one in outcome.json if one["check"] == "tls")
    assert (tls["state"], "--tls-ca" in tls["next"]) == ("failed", True)
