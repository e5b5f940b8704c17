"""Health, TLS, client certificates and who may do what."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support import envelopes
from tests.support.api_client import Api, Health, Status, pb, refused
from tests.support.broker_fixtures import StartBroker, unique_name
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import Authority
from tests.support.guarded_broker import MODEL, Guarded
from tests.support.nats_client import NatsClient
from tests.support.waiting import eventually

NOT_AUTHORIZED: Final = "The client is not authorized to call"


def test_health_is_serving(api: Api) -> None:
    assert Health(api).check("proto.API") == Health.SERVING
    assert Health(api).check("") == Health.SERVING
    with refused(Status.NOT_FOUND):
        Health(api).check("another.Service")


def test_health_can_be_watched(api: Api) -> None:
    call = api.channel.unary_stream("/grpc.health.v1.Health/Watch")(b"\x0a\x09proto.API", timeout=60)
    assert next(call) == b"\x08\x01"
    call.cancel()


def test_services_can_be_listed_by_reflection(broker: BrokerProcess) -> None:
    """`list_services` of grpc.reflection.v1: field 7 of the request, names in the answer."""
    api = broker.api()
    for version in ("v1", "v1alpha"):
        method = api.channel.stream_stream(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo")
        call = method(iter([b"\x3a\x00"]), timeout=60)
        answer = next(call)
        assert b"proto.API" in answer
        assert b"grpc.health.v1.Health" in answer
    api.close()


# ── TLS ──────────────────────────────────────────────────────────────────────────────────────────


def test_tls_serves_who_trusts_the_certificate_and_nobody_in_the_clear(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    guarded = Guarded(start_broker, tmp_path / "tls", {})
    without_own = Api(guarded.broker.address, guarded.authority.credentials())
    without_own.CreateStream(name="s", subject="s")
    assert without_own.publish("s", b"x").offset == 0
    assert [message.value for message in without_own.read("s")] == [b"x"]
    plain, stranger = guarded.broker.api(), Authority(tmp_path, "stranger")
    with refused(Status.UNAVAILABLE):
        plain.FetchMetadata()
    distrusting = Api(guarded.broker.address, stranger.credentials())
    with refused(Status.UNAVAILABLE):
        distrusting.FetchMetadata()
    assert without_own.publish("s", b"y").offset == 1
    for one in (plain, distrusting, without_own):
        one.close()


def test_tls_carries_bulk(start_broker: StartBroker, tmp_path: Path) -> None:
    api = Guarded(start_broker, tmp_path / "tls", {}).admin_api
    api.CreateStream(name="s", subject="s")
    session = api.publish_async()
    for number in range(2000):
        session.send("s", b"%d" % number + b"." * 500, correlationId=str(number))
    assert [answer.ack.offset for answer in session.take(2000)] == list(range(2000))
    session.finish()
    assert len(api.read("s")) == 2000
    api.close()


def test_with_required_client_certificates_strangers_stay_outside(start_broker: StartBroker, tmp_path: Path) -> None:
    config = {"tls.client.auth.enabled": True, "tls.client.auth.ca": "the authority"}
    guarded = Guarded(start_broker, tmp_path / "tls", config)
    assert guarded.admin_api.FetchMetadata().brokers
    without = Api(guarded.broker.address, guarded.authority.credentials())
    with refused(Status.UNAVAILABLE):
        without.FetchMetadata()
    foreign = Authority(tmp_path, "stranger").issue("admin")
    forged = Api(guarded.broker.address, guarded.authority.credentials(foreign))
    with refused(Status.UNAVAILABLE):
        forged.FetchMetadata()
    assert guarded.admin_api.FetchMetadata().brokers
    for one in (without, forged):
        one.close()


def test_garbage_on_the_tls_port_is_shaken_off(start_broker: StartBroker, tmp_path: Path) -> None:
    guarded = Guarded(start_broker, tmp_path / "tls", {})
    host, _, port = guarded.broker.address.rpartition(":")
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + bytes(1000), b""):
        with socket.create_connection((host, int(port))) as one:
            one.sendall(garbage)
    assert guarded.admin_api.FetchMetadata().brokers


# ── who may do what ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def policed(start_broker: StartBroker, tmp_path: Path) -> Iterator[tuple[Guarded, Path]]:
    """Everything is granted to `admin` on the stream `s`, nothing to anybody else."""
    model, policy = tmp_path / "model.conf", tmp_path / "policy.csv"
    model.write_text(MODEL)
    actions = "CreateStream DeleteStream PauseStream SetStreamReadonly Subscribe FetchPartitionMetadata Publish"
    lines = [f"p, admin, s, {action}" for action in (actions + " SetCursor FetchCursor").split()]
    lines += ["p, admin, *, FetchMetadata", "p, admin, a.subject, PublishToSubject", "p, admin, __cursors, Publish"]
    policy.write_text("\n".join(lines) + "\n")
    config = {
        "tls.client.auth.enabled": True,
        "tls.client.auth.ca": "the authority",
        "tls.client.authz.enabled": True,
        "tls.client.authz.model": str(model),
        "tls.client.authz.policy": str(policy),
        "cursors.stream.partitions": 1,
    }
    yield Guarded(start_broker, tmp_path / "tls", config), policy


CALLS: Final[dict[str, Callable[[Api], Any]]] = {
    "CreateStream": lambda api: api.CreateStream(name="s", subject="subject.s"),
    "FetchMetadata": lambda api: api.FetchMetadata(),
    "FetchPartitionMetadata": lambda api: api.FetchPartitionMetadata(stream="s", partition=0),
    "Publish": lambda api: api.publish("s", b"x"),
    "PublishToSubject": lambda api: api.PublishToSubject(subject="a.subject", value=b"x", timeout=None),
    "Subscribe": lambda api: api.subscribe("s").cancel(),
    "SetCursor": lambda api: api.SetCursor(stream="s", partition=0, cursorId="c", offset=1),
    "FetchCursor": lambda api: api.FetchCursor(stream="s", partition=0, cursorId="c"),
    "SetStreamReadonly": lambda api: api.SetStreamReadonly(name="s", readonly=False),
    "PauseStream": lambda api: api.PauseStream(name="s"),
    "DeleteStream": lambda api: api.DeleteStream(name="s"),
}


def test_who_is_granted_an_action_may_do_it_and_nobody_else(policed: tuple[Guarded, Path]) -> None:
    guarded, _ = policed
    stranger = guarded.api("stranger")
    for action, call in CALLS.items():
        with refused(Status.PERMISSION_DENIED, f"{NOT_AUTHORIZED} {action} on resource "):
            call(stranger)
        call(guarded.admin_api)
    stranger.close()


def test_a_grant_is_for_one_stream(policed: tuple[Guarded, Path]) -> None:
    guarded, _ = policed
    with refused(Status.PERMISSION_DENIED, f"{NOT_AUTHORIZED} CreateStream on resource another"):
        guarded.admin_api.CreateStream(name="another", subject="x")
    with refused(Status.PERMISSION_DENIED, f"{NOT_AUTHORIZED} PublishToSubject on resource another.subject"):
        guarded.admin_api.PublishToSubject(subject="another.subject", value=b"x", timeout=None)


def test_a_session_is_told_per_message_and_nothing_is_published(policed: tuple[Guarded, Path]) -> None:
    guarded, _ = policed
    guarded.admin_api.CreateStream(name="s", subject="subject.s")
    stranger = guarded.api("stranger")
    with NatsClient(guarded.broker.nats_url) as nats:
        nats.subscribe("subject.s")
        session = stranger.publish_async()
        for number in range(3):
            session.send("s", b"forbidden", correlationId=str(number))
            answer = session.next()
            assert answer.correlationId == str(number)
            assert answer.asyncError.code == pb.PublishAsyncError.PERMISSION_DENIED
            assert NOT_AUTHORIZED in answer.asyncError.message
        session.finish()
        with refused(Status.PERMISSION_DENIED):
            stranger.publish("s", b"forbidden")
        guarded.admin_api.publish("s", b"allowed")
        seen = pb.Message.FromString(envelopes.unwrap(nats.next().payload, envelopes.PUBLISH))
        assert seen.value == b"allowed"
        assert nats.pending() == []
    assert guarded.admin_api.partition("s").newestOffset == 0
    stranger.close()


def test_groups_are_guarded_too(policed: tuple[Guarded, Path]) -> None:
    guarded, _ = policed
    guarded.admin_api.CreateStream(name="s", subject="subject.s")
    stranger = guarded.api("stranger")
    with refused(Status.PERMISSION_DENIED, NOT_AUTHORIZED):
        stranger.JoinConsumerGroup(groupId=unique_name("g"), consumerId="c", streams=["s"])
    with refused(Status.PERMISSION_DENIED, NOT_AUTHORIZED):
        stranger.LeaveConsumerGroup(groupId="g", consumerId="c")
    stranger.close()


def test_a_certificate_without_a_name_may_do_nothing(policed: tuple[Guarded, Path]) -> None:
    guarded, _ = policed
    nameless = guarded.api(None)
    with refused((Status.PERMISSION_DENIED, Status.UNAUTHENTICATED)):
        nameless.FetchMetadata()
    nameless.close()


def test_health_needs_no_grant(policed: tuple[Guarded, Path]) -> None:
    guarded, _ = policed
    stranger = guarded.api("stranger")
    assert Health(stranger).check() == Health.SERVING
    stranger.close()


def test_sighup_reads_the_policy_again_and_a_broken_one_changes_nothing(policed: tuple[Guarded, Path]) -> None:
    guarded, policy = policed
    newcomer = guarded.api("newcomer")

    def may_ask() -> bool:
        return bool(newcomer.future("FetchMetadata").code() is Status.OK)

    assert not may_ask()
    policy.write_text(policy.read_text() + "p, newcomer, *, FetchMetadata\n")
    os.kill(guarded.broker.pid, signal.SIGHUP)
    eventually(may_ask, "the newcomer may ask")
    said = len(guarded.broker.said())
    policy.write_text("p, newcomer\n\x00\xff this is no policy,,,,\n")
    os.kill(guarded.broker.pid, signal.SIGHUP)
    eventually(lambda: len(guarded.broker.said()) > said, "the broker said something about the policy")
    assert may_ask()
    assert guarded.admin_api.FetchMetadata().brokers
    policy.unlink()
    os.kill(guarded.broker.pid, signal.SIGHUP)
    assert guarded.admin_api.FetchMetadata().brokers
    newcomer.close()


def test_curl_is_told_politely_or_not_at_all(broker: BrokerProcess, api: Api) -> None:
    """Something that speaks HTTP/1.1 may knock at the port; nobody else notices."""
    host, _, port = broker.address.rpartition(":")
    for garbage in (
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        bytes(100),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100,
    ):
        with socket.create_connection((host, int(port)), timeout=60) as one:
            one.sendall(garbage)
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_WR)  # unless it has hung up already
            with contextlib.suppress(ConnectionError):
                while one.recv(65536):
                    pass
    assert api.FetchMetadata().brokers
