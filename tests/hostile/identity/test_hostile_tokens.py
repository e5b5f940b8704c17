"""Calls with no token, forged, expired and revoked ones, and guesses: none gets in, and users who are in go on."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

import bascule
from bascule import errors
from bascule.client.arrow.reader import FlightConnection
from tests.hostile.identity.guarded import GuardedBroker
from tests.support.api_client import Health, Status, pb, refused
from tests.support.broker_fixtures import StartBroker
from tests.support.on_loop import on_loop
from tests.support.users import TokenFile
from tests.support.waiting import PATIENCE_SECONDS, eventually

MODEL = """
[request_definition]
r = sub, obj, act
[policy_definition]
p = sub, obj, act
[role_definition]
g = _, _
[policy_effect]
e = some(where (p.eft == allow))
[matchers]
m = g(r.sub, p.sub) && (r.obj == p.obj || p.obj == "*") && (r.act == p.act || p.act == "*")
"""


@pytest.fixture
def guarded(start_broker: StartBroker, tmp_path: Path) -> GuardedBroker:
    return GuardedBroker(start_broker, tmp_path / "guarded", {"flight.enabled": True})


def test_every_port_wants_a_token_and_probes_do_not(guarded: GuardedBroker) -> None:
    nobody = guarded.api()
    with refused(Status.UNAUTHENTICATED, "authorization: Bearer"):
        nobody.FetchMetadata()
    with refused(Status.UNAUTHENTICATED):
        nobody.CreateStream(name="s", subject="s")
    with refused(Status.UNAUTHENTICATED):
        nobody.publish("s", b"x")
    with refused(Status.UNAUTHENTICATED):
        nobody.read("s")
    assert Health(nobody).check() == Health.SERVING
    nobody.close()
    assert guarded.get("/metrics")[::2] == (401, "Bearer")
    assert guarded.get("/healthz")[0] == guarded.get("/readyz")[0] == 200
    for servers in (guarded.address, f"grpc+tls://{guarded.addresses['flight']}"):
        with (
            FlightConnection(servers, tls=guarded.tls, patience=0.1) as tables,
            pytest.raises(errors.Unauthenticated, match="credentials"),
        ):
            tables.offsets()


@pytest.mark.parametrize("kind", ["static", "jwt"])
def test_a_token_opens_every_port(guarded: GuardedBroker, kind: str) -> None:
    token = guarded.tokens.create("alice") if kind == "static" else guarded.provider.sign("alice")
    if kind == "static":
        reload(guarded)
    foreign = guarded.api(token)
    foreign.CreateStream(name="s", subject="s")
    assert foreign.publish("s", b"x").offset == 0
    session = foreign.publish_async()
    session.send("s", b"y", correlationId="1")
    assert session.take(1)[0].ack.offset == 1
    session.finish()
    assert [message.value for message in foreign.read("s")] == [b"x", b"y"]
    foreign.close()

    async def connected() -> None:
        async with bascule.connect(guarded.address, tls=guarded.tls, token=token) as client:
            ack = await client.publish("s", b"z", ack="all")
            assert ack is not None and ack.offset == 2

    asyncio.run(connected())
    assert guarded.get("/metrics", f"Bearer {token}")[0] == 200
    with FlightConnection(guarded.address, tls=guarded.tls, token=token) as tables:
        assert tables.offsets(["s"])["s"]["partitions"][0]["high_watermark"] == 2
        rows = [row for batch in tables.read("s", 0, 0, 3) for row in batch.column("value").to_pylist()]
        assert rows == [b"x", b"y", b"z"]


def reload(guarded: GuardedBroker) -> None:
    before = guarded.broker.said().count("was read again: it has")
    os.kill(guarded.broker.pid, signal.SIGHUP)
    eventually(lambda: guarded.broker.said().count("was read again: it has") > before, "the broker has read the tokens")


def test_forged_tokens_are_refused_on_every_port(guarded: GuardedBroker) -> None:
    stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    forged = [
        guarded.provider.sign("alice", key=stranger),
        guarded.provider.sign("alice", exp=time.time() - 3600),
        guarded.provider.sign("alice", aud="another"),
        guarded.provider.sign("alice", iss="https://evil.example"),
        guarded.provider.sign("role:admin"),
        "bascule_0123456789ab_" + "0" * 64,
        "x",
    ]
    for token in forged:
        api = guarded.api(token)
        with refused(Status.UNAUTHENTICATED):
            api.FetchMetadata()
        api.close()
    assert guarded.get("/metrics", f"Bearer {forged[0]}")[0] == 401
    assert guarded.get("/metrics", "Basic YTpi")[0] == 401
    with (
        FlightConnection(guarded.address, tls=guarded.tls, token=forged[1], patience=0.1) as tables,
        pytest.raises(errors.Unauthenticated),
    ):
        tables.offsets()
    assert "Traceback" not in guarded.broker.said()


def test_a_revoked_token_is_refused_after_a_reload(guarded: GuardedBroker) -> None:
    token, kept = guarded.tokens.create("alice"), guarded.tokens.create("bob")
    reload(guarded)
    alice, bob = guarded.api(token), guarded.api(kept)
    assert alice.FetchMetadata().brokers
    guarded.tokens.revoke(token)
    reload(guarded)
    with refused(Status.UNAUTHENTICATED, "revoked"):
        alice.FetchMetadata()
    assert bob.FetchMetadata().brokers
    for one in (alice, bob):
        one.close()


def test_running_calls_of_a_revoked_token_end_at_the_reload(guarded: GuardedBroker) -> None:
    token, kept = guarded.tokens.create("alice"), guarded.tokens.create("bob")
    reload(guarded)
    alice, bob = guarded.api(token), guarded.api(kept)
    bob.CreateStream(name="s", subject="s")
    reading, staying = alice.subscribe("s"), bob.subscribe("s")
    session = alice.publish_async()
    session.send("s", b"before", correlationId="1")
    assert session.take(1)[0].ack.offset == 0
    assert [one.next().value for one in (reading, staying)] == [b"before"] * 2
    guarded.tokens.revoke(token)
    reload(guarded)
    bob.publish("s", b"secret")
    assert staying.next().value == b"secret"
    reading.expect_end(Status.PERMISSION_DENIED)
    with refused(Status.PERMISSION_DENIED):
        session.next()
    assert [message.value for message in bob.read("s")] == [b"before", b"secret"]
    staying.cancel()
    for one in (alice, bob):
        one.close()


def test_guessing_neither_succeeds_nor_slows_a_user(guarded: GuardedBroker) -> None:
    token = guarded.tokens.create("alice")
    reload(guarded)
    alice = guarded.api(token)
    assert alice.FetchMetadata().brokers
    number, stop, statuses = token.split("_")[1], threading.Event(), []

    def guess() -> None:
        api = guarded.api()
        call = api.channel.unary_unary("/proto.API/FetchMetadata")
        value = 0
        while not stop.is_set():
            value += 1
            header = (("authorization", f"Bearer bascule_{number}_{value:064x}"),)
            error: Any = call.future(b"", timeout=PATIENCE_SECONDS, metadata=header).exception()
            statuses.append(error.code())
        api.close()

    attackers = [threading.Thread(target=guess) for _ in range(3)]
    for one in attackers:
        one.start()
    eventually(lambda: len(statuses) > 300, "three hundred guesses are answered")
    assert alice.FetchMetadata(timeout=PATIENCE_SECONDS).brokers
    stop.set()
    for one in attackers:
        one.join()
    assert set(statuses) <= {Status.UNAUTHENTICATED, Status.UNAVAILABLE}
    assert alice.FetchMetadata().brokers
    alice.close()
    # ten guesses, and those that time gives back, are hashed: the others cost nothing
    assert guarded.broker.said().count("was refused: the token is unknown") < 60


def test_certificates_count_beside_tokens(start_broker: StartBroker, tmp_path: Path) -> None:
    authority: dict[str, Any] = {"tls.client.auth.enabled": True, "tls.client.auth.optional": True}
    authority["tls.client.auth.ca"] = str(tmp_path / "guarded" / "test-authority.pem")
    guarded = GuardedBroker(start_broker, tmp_path / "guarded", authority)
    machine, nobody, user = (
        guarded.api(certificate="machine"),
        guarded.api(),
        guarded.api(guarded.provider.sign("alice")),
    )
    assert machine.FetchMetadata().brokers
    assert user.FetchMetadata().brokers
    with refused(Status.UNAUTHENTICATED):
        nobody.FetchMetadata()
    for one in (machine, nobody, user):
        one.close()


def test_policies_name_users_and_roles_of_tokens(start_broker: StartBroker, tmp_path: Path) -> None:
    model, policy = tmp_path / "model", tmp_path / "policy"
    model.write_text(MODEL)
    policy.write_text(
        "p, admin, *, *\np, role:readers, s, Subscribe\np, role:readers, *, FetchMetadata\np, role:root, *, *\n"
    )
    config = {
        "tls.client.authz.enabled": True,
        "tls.client.authz.model": str(model),
        "tls.client.authz.policy": str(policy),
    }
    guarded = GuardedBroker(start_broker, tmp_path / "guarded", config)
    sign = guarded.provider.sign
    admin, reader, outsider = (
        guarded.api(sign("admin")),
        guarded.api(sign("bob", groups=["readers"])),
        guarded.api(sign("eve")),
    )
    admin.CreateStream(name="s", subject="s")
    admin.publish("s", b"x")
    assert [message.value for message in reader.read("s")] == [b"x"]
    for api in (reader, outsider):
        with refused(Status.PERMISSION_DENIED, "Publish"):
            api.publish("s", b"y")
        session = api.publish_async()
        session.send("s", b"y", ackPolicy=pb.LEADER)
        assert session.take(1)[0].asyncError.code == pb.PublishAsyncError.PERMISSION_DENIED
        session.finish()
    with refused(Status.PERMISSION_DENIED):
        outsider.FetchMetadata()
    for api in (admin, reader, outsider):
        api.close()


def test_the_built_in_model_holds_users_to_their_streams(start_broker: StartBroker, tmp_path: Path) -> None:
    policy = tmp_path / "policy"
    policy.write_text(
        "p, admin, *, *\np, role:shops, stream:bobs*, *\np, role:shops, subject:bobs.>, *\n"
        "p, role:shops, cluster:*, FetchMetadata\ng, bob, role:shops\n"
    )
    config = {"tls.client.authz.enabled": True, "tls.client.authz.policy": str(policy)}
    guarded = GuardedBroker(start_broker, tmp_path / "guarded", config)
    admin, bob = guarded.api(guarded.provider.sign("admin")), guarded.api(guarded.provider.sign("bob"))
    admin.CreateStream(name="orders", subject="orders.s")
    bob.CreateStream(name="bobs-own", subject="bobs.own")
    assert bob.publish("bobs-own", b"x").offset == 0
    for name, subject in (("bobs-tap", "orders.s"), ("mine", "bobs.mine")):
        with refused(Status.PERMISSION_DENIED):
            bob.CreateStream(name=name, subject=subject)
    with refused(Status.PERMISSION_DENIED):
        bob.publish("orders", b"forged")
    with refused(Status.PERMISSION_DENIED):
        bob.PublishToSubject(subject="orders.s", value=b"forged")
    with refused(Status.PERMISSION_DENIED):
        bob.JoinConsumerGroup(groupId="bobs", consumerId="c", streams=["bobs-own"])
    assert [message.value for message in admin.read("bobs-own")] == [b"x"]
    for one in (admin, bob):
        one.close()


# ── the client's token stays secret ──────────────────────────────────────────────────────────────


class Eavesdropper:
    """Takes the port of a broker and keeps what clients send."""

    def __init__(self) -> None:
        self.heard = b""
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(0.5)
                connection.sendall(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")  # the SETTINGS of HTTP/2
                try:
                    while data := connection.recv(65536):
                        self.heard += data
                except OSError:
                    pass

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


@pytest.fixture
def eavesdropper() -> Iterator[Eavesdropper]:
    made = Eavesdropper()
    yield made
    made.close()


def test_the_client_sends_no_token_in_the_clear(eavesdropper: Eavesdropper) -> None:
    secret = "bascule_0123456789ab_" + "5" * 64
    unverified = careless_context()

    async def call(**options: Any) -> None:
        async with bascule.connect(f"127.0.0.1:{eavesdropper.port}", token=secret, timeout=1.0, **options):
            pass

    for options in ({}, {"tls": False}, {"tls": unverified}):
        with pytest.raises(errors.InvalidOption, match="certificate is not verified"):
            asyncio.run(call(**options))
    for servers in (f"127.0.0.1:{eavesdropper.port}", f"grpc://127.0.0.1:{eavesdropper.port}"):
        with pytest.raises(errors.InvalidOption, match="certificate is not verified"):
            FlightConnection(servers, token=secret)
    with pytest.raises(errors.Unavailable):
        asyncio.run(call(tls=True))
    assert secret.encode() not in eavesdropper.heard and b"authorization" not in eavesdropper.heard


def careless_context() -> Any:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def test_tokens_in_the_clear_need_loopback_and_two_settings(start_broker: StartBroker, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.touch()
    for config, problem in (
        ({}, "Tokens need TLS"),
        ({"security.tokens.plaintext": True, "listen": "0.0.0.0:0"}, "loopback addresses only"),
        ({"security.tokens.plaintext": True, "http.listen": "0.0.0.0:0"}, "loopback addresses only"),
    ):
        broker = start_broker({"security.tokens.file": str(file), **config}, launch_only=True)
        assert broker.wait() != 0
        assert problem in broker.said()


@on_loop
async def test_a_loopback_token_is_sent_without_tls_to_this_machine_alone(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    tokens = TokenFile(tmp_path / "tokens")
    secret = tokens.create("alice")
    broker = start_broker(
        {"security.tokens.file": str(tokens.path), "security.tokens.plaintext": True}, launch_only=True
    )
    address = await asyncio.to_thread(
        eventually,
        lambda: broker.addresses_file.exists() and json.loads(broker.addresses_file.read_text())["grpc"],
        "the broker serves",
    )
    async with bascule.connect(address, token=bascule.LoopbackToken(secret)) as client:
        await client.create_stream("s")
    with pytest.raises(errors.Unauthenticated):
        await bascule.connect(address)
    with pytest.raises(errors.InvalidOption):
        await bascule.connect("192.0.2.1:9292", token=bascule.LoopbackToken(secret))
