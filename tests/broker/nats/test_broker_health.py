"""`/healthz` and `/readyz` through the life of a broker, and who may come through the HTTP port."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import random
import re
import signal
import socket
import ssl
import threading
import time
from pathlib import Path

import pytest

from tests.support.broker_fixtures import StartBroker, unique_name
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import Authority, Certificate
from tests.support.guarded_broker import MODEL, Guarded
from tests.support.monitoring import Answer, get, scrape
from tests.support.nats_server import NatsServer
from tests.support.waiting import eventually


def http_port(broker: BrokerProcess) -> str:
    """Where it answers, from its log: before it serves, it has told nobody else."""

    def look() -> str | None:
        assert broker.is_running, broker.tail()
        found = re.findall(r"metrics and health are served on port (\d+)", broker.said())
        return f"127.0.0.1:{found[-1]}" if found else None

    return eventually(look, "the HTTP port is open")


def ready(address: str) -> Answer:
    return get(address, "/readyz")


# ── its life ─────────────────────────────────────────────────────────────────────────────────────


def test_a_broker_that_serves_lives_and_is_ready(broker: BrokerProcess) -> None:
    assert (get(broker.http_address, "/healthz").status, get(broker.http_address, "/healthz").text) == (200, "ok\n")
    assert (ready(broker.http_address).status, ready(broker.http_address).text) == (200, "ready\n")


def test_while_it_starts_it_lives_and_is_not_ready(start_broker: StartBroker, tmp_path: Path) -> None:
    """Of three servers that are to make a cluster it is the only one: nobody can be controller."""
    peers = {"clustering.server.id": "a", "clustering.raft.bootstrap.peers": ["b", "c"]}
    with NatsServer(tmp_path / "nats") as nats:
        nats.pause()  # a broker that waits for NATS goes on starting
        broker = start_broker(peers, seed=False, launch_only=True, nats_url=nats.url)
        address = http_port(broker)
        assert get(address, "/healthz").status == 200
        starting = ready(address)
        assert starting.status == 503
        assert starting.text == "the server is starting\n"
        assert get(address, "/metrics").status == 503
        nats.signal(signal.SIGCONT)
        waiting = eventually(
            lambda: found if "no controller is known" in (found := ready(address)).text else None,
            "it serves without quorum",
        )
        assert waiting.status == 503
        assert "the cluster's metadata has not been read yet" in waiting.text
        broker.http_address = address
        found = scrape(broker)
        assert (found.value("bascule_ready"), found.value("bascule_controller_known")) == (0, 0)
        assert get(address, "/healthz").status == 200


def test_without_nats_it_lives_and_is_not_ready_until_it_is_back(start_broker: StartBroker, tmp_path: Path) -> None:
    with NatsServer(tmp_path / "nats") as nats:
        broker = start_broker(nats_url=nats.url)
        api = broker.api()
        api.CreateStream(name="s", subject="s")
        api.publish("s", b"x")
        assert ready(broker.http_address).status == 200
        nats.stop()
        lost = eventually(
            lambda: found if (found := ready(broker.http_address)).text.count("NATS is not connected") == 3 else None,
            "all links are missed",
        )
        assert lost.status == 503
        assert "(control)" in lost.text
        assert get(broker.http_address, "/healthz").status == 200
        found = scrape(broker)  # monitoring goes on
        assert found.value("bascule_nats_connected", link="streams") == 0
        assert found.value("bascule_partition_log_end_offset", stream="s", partition=0) == 1
        nats.start()
        eventually(lambda: ready(broker.http_address).status == 200, "it is ready again")
        found = scrape(broker)
        assert found.value("bascule_nats_reconnects_total", link="streams") >= 1
        assert found.value("bascule_nats_connected", link="control") == 1
        api.close()


def said_while_it_stops(broker: BrokerProcess, nats: NatsServer) -> tuple[list[str], float]:
    """What it says of itself, one after the other, and for how long it was not heard at most."""
    said: list[str] = []
    heard = [time.monotonic()]

    def ask() -> None:
        try:
            while True:
                said.append(ready(broker.http_address).text)
                heard.append(time.monotonic())
        except (OSError, http.client.HTTPException):
            said.append("gone")
            heard.append(time.monotonic())

    asking = threading.Thread(target=ask)
    asking.start()
    eventually(lambda: "ready\n" in said, "it was ready")
    nats.pause()  # who says goodbye to NATS waits for an answer
    broker.process.send_signal(signal.SIGTERM)  # type: ignore[union-attr]
    asking.join(60)
    nats.signal(signal.SIGCONT)
    assert broker.wait() == 0
    kinds = [text for place, text in enumerate(said) if place == 0 or said[place - 1] != text]
    return kinds, max(later - earlier for earlier, later in itertools.pairwise(heard))


def test_while_it_stops_it_is_not_ready_and_then_it_is_gone(start_broker: StartBroker, tmp_path: Path) -> None:
    with NatsServer(tmp_path / "nats") as nats:
        for _ in range(5):
            kinds, silence = said_while_it_stops(start_broker(nats_url=nats.url), nats)
            assert kinds[0] == "ready\n"
            assert kinds[-1] == "gone"
            assert kinds.count("ready\n") == 1
            if "the server is stopping\n" in kinds or silence < 1:
                break  # else we may not have been there when it said so
        assert "the server is stopping\n" in kinds


def test_a_partition_that_cannot_be_led_is_named(start_broker: StartBroker) -> None:
    broker = start_broker()
    api = broker.api()
    api.CreateStream(name="s", subject="s", partitions=2)
    api.publish("s", b"x", partition=1)
    api.close()
    broker.kill()
    folder = broker.data / "streams" / "s"
    kept = folder.rename(broker.data.with_name("kept"))
    folder.write_text("no folder can be made here")
    broker.start()
    answer = eventually(
        lambda: found if "not led yet" in (found := ready(broker.http_address)).text else None,
        "the partitions are missed",
    )
    assert answer.status == 503
    assert "not led yet: s/0, s/1" in answer.text
    folder.unlink()
    kept.rename(folder)
    eventually(lambda: ready(broker.http_address).status == 200, "they are led")


# ── ports ────────────────────────────────────────────────────────────────────────────────────────


def test_without_the_service_there_is_no_port(start_broker: StartBroker) -> None:
    broker = start_broker({"http.enabled": False})
    assert "http" not in json.loads(broker.addresses_file.read_text())
    assert "metrics and health" not in broker.said()


def test_a_port_that_was_asked_for_must_be_free(start_broker: StartBroker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        broker = start_broker({"http.listen": address}, launch_only=True)
        assert broker.wait() != 0
        assert f"cannot serve HTTP on {address}" in broker.said()
        assert "http.listen" in broker.said()


def unused_port() -> int:
    """None of those that the system gives to whoever asks for any: so nobody else takes it before it is used."""
    for port in random.sample(range(20_000, 30_000), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


def test_where_the_usual_port_is_taken_another_one_is_told(start_broker: StartBroker) -> None:
    """Many brokers on one machine need no configuration for it."""
    taken = None
    with contextlib.suppress(OSError):  # somebody else has it: as good
        taken = socket.create_server(("127.0.0.1", 9293))
    try:
        broker = start_broker({"listen": f"127.0.0.1:{unused_port()}"})
        if taken is None and broker.http_address.endswith(":9293"):
            # Who had it has left meanwhile: now it is ours, and stays so.
            broker = start_broker({"listen": f"127.0.0.1:{unused_port()}"})
        assert not broker.http_address.endswith(":9293")
        assert get(broker.http_address, "/healthz").status == 200
        assert "port 9293 is in use" in broker.said()
    finally:
        if taken is not None:
            taken.close()


# ── TLS and who may look ─────────────────────────────────────────────────────────────────────────


def context(authority: Authority, own: Certificate | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(authority.file))
    made.set_alpn_protocols(["http/1.1"])
    if own is not None:
        made.load_cert_chain(own.cert, own.key)
    return made


def address_of(guarded: Guarded) -> str:
    address: str = json.loads(guarded.broker.addresses_file.read_text())["http"]
    return address


def test_behind_tls_nothing_is_said_in_the_clear(start_broker: StartBroker, tmp_path: Path) -> None:
    guarded = Guarded(start_broker, tmp_path / "tls", {})
    address = address_of(guarded)
    trusting = context(guarded.authority)
    eventually(lambda: get(address, "/readyz", tls=trusting).status == 200, "it is ready")
    assert get(address, "/metrics", tls=trusting).body.startswith(b"# HELP ")
    for path in ("/healthz", "/metrics"):
        with pytest.raises((OSError, http.client.HTTPException)):
            get(address, path)
    with pytest.raises(ssl.SSLError):
        get(address, "/healthz", tls=context(Authority(tmp_path, "stranger")))


def test_a_new_certificate_is_shown_after_sighup(start_broker: StartBroker, tmp_path: Path) -> None:
    guarded = Guarded(start_broker, tmp_path / "tls", {})
    address = address_of(guarded)
    old, other = context(guarded.authority), Authority(tmp_path, "the next")
    issued = other.issue("server")
    assert get(address, "/healthz", tls=old).status == 200
    Path(guarded.broker.config["tls.cert"]).write_bytes(issued.cert.read_bytes())
    Path(guarded.broker.config["tls.key"]).write_bytes(issued.key.read_bytes())
    os.kill(guarded.broker.pid, signal.SIGHUP)
    eventually(lambda: "the certificate was read again" in guarded.broker.said(), "the certificate was read")
    assert get(address, "/healthz", tls=context(other)).status == 200
    with pytest.raises(ssl.SSLError):
        get(address, "/healthz", tls=old)


def test_metrics_are_for_whoever_may_see_all_streams(start_broker: StartBroker, tmp_path: Path) -> None:
    model, policy = tmp_path / "model.conf", tmp_path / "policy.csv"
    model.write_text(MODEL)
    policy.write_text("p, admin, *, FetchMetadata\n")
    guarded = Guarded(
        start_broker,
        tmp_path / unique_name("tls"),
        {
            "tls.client.auth.enabled": True,
            "tls.client.auth.ca": "the authority",
            "tls.client.authz.enabled": True,
            "tls.client.authz.model": str(model),
            "tls.client.authz.policy": str(policy),
        },
    )
    address, authority = address_of(guarded), guarded.authority
    assert get(address, "/metrics", tls=context(authority, guarded.admin)).status == 200
    stranger = context(authority, authority.issue("stranger"))
    denied = get(address, "/metrics", tls=stranger)
    assert denied.status == 403
    assert "not authorized to call FetchMetadata" in denied.text
    assert get(address, "/healthz", tls=stranger).status == 200
    assert get(address, "/readyz", tls=stranger).status == 200
    with pytest.raises((OSError, http.client.HTTPException)):
        get(address, "/healthz", tls=context(authority))  # no certificate at all


# ── who holds connections ────────────────────────────────────────────────────────────────────────


def test_silent_and_slow_connections_keep_no_probe_out(broker: BrokerProcess) -> None:
    host, _, port = broker.http_address.rpartition(":")
    slow = []
    try:
        for _ in range(300):
            one = socket.create_connection((host, int(port)))
            one.sendall(b"GET /metrics HTTP/1.1\r\nHos")
            slow.append(one)
        for _ in range(20):
            assert get(broker.http_address, "/healthz").status == 200
        assert scrape(broker).value("bascule_http_connections") <= 256
    finally:
        for one in slow:
            one.close()
