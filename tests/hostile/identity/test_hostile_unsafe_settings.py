"""An open server does not start by accident, and says so when it starts on purpose."""

from __future__ import annotations

import asyncio
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bascule.cli.server import doctor
from bascule.cli.terminal.finding import OK, SKIPPED, WARNING
from tests.cli.command_line import run
from tests.hostile.identity.guarded import GuardedBroker
from tests.support.broker_fixtures import StartBroker


def test_a_server_does_not_listen_to_others_without_tls_and_authentication(start_broker: StartBroker) -> None:
    broker = start_broker({"listen": "0.0.0.0:0", "host": "127.0.0.1"}, launch_only=True)
    assert broker.wait() != 0
    assert "without TLS" in broker.said() and "security.insecure" in broker.said()


def test_an_open_server_warns_in_its_log_and_its_metrics(start_broker: StartBroker) -> None:
    broker = start_broker({"listen": "0.0.0.0:0", "host": "127.0.0.1", "security.insecure": True})
    assert broker.said().count("UNSAFE: the server listens on 0.0.0.0:0") == 2
    page = urllib.request.urlopen(f"http://{broker.http_address}/metrics", timeout=60).read().decode()
    for name in ("no_tls", "no_authentication"):
        assert f'bascule_unsafe_setting{{setting="{name}"}} 1' in page
    local = start_broker()
    assert "UNSAFE" not in local.said()


# ── `bascule doctor` ─────────────────────────────────────────────────────────────────────────────


def checks_of(address: str, directory: Path, *options: str) -> dict[str, dict[str, str]]:
    """What `bascule doctor` reports, by check."""
    found = run("doctor", "--server", address, "--json", *options, home=directory).json
    return {check["check"]: check for check in found}


def test_doctor_warns_of_an_open_server(start_broker: StartBroker) -> None:
    """A broker that takes calls without credentials, and that other machines reach under its advertised address."""
    options = {"tls": None, "token": None}
    target: Any = SimpleNamespace(
        server=start_broker().address, timeout=60.0, client_options=lambda: options, speaks_tls=False
    )
    brokers: Any = [SimpleNamespace(id="here", host="127.0.0.1"), SimpleNamespace(id="outside", host="192.0.2.1")]
    found = asyncio.run(doctor._credentials(target, brokers))
    assert (found.state, "every client that reaches outside may" in found.found) == (WARNING, True)
    assert "`security.tokens.file`" in found.next_step
    found = asyncio.run(doctor._tls(target, "192.0.2.1", 1))
    assert (found.state, "`tls.cert`" in found.next_step) == (WARNING, True)


def test_doctor_accepts_a_server_on_loopback_and_one_that_refuses_strangers(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    local = checks_of(start_broker().address, tmp_path)
    assert (local["credentials"]["state"], local["tls"]["state"]) == (OK, SKIPPED)
    guarded = GuardedBroker(start_broker, tmp_path / "guarded")
    token = tmp_path / "token"
    token.write_text(guarded.provider.sign("alice"))
    token.chmod(0o600)
    found = checks_of(guarded.address, tmp_path, "--tls-ca", str(guarded.authority.file), "--token-file", str(token))
    assert found["credentials"]["state"] == OK
    assert "refuse clients without credentials" in found["credentials"]["found"]
    assert found["tls"]["state"] == OK
