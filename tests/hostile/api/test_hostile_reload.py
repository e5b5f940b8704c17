"""A client whose rights were taken away does not go on with the calls that it had opened before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.api_client import Status
from tests.support.broker_fixtures import StartBroker
from tests.support.guarded_broker import MODEL, Policed

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
    import json

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
