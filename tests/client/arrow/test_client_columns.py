"""Messages in columns: what is stored is what was given, in order, whatever happens to connections and brokers."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterator
from itertools import accumulate

import pytest

from bascule import blocking
from bascule.client.arrow.columns import ColumnPublisher, MessageColumns, Producer, column_publisher
from bascule.client.blocking import BlockingClient
from bascule.client.publish.unary import LARGE_BYTES
from bascule.errors import OutOfSequence, ProducerFenced, RecordTooLarge, StreamNotFound, Unavailable
from tests.support.broker_fixtures import StartBroker
from tests.support.broker_process import BrokerProcess


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[BlockingClient]:
    with blocking.connect(broker.address) as found:
        yield found


@pytest.fixture
def publisher(client: BlockingClient) -> Iterator[ColumnPublisher]:
    found = column_publisher(client, window=64, timeout=60)
    yield found
    found.close()


def ends(texts: list[bytes]) -> array[int]:
    return array("q", accumulate(map(len, texts)))


def columns(
    values: list[bytes],
    keys: list[bytes] | None = None,
    headers: list[dict[str, bytes]] | None = None,
    producer: Producer | None = None,
) -> MessageColumns:
    entries = None
    if headers is not None:
        names = [name.encode() for row in headers for name in row]
        contents = [content for row in headers for content in row.values()]
        rows = array("q", accumulate(map(len, headers)))
        entries = rows, b"".join(names), ends(names), b"".join(contents), ends(contents)
    return MessageColumns(
        b"".join(values),
        ends(values),
        None if keys is None else b"".join(keys),
        None if keys is None else ends(keys),
        entries,
        producer=producer,
    )


def test_columns_are_stored_in_their_order(client: BlockingClient, publisher: ColumnPublisher, name: str) -> None:
    client.create_stream(name, partitions=2)
    values = [b"%d" % number for number in range(1000)]
    offsets = publisher.publish(name, 1, columns(values, [b"k"] * 1000, [{"h": value} for value in values])).result()
    assert offsets.tolist() == [*range(1000)]
    found = list(client.subscribe(name, partition=1, start="earliest", stop="latest"))
    assert [(message.key, message.value, message.headers["h"]) for message in found] == [
        (b"k", value, value) for value in values
    ]


def test_large_messages_travel_alone_keep_their_place_and_say_who_sent_them(
    start_broker: StartBroker, name: str
) -> None:
    broker = start_broker({"clustering.replication.max.bytes": 4 << 20}, embedded=True)
    values = [b"a", b"x" * (LARGE_BYTES + 1), b"b", b"c", b"y" * (LARGE_BYTES + 1)]
    headers = [{"n": b"%d" % number} for number in range(5)]
    given = columns(values, [b"k%d" % number for number in range(5)], headers, Producer(b"me", 3, 0))
    with blocking.connect(broker.address) as client:
        client.create_stream(name)
        publisher = column_publisher(client, window=64, timeout=60)
        assert publisher.publish(name, 0, given).result().tolist() == [0, 1, 2, 3, 4]
        found = list(client.subscribe(name, start="earliest", stop="latest"))
    assert [message.value for message in found] == values
    assert [(message.key, message.headers["n"]) for message in found] == [(b"k%d" % n, b"%d" % n) for n in range(5)]
    assert [message.headers["bascule-sequence"] for message in found] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_message_that_is_too_large_is_refused_for_good(
    client: BlockingClient, publisher: ColumnPublisher, name: str
) -> None:
    client.create_stream(name)
    with pytest.raises(RecordTooLarge):
        publisher.publish(name, 0, columns([b"a", b"x" * (LARGE_BYTES + 1)])).result(timeout=60)


def test_subjects_get_the_same_messages(client: BlockingClient, publisher: ColumnPublisher, name: str) -> None:
    client.create_stream(name, f"s.{name}.*")
    given = columns([b"a", b"b"], [b"k", b"l"], [{"h": b"1"}, {}], Producer(b"me", 3, 0))
    assert publisher.publish_to_subject(f"s.{name}.x", given).result().tolist() == [0, 1]
    found = list(client.subscribe(name, start="earliest", stop="latest"))
    assert [(m.key, m.value, m.headers.get("h"), m.subject) for m in found] == [
        (b"k", b"a", b"1", f"s.{name}.x"),
        (b"l", b"b", None, f"s.{name}.x"),
    ]
    assert [m.headers["bascule-sequence"] for m in found] == [b"0", b"1"]
    assert {(m.headers["bascule-producer"], m.headers["bascule-epoch"]) for m in found} == {(b"me", b"3")}


def test_a_stream_that_is_not_there_is_said_at_once(publisher: ColumnPublisher, name: str) -> None:
    with pytest.raises(StreamNotFound):
        publisher.publish(name, 0, columns([b"a"])).result(timeout=60)


@pytest.mark.parametrize("producer", [None, Producer(b"me", 1, 0)], ids=["at least once", "exactly once"])
def test_what_a_dead_broker_did_not_answer_is_sent_again(
    start_broker: StartBroker, name: str, producer: Producer | None
) -> None:
    """Everything is there, some of it perhaps twice; with numbers once, and in order."""
    broker = start_broker({"listen": "127.0.0.1:0"})
    broker.config["listen"] = broker.address  # it comes back where it was
    with blocking.connect(broker.address) as client:
        client.create_stream(name)
        publisher = column_publisher(client, window=16, timeout=60)
        values = [b"%d" % number for number in range(20_000)]
        future = publisher.publish(name, 0, columns(values, producer=producer))
        restart = threading.Timer(0.05, broker.restart)
        restart.start()
        offsets = future.result()
        restart.join()
        found = [message.value for message in client.subscribe(name, start="earliest", stop="latest")]
    assert set(found) == set(values)
    if producer is not None:
        assert found == values
        assert offsets.tolist() == [*range(20_000)]


def test_numbered_columns_that_come_again_are_not_stored_again(
    client: BlockingClient, publisher: ColumnPublisher, name: str
) -> None:
    client.create_stream(name)
    first, second = (
        columns([b"a", b"b"], producer=Producer(b"me", 1, 0)),
        columns([b"c"], producer=Producer(b"me", 1, 2)),
    )
    for given in (first, first, second, first, second):
        publisher.publish(name, 0, given).result()
    assert publisher.publish(name, 0, first).result().tolist() == [0, 1], "where the originals are"
    assert [message.value for message in client.subscribe(name, start="earliest", stop="latest")] == [b"a", b"b", b"c"]
    with pytest.raises(OutOfSequence):
        publisher.publish(name, 0, columns([b"x"], producer=Producer(b"me", 1, 9))).result(timeout=60)
    publisher.publish(name, 0, columns([b"d"], producer=Producer(b"me", 2, 0))).result()
    with pytest.raises(ProducerFenced):
        publisher.publish(name, 0, second).result(timeout=60)


@pytest.mark.disturbs
def test_without_brokers_it_gives_up_in_time(start_broker: StartBroker, name: str) -> None:
    broker = start_broker()
    with blocking.connect(broker.address) as client:
        client.create_stream(name)
        publisher = column_publisher(client, window=16, timeout=1)
        broker.kill()
        with pytest.raises(Unavailable):
            publisher.publish(name, 0, columns([b"a"])).result(timeout=60)
