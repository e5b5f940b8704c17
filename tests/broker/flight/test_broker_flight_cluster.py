"""Tables of a cluster: leaders serve them, readers follow leaders, and nothing is shown that is not committed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow.flight as flight
import pytest

from bascule import errors
from bascule.client.arrow.reader import FlightConnection
from bascule.flight.tickets import ReadTicket
from tests.support.api_client import pb
from tests.support.broker_fixtures import unique_name
from tests.support.cluster import Cluster
from tests.support.nats_server import NatsServer
from tests.support.tables import SERVING, Counting, numbers, read_rows
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, nats_server: NatsServer) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("tables"), nats=nats_server, config=SERVING) as made:
        yield made


@pytest.fixture
def tables(cluster: Cluster) -> Iterator[Counting]:
    cluster.revive()
    with Counting(cluster.addresses) as connection:
        yield connection


def test_endpoints_name_the_leaders_and_others_send_readers_there(cluster: Cluster, tables: FlightConnection) -> None:
    name = unique_name("spread")
    cluster.create_stream(name, partitions=3)
    tables.put(name, numbers(30))

    def locations() -> list[str]:
        leaders = [cluster.leader_of(name, number) for number in range(3)]
        return [f"grpc://{cluster.brokers[leader].flight_address}" for leader in leaders]

    def as_told() -> dict[int, Any] | None:
        """Servers that have come back serve on other ports, of which the rest hears in a moment."""
        found = tables.offsets([name])[name]["partitions"]
        return found if [found[number]["location"] for number in range(3)] == locations() else None

    partitions = eventually(as_told, "the leaders of all partitions are told of")
    assert [found["leader"] for found in partitions.values()] == [
        cluster.leader_of(name, number) for number in range(3)
    ]
    assert partitions[0]["high_watermark"] == 29
    follower = cluster.brokers[cluster.followers_of(name)[0]]
    with flight.FlightClient(f"grpc://{follower.flight_address}") as client:

        def endpoints() -> list[str]:
            info = client.get_flight_info(flight.FlightDescriptor.for_path(name))
            return [location.uri.decode() for one in info.endpoints for location in one.locations]

        eventually(lambda: endpoints() == locations(), "a follower tells of the leaders")
        ticket = flight.Ticket(ReadTicket(stream=name, partition=0).encode())
        with pytest.raises(flight.FlightUnavailableError, match="NOT_LEADER: ") as refused:
            client.do_get(ticket).read_all()
        assert partitions[0]["location"].encode() in refused.value.extra_info


def test_a_read_goes_on_at_the_next_leader(cluster: Cluster, tables: Counting) -> None:
    """The leader is killed in the middle of a read, and the one behind it hands over."""
    name = unique_name("moving")
    cluster.create_stream(name)
    for _ in range(6):
        tables.put(name, numbers(5_000, size=3_000))
    found: list[int] = []
    for batch in tables.read(name, 0, batch_rows=500):
        found += batch["offset"].to_pylist()
        if found[-1] == 2_999:
            cluster.kill(cluster.leader_of(name))
        if found[-1] == 15_999:
            cluster.revive()
            cluster.wait_until_in_sync(name)
            cluster.kill(cluster.leader_of(name))
    assert found == list(range(30_000))
    assert len({location for location, _ in tables.asked}) > 1, tables.asked
    assert tables.asked[-1][1], "all rows came from one server"
    cluster.revive()


def test_what_is_not_committed_is_not_in_the_table(cluster: Cluster, tables: FlightConnection) -> None:
    name = unique_name("uncommitted")
    cluster.create_stream(name, minIsr=3)
    tables.put(name, numbers(10))
    leader = cluster.leader_of(name)
    for follower in cluster.followers_of(name):
        cluster.pause(follower)
    try:
        cluster.api(leader).publish(name, b"written, not committed", ackPolicy=pb.LEADER)
        with FlightConnection(f"grpc://{cluster.brokers[leader].flight_address}") as of_leader:
            ends = eventually(
                lambda: found if (found := of_leader.offsets([name])[name]["partitions"][0])["log_end"] == 11 else None,
                "the message is in the leader's log",
            )
            assert ends["high_watermark"] == 9
            assert len(read_rows(of_leader, name, 0)) == 10
            with pytest.raises(errors.OffsetOutOfRange):
                read_rows(of_leader, name, 0, 0, 11)
    finally:
        for follower in list(cluster.paused):
            cluster.resume(follower)


def test_a_drained_server_hands_its_readers_over(cluster: Cluster, tables: Counting) -> None:
    name = unique_name("drained")
    cluster.create_stream(name)
    for _ in range(6):
        tables.put(name, numbers(5_000, size=3_000))
    leader = cluster.leader_of(name)
    found: list[int] = []
    stopping = threading.Thread(target=cluster.stop, args=(leader,))
    for batch in tables.read(name, 0, batch_rows=200):
        found += batch["offset"].to_pylist()
        if found[-1] == 1_999:
            stopping.start()
            stopping.join()
    assert found == list(range(30_000))
    assert len({location for location, _ in tables.asked}) > 1, tables.asked
    cluster.revive()
