"""A client whose rights or certificate were taken away does not go on with the calls that it had opened before."""

from __future__ import annotations

import json
import os
import signal
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.support.api_client import Api, Status, grpc, refused
from tests.support.broker_fixtures import StartBroker
from tests.support.certificates import Authority, Certificate
from tests.support.guarded_broker import MODEL, Guarded, Policed
from tests.support.waiting import eventually

ADMIN = [f"admin, s, {action}" for action in ("CreateStream", "Publish", "Subscribe", "FetchPartitionMetadata")] + [
    "admin, *, FetchMetadata"
]
BOB = ["bob, s, Subscribe", "bob, s, Publish", "bob, s, FetchPartitionMetadata"]
DENIED = "The client is not authorized to call"


@pytest.fixture
def policed(start_broker: StartBroker, tmp_path: Path) -> Policed:
    guarded = Policed(start_broker, tmp_path / "policed", MODEL, ADMIN + BOB, {"flight.enabled": True})
    guarded.admin_api.CreateStream(name="s", subject="s")
    return guarded


def test_a_subscription_ends_and_those_of_others_go_on(policed: Policed) -> None:
    bob, admin = policed.api("bob"), policed.admin_api
    idle, grouped = bob.subscribe("s"), bob.subscribe("s", consumer={"groupId": "g", "consumerId": "c"})
    kept = admin.subscribe("s")
    admin.publish("s", b"0")
    assert idle.next().value == grouped.next().value == kept.next().value == b"0"
    policed.write(ADMIN + BOB)
    policed.reload()  # nothing has changed
    admin.publish("s", b"1")
    assert idle.next().value == kept.next().value == b"1"
    policed.write(ADMIN)
    policed.reload()
    for one in (idle, grouped):
        status, text = one.end()
        assert status is Status.PERMISSION_DENIED
        assert text == f"{DENIED} Subscribe on resource s"
    admin.publish("s", b"2")
    assert kept.next().value == b"2"
    kept.cancel()
    bob.close()


def test_a_publishing_session_ends(policed: Policed) -> None:
    bob, admin = policed.api("bob"), policed.admin_api
    session, kept, unused = bob.publish_async(), admin.publish_async(), bob.publish_async()
    for one in (session, kept):
        one.send("s", b"x")
        assert one.next().ack.offset >= 0
    policed.write(ADMIN)
    policed.reload()
    with pytest.raises(Exception, match=DENIED):
        session.next()
    assert session.call.code() is Status.PERMISSION_DENIED
    unused.send("s", b"forbidden", correlationId="c")
    assert DENIED in unused.next().asyncError.message
    kept.send("s", b"y")
    assert kept.next().ack.offset == 2
    kept.finish()
    bob.close()


def test_a_read_of_a_table_ends(policed: Policed) -> None:
    flight: Any = pytest.importorskip("pyarrow.flight")
    admin = policed.admin_api
    session = admin.publish_async()
    for number in range(3_000):
        session.send("s", bytes(10_000), correlationId=str(number))
    session.take(3_000)
    session.finish()
    address = json.loads(policed.broker.addresses_file.read_text())["flight"]
    own = policed.authority.issue("bob")
    client = flight.connect(
        f"grpc+tls://{address}",
        tls_root_certs=policed.authority.file.read_text(),
        cert_chain=own.cert.read_text(),
        private_key=own.key.read_text(),
    )
    info = client.get_flight_info(flight.FlightDescriptor.for_path("s"))
    ticket = json.loads(info.endpoints[0].ticket.ticket)
    reading = client.do_get(flight.Ticket(json.dumps({**ticket, "batch_rows": 10}).encode()))
    reading.read_chunk()
    policed.write(ADMIN)
    policed.reload()
    with pytest.raises(flight.FlightError, match=DENIED):
        while True:
            reading.read_chunk()
    client.close()


# ── certificates ─────────────────────────────────────────────────────────────────────────────────


def reload(guarded: Guarded, expected: str = "the certificate was read again") -> None:
    said = len(guarded.broker.said())
    os.kill(guarded.broker.pid, signal.SIGHUP)
    eventually(lambda: expected in guarded.broker.said()[said:], expected)


def may_connect(guarded: Guarded, own: Certificate) -> bool:
    api = Api(guarded.broker.address, guarded.authority.credentials(own))
    try:
        return bool(api.FetchMetadata().brokers)
    except grpc.RpcError as error:
        assert error.code() is Status.UNAVAILABLE
        return False
    finally:
        api.close()


class Revoking(Guarded):
    """A broker with authorities and a list of revoked certificates in files that a test can change."""

    def __init__(self, start_broker: StartBroker, directory: Path, **config: Any) -> None:
        directory.mkdir()
        self.crl = directory / "clients.crl"
        self.authorities = directory / "clients.pem"
        super().__init__(
            start_broker,
            directory / "tls",
            {
                "tls.client.auth.enabled": True,
                "tls.client.auth.ca": str(self.authorities),
                "tls.client.crl": str(self.crl),
                **config,
            },
        )

    def _with_files(self, config: dict[str, Any]) -> dict[str, Any]:
        self.authorities.write_bytes(self.authority.file.read_bytes())
        self.authority.revoke(self.crl)
        return config


def test_a_revoked_certificate_ends_its_connections_and_makes_no_new_one(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    guarded = Revoking(start_broker, tmp_path / "revoking")
    admin = guarded.admin_api
    own, other = guarded.authority.issue("bob"), guarded.authority.issue("carol")
    bob, carol = (Api(guarded.broker.address, guarded.authority.credentials(one)) for one in (own, other))
    admin.CreateStream(name="s", subject="s")
    subscription, kept, session = bob.subscribe("s"), carol.subscribe("s"), bob.publish_async()
    session.send("s", b"0")
    assert session.next().ack.offset == 0
    guarded.authority.revoke(guarded.crl, own)
    reload(guarded)
    assert subscription.end() == (Status.PERMISSION_DENIED, "the certificate of the client was revoked")
    with pytest.raises(grpc.RpcError, match="revoked"):
        session.next()
    with refused(Status.UNAVAILABLE):
        bob.FetchMetadata()
    assert not may_connect(guarded, own)
    assert may_connect(guarded, other)
    assert kept.next().value == b"0"
    for one in (bob, carol, admin):
        one.close()


def test_a_revoked_certificate_reads_no_metrics_and_no_tables(start_broker: StartBroker, tmp_path: Path) -> None:
    flight: Any = pytest.importorskip("pyarrow.flight")
    guarded = Revoking(
        start_broker,
        tmp_path / "revoking",
        **{"flight.enabled": True, "http.enabled": True, "http.listen": "127.0.0.1:0"},
    )
    addresses = json.loads(guarded.broker.addresses_file.read_text())
    own = guarded.authority.issue("bob")

    def scrape() -> bytes:
        context = ssl.create_default_context(cafile=str(guarded.authority.file))
        context.load_cert_chain(own.cert, own.key)
        with urllib.request.urlopen(f"https://{addresses['http']}/metrics", context=context, timeout=60) as page:
            return bytes(page.read())

    client = flight.connect(
        f"grpc+tls://{addresses['flight']}",
        tls_root_certs=guarded.authority.file.read_text(),
        cert_chain=own.cert.read_text(),
        private_key=own.key.read_text(),
    )
    assert b"bascule_" in scrape()
    assert list(client.list_flights()) == []
    guarded.authority.revoke(guarded.crl, own)
    reload(guarded)
    with pytest.raises((OSError, urllib.error.URLError)):
        scrape()
    with pytest.raises(flight.FlightUnavailableError):
        list(client.list_flights())
    client.close()
    guarded.admin_api.close()


def test_authorities_are_read_again(start_broker: StartBroker, tmp_path: Path) -> None:
    guarded = Revoking(start_broker, tmp_path / "revoking")
    other = Authority(tmp_path, "another authority")
    old, new = guarded.authority.issue("bob"), other.issue("bob")
    assert (may_connect(guarded, old), may_connect(guarded, new)) == (True, False)
    admin = guarded.admin_api
    admin.CreateStream(name="s", subject="s")
    subscription = admin.subscribe("s")
    both = guarded.authority.file.read_bytes() + other.file.read_bytes()
    guarded.authorities.write_bytes(both)
    lists = guarded.crl.read_bytes()
    other.revoke(guarded.crl)
    guarded.crl.write_bytes(lists + guarded.crl.read_bytes())
    reload(guarded)
    assert subscription.end()[0] is Status.UNAVAILABLE  # and the client connects again
    eventually(lambda: admin.future("FetchMetadata").code() is Status.OK, "the client has connected again")
    assert (may_connect(guarded, old), may_connect(guarded, new)) == (True, True)
    subscription = admin.subscribe("s")
    guarded.authorities.write_bytes(other.file.read_bytes())
    reload(guarded)
    assert subscription.end()[0] is Status.UNAVAILABLE
    with refused(Status.UNAVAILABLE):
        admin.FetchMetadata()
    assert (may_connect(guarded, old), may_connect(guarded, new)) == (False, True)
    admin.close()


def test_files_that_cannot_be_used_change_nothing(start_broker: StartBroker, tmp_path: Path) -> None:
    guarded = Revoking(start_broker, tmp_path / "revoking")
    own = guarded.authority.issue("bob")
    subscription_api = guarded.admin_api
    subscription_api.CreateStream(name="s", subject="s")
    subscription = subscription_api.subscribe("s")
    for file, content in ((guarded.crl, b"no list"), (guarded.authorities, b"no certificate")):
        kept = file.read_bytes()
        file.write_bytes(content)
        reload(guarded, "the certificates were not changed")
        assert may_connect(guarded, own)
        file.write_bytes(kept)
    guarded.crl.unlink()
    reload(guarded, "the certificates were not changed")
    assert may_connect(guarded, own)
    subscription_api.publish("s", b"x")
    assert subscription.next().value == b"x"
    subscription_api.close()


def test_an_expired_list_keeps_clients_out(start_broker: StartBroker, tmp_path: Path) -> None:
    guarded = Revoking(start_broker, tmp_path / "revoking")
    own = guarded.authority.issue("bob")
    assert may_connect(guarded, own)
    guarded.authority.revoke(guarded.crl, days=-1)
    reload(guarded)
    assert not may_connect(guarded, own)
    guarded.authority.revoke(guarded.crl)
    reload(guarded)
    assert may_connect(guarded, own)
    guarded.admin_api.close()
