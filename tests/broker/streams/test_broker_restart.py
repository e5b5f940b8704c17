"""What a broker still knows after it was stopped, and after it was killed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.api_client import Api, Status, pb, refused
from tests.support.broker_fixtures import StartBroker
from tests.support.broker_process import BrokerProcess
from tests.support.nats_client import NatsClient
from tests.support.waiting import PATIENCE_SECONDS


def come_back(broker: BrokerProcess, how: str) -> Api:
    if how == "killed":
        broker.kill()
    else:
        assert broker.stop() == 0
    broker.start()
    return broker.api()


def everything(api: Api, name: str, partition: int = 0) -> list[Any]:
    return [pb.Message.FromString(one.SerializeToString()) for one in api.read(name, partition)]


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_streams_and_messages_are_as_they_were(start_broker: StartBroker, how: str) -> None:
    broker = start_broker()
    api = broker.api()
    api.CreateStream(name="s", subject="a.subject", partitions=2)
    api.CreateStream(name="gone", subject="gone")
    with NatsClient(broker.nats_url) as nats:
        nats.publish("a.subject", b"plain", reply="r", headers=b"H: 1\r\n")
        subscription = api.subscribe("s")
        subscription.take(1)
    for number in range(20):
        api.publish("s", b"%d" % number, key=b"k", headers={"h": b"1"}, partition=number % 2)
    api.DeleteStream(name="gone")
    before = [everything(api, "s", partition) for partition in range(2)]
    metadata = api.stream("s")
    api.close()
    api = come_back(broker, how)
    assert [everything(api, "s", partition) for partition in range(2)] == before
    after = api.stream("s")
    assert (after.subject, after.creationTimestamp) == (metadata.subject, metadata.creationTimestamp)
    assert api.stream("gone").error == pb.StreamMetadata.UNKNOWN_STREAM
    assert api.partition("s").highWatermark == len(before[0]) - 1
    assert api.publish("s", b"more").offset == len(before[0])
    api.close()


def test_plain_nats_messages_flow_again_after_a_restart(start_broker: StartBroker) -> None:
    broker = start_broker()
    api = broker.api()
    api.CreateStream(name="s", subject="flow", partitions=2)
    for round_number in range(3):
        with NatsClient(broker.nats_url) as nats:
            nats.publish("flow.1", b"%d" % round_number)
        subscription = api.subscribe("s", 1, startPosition=pb.OFFSET, startOffset=round_number)
        assert subscription.next().value == b"%d" % round_number
        api.close()
        api = come_back(broker, "killed")
    api.close()


def test_a_subscriber_that_comes_again_misses_nothing(start_broker: StartBroker) -> None:
    """As Go and gufo do it: on UNAVAILABLE, subscribe again from the last offset + 1."""
    broker = start_broker()
    api = broker.api()
    api.CreateStream(name="s", subject="s")
    seen: list[bytes] = []
    for round_number in range(3):
        subscription = api.subscribe("s", startPosition=pb.OFFSET, startOffset=len(seen))
        for number in range(5):
            api.publish("s", b"%d/%d" % (round_number, number))
        seen += [message.value for message in subscription.take(3)]
        broker.kill()
        seen += [message.value for message in subscription.rest()]
        assert subscription.end()[0] is Status.UNAVAILABLE
        broker.start()
        api.close()
        api = broker.api()
    assert [message.value for message in api.read("s")] == [b"%d/%d" % (n // 5, n % 5) for n in range(15)]
    assert seen == [b"%d/%d" % (n // 5, n % 5) for n in range(len(seen))]
    api.close()


def test_the_same_channel_works_again_when_the_broker_is_back_on_its_port(start_broker: StartBroker) -> None:
    broker = start_broker()
    broker.config["listen"] = broker.address  # free again once it is dead, and ours for the moment
    api = broker.api()
    api.CreateStream(name="s", subject="s")
    broker.kill()
    with refused(Status.UNAVAILABLE):
        api.publish("s", b"x")
    broker.start()
    call = api.channel.unary_unary(
        "/proto.API/Publish",
        request_serializer=pb.PublishRequest.SerializeToString,
        response_deserializer=pb.PublishResponse.FromString,
    )
    answer = call(pb.PublishRequest(stream="s", value=b"x"), timeout=PATIENCE_SECONDS, wait_for_ready=True)
    assert answer.ack.offset == 0
    api.close()


def test_settings_of_a_stream_stay_when_the_servers_defaults_change(start_broker: StartBroker) -> None:
    broker = start_broker({"streams.concurrency.control": True})
    api = broker.api()
    api.CreateStream(name="s", subject="s")
    api.close()
    broker.kill()
    broker.config["streams.concurrency.control"] = False
    broker.start()
    api = broker.api()
    with refused(Status.UNKNOWN, "incorrect expected offset"):
        api.publish("s", b"x", expectedOffset=5)
    api.close()


def test_a_hundred_streams_come_back(start_broker: StartBroker) -> None:
    broker = start_broker()
    api = broker.api()
    for number in range(100):
        api.CreateStream(name=f"s{number}", subject=f"s{number}")
    for number in range(0, 100, 10):
        api.publish(f"s{number}", b"x")
    api.close()
    api = come_back(broker, "killed")
    assert len(api.FetchMetadata().streamMetadata) == 100
    for number in range(0, 100, 5):
        assert api.publish(f"s{number}", b"y").offset == (1 if number % 10 == 0 else 0)
    api.close()
