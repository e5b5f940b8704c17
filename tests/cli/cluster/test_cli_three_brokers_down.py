"""Three brokers with the product's timeouts, one of which is killed: what users are told then is true, and they can go on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import bascule as api
from bascule import errors
from bascule.client.blocking import BlockingClient
from tests.support.api_client import pb
from tests.support.broker_fixtures import unique_name
from tests.support.cluster import PRODUCT_TIMEOUTS, Cluster
from tests.support.nats_server import NatsServer
from tests.support.replicas import everybody_back, new_leader, publish_until_acked, read_committed

pytestmark = pytest.mark.disturbs

CURSORS = 12


@pytest.fixture(scope="module")
def whole_cluster(tmp_path_factory: pytest.TempPathFactory, nats_server: NatsServer) -> Iterator[Cluster]:
    config = {**PRODUCT_TIMEOUTS, "cursors.stream.partitions": 3, "clustering.min.insync.replicas": 2}
    with Cluster(tmp_path_factory.mktemp(unique_name("down")), nats=nats_server, config=config) as found:
        yield found


@pytest.fixture
def cluster(whole_cluster: Cluster) -> Iterator[Cluster]:
    with everybody_back(whole_cluster):
        yield whole_cluster


@pytest.fixture
def client(cluster: Cluster) -> Iterator[BlockingClient]:
    with api.blocking.connect(cluster.addresses, timeout=60) as found:
        yield found


def test_another_broker_leads_after_the_default_timeout(cluster: Cluster) -> None:
    name = unique_name("failover")
    cluster.create_stream(name)
    assert publish_until_acked(cluster, name, b"before") == 0
    old = cluster.leader_of(name)
    cluster.kill(old)
    assert publish_until_acked(cluster, name, b"after") == 1
    assert new_leader(cluster, name, old) != old
    assert read_committed(cluster.api(cluster.leader_of(name)), name, 2) == [b"before", b"after"]


def test_a_cursor_that_is_set_while_a_broker_is_down_is_stored_or_said_to_be_unknown(
    cluster: Cluster, client: BlockingClient
) -> None:
    name = unique_name("cursors")
    client.create_stream(name)
    client.publish_many(name, [b"x"] * CURSORS, ack="all")
    cluster.kill(cluster.leader_of(name))
    stored: list[int] = []
    for number in range(CURSORS):
        try:
            client.set_cursor(f"reader-{number}", name, 0, number)
            stored.append(number)
        except errors.OutcomeUnknown:
            continue
    assert stored, "two of three brokers keep cursors"
    found = {number: client.fetch_cursor(f"reader-{number}", name, 0) for number in stored}
    assert found == {number: number for number in stored}


def test_large_keys_and_many_headers_are_replicated(cluster: Cluster) -> None:
    name = unique_name("large")
    cluster.create_stream(name)
    headers = {f"h{number}": b"v" for number in range(2_000)}
    leader = cluster.leader_of(name)
    assert cluster.api(leader).publish(name, b"x", key=b"k" * 300_000, headers=headers, ackPolicy=pb.ALL).offset == 0
    cluster.kill(leader)
    heir = new_leader(cluster, name, leader)
    reader = cluster.api(heir).subscribe(name)
    (found,) = reader.take(1)
    reader.cancel()
    assert found.key == b"k" * 300_000
    assert headers.items() <= dict(found.headers).items()
