"""The client without asyncio: the same calls, the same errors, from any thread."""

from __future__ import annotations

import threading
import time

import pytest

import bascule
from bascule import errors
from tests.support.broker_fixtures import StartBroker
from tests.support.broker_process import BrokerProcess


def test_streams_publishing_and_reading(broker: BrokerProcess, name: str) -> None:
    with bascule.blocking.connect(broker.address) as client:
        client.create_stream(name, partitions=2)
        ack = client.publish(name, b"one", key=b"k", partition=0)
        assert (ack.partition, ack.offset) == (0, 0)
        client.publish_many(name, [b"two", b"three"])
        messages = list(client.subscribe(name, start="earliest", stop="latest"))
        assert [message.value for message in messages] == [b"one", b"two", b"three"]
        batches = client.subscribe(name, start="earliest", stop="latest").batches()
        assert [value for batch in batches for value in batch.values()] == [b"one", b"two", b"three"]
        assert client.fetch_metadata([name]).streams[name].name == name
        assert client.fetch_partition_metadata(name).newest_offset == 2
        client.set_cursor("c", name, 0, 7)
        assert client.fetch_cursor("c", name) == 7
        client.set_readonly(name, [1])
        client.pause_stream(name)
        client.delete_stream(name)
        with pytest.raises(errors.StreamNotFound):
            client.publish(name, b"")
    assert client.is_closed
    client.close()
    with pytest.raises(errors.ClientClosed):
        client.publish(name, b"")


def test_a_wrong_address_is_told_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    with pytest.raises(bascule.Unavailable, match=r"127\.0\.0\.1:1"):
        bascule.blocking.connect("127.0.0.1:1")
    # Threads of tests before this one may end meanwhile.
    assert set(threading.enumerate()) <= before


def test_a_publisher(broker: BrokerProcess, name: str) -> None:
    with bascule.blocking.connect(broker.address) as client:
        client.create_stream(name)
        with client.publisher(name) as publisher:
            future = publisher.send(b"a", headers={"h": b"1"})
            assert future.result(60).offset == 0
            publisher.send_all([b"b", (b"key", b"c")])
            publisher.flush()
        found = list(client.subscribe(name, start="earliest", stop="latest"))
        assert [(message.key, message.value) for message in found] == [(None, b"a"), (None, b"b"), (b"key", b"c")]
        client.set_readonly(name)
        publisher = client.publisher(name)
        with pytest.raises(errors.PartitionReadonly):
            publisher.send(b"x").result(60)
        with pytest.raises(errors.PartitionReadonly):
            publisher.flush()
        publisher.close()


def test_waiting_for_a_message_for_a_while(broker: BrokerProcess, name: str) -> None:
    with bascule.blocking.connect(broker.address) as client:
        client.create_stream(name)
        with client.subscribe(name) as subscription:
            assert subscription.next(timeout=0.05) is None
            client.publish(name, b"x")
            message = subscription.next(timeout=60)
            assert message is not None
            assert message.value == b"x"
        with pytest.raises(errors.ClientClosed):
            next(subscription)


def test_closing_from_another_thread_wakes_who_waits(broker: BrokerProcess, name: str) -> None:
    client = bascule.blocking.connect(broker.address)
    client.create_stream(name)
    subscription = client.subscribe(name).open()
    heard: list[BaseException] = []

    def read() -> None:
        try:
            next(subscription)
        except BaseException as error:
            heard.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    time.sleep(0.1)
    client.close()
    thread.join(60)
    assert [type(error) for error in heard] == [errors.ClientClosed]


@pytest.mark.disturbs
def test_a_subscription_lives_through_a_restart(start_broker: StartBroker, name: str) -> None:
    broker = start_broker()
    broker.config["listen"] = broker.address
    with bascule.blocking.connect(broker.address, timeout=60) as client:
        client.create_stream(name)
        client.publish(name, b"0", ack="all")
        with client.subscribe(name, start="earliest") as subscription:
            assert next(subscription).offset == 0
            broker.restart()
            client.publish(name, b"1")
            assert next(subscription).offset == 1


def test_a_consumer(broker: BrokerProcess, name: str) -> None:
    with bascule.blocking.connect(broker.address) as client:
        client.create_stream(name)
        client.publish_many(name, [b"a", b"b", b"c"])
        with client.consumer(name, [name], auto_checkpoint=None) as consumer:
            assert next(consumer).value == b"a"
            second = next(consumer)
            consumer.checkpoint(second)
            assert [tuple(place) for place in consumer.assignments] == [(name, 0)]
        with client.consumer(name, name) as consumer:
            assert next(consumer).value == b"c"
