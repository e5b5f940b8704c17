"""What the Spark source asks of a real broker, without Spark: streams, times, cursors, records, also behind TLS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bascule import blocking, errors
from bascule.spark.options.reading import SourceConnection
from bascule.spark.read.cluster import FlightCluster
from bascule.spark.read.state import retention_text
from tests.support.broker_fixtures import StartBroker
from tests.support.broker_process import BrokerProcess
from tests.support.guarded_broker import Guarded
from tests.support.tables import SERVING

CURSORS = {"cursors.stream.partitions": 1, "cursors.stream.auto.pause.time": 0}


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerProcess:
    return start_broker({**SERVING, **CURSORS})


@pytest.fixture
def cluster(broker: BrokerProcess) -> Iterator[FlightCluster]:
    found = FlightCluster(SourceConnection(servers=broker.address))
    yield found
    found.close()


def test_a_stream_is_told_with_all_that_a_plan_needs(broker: BrokerProcess, cluster: FlightCluster) -> None:
    with blocking.connect(broker.address) as client:
        client.create_stream("orders", "shop.orders", partitions=2, retention_max_messages=50, retention_max_age=3600)
        client.publish_many("orders", [b"x" * 100] * 10, partition=1, ack="all")
    assert cluster.subjects()["orders"] == "shop.orders"
    found = cluster.streams(["orders", "no-such-stream"])
    assert list(found) == ["orders"], "what does not exist is left out"
    assert cluster.streams(["no-such-stream"]) == cluster.streams([]) == {}
    orders = found["orders"]
    assert (orders.subject, retention_text(orders.retention)) == ("shop.orders", "1h and 50 messages")
    empty, filled = orders.partitions[0], orders.partitions[1]
    assert (empty.log_start_offset, empty.end_offset) == (0, 0)
    assert not empty.bytes_per_offset
    assert (filled.log_start_offset, filled.end_offset, filled.log_end_offset) == (0, 10, 10)
    assert 100 < filled.bytes_per_offset < 200


def test_times_and_cursors_are_found(broker: BrokerProcess, cluster: FlightCluster) -> None:
    with blocking.connect(broker.address) as client:
        client.create_stream("orders", "shop.orders", partitions=2)
        client.publish_many("orders", [b"x"] * 3, ack="all", partition=0)
    last_ns = cluster.streams(["orders"])["orders"].partitions[0].last_timestamp_ns
    assert last_ns is not None
    assert cluster.offsets_at({"orders": {0: 0, 1: 0}})["orders"] == {0: 0, 1: None}
    assert cluster.offsets_at({"orders": {0: last_ns + 1, 1: 0}})["orders"][0] is None, "all records are older"
    assert cluster.fetch_cursor("job", "orders", 0) is None
    cluster.set_cursor("job", "orders", 0, 2)
    assert cluster.fetch_cursor("job", "orders", 0) == 2


def test_records_are_read_of_the_stream_that_was_meant(broker: BrokerProcess, cluster: FlightCluster) -> None:
    with blocking.connect(broker.address) as client:
        client.create_stream("orders", "shop.orders")
        client.publish_many("orders", [b"x"] * 3, ack="all")
        former = cluster.streams(["orders"])["orders"].id
        batches = list(cluster.read("orders", 0, 1, 3, stream_id=former, columns=("offset",)))
        assert [row["offset"] for batch in batches for row in batch.to_pylist()] == [1, 2]
        client.delete_stream("orders")
        client.create_stream("orders", "shop.orders")
        client.publish_many("orders", [b"x"] * 3, ack="all")
    with pytest.raises(errors.StreamRecreated):
        list(cluster.read("orders", 0, 1, 3, stream_id=former, columns=("offset",)))


def test_everything_goes_through_tls(start_broker: StartBroker, tmp_path: Path) -> None:
    guarded = Guarded(start_broker, tmp_path / "tls", {**SERVING, **CURSORS})
    guarded.admin_api.CreateStream(name="orders", subject="shop.orders")
    guarded.admin_api.publish("orders", b"x")
    cluster = FlightCluster(SourceConnection(servers=guarded.broker.address, tls_ca=str(guarded.authority.file)))
    try:
        assert cluster.streams(["orders"])["orders"].partitions[0].log_end_offset == 1
        cluster.set_cursor("job", "orders", 0, 0)
        assert cluster.fetch_cursor("job", "orders", 0) == 0
        (batch,) = cluster.read("orders", 0, 0, 1, stream_id=None, columns=("value",))
        assert batch.to_pylist() == [{"value": b"x"}]
    finally:
        cluster.close()
