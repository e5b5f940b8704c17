"""An open server does not start by accident, and says so when it starts on purpose."""

from __future__ import annotations

import urllib.request

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
