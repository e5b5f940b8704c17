"""What the Java and Go clients do, call by call, as their own tests do it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.api_client import Api, Status, pb, refused
from tests.support.broker_fixtures import MakeStream, Stream, unique_name
from tests.support.broker_process import BrokerProcess

UNSET_GO_TIME = -6_795_364_578_871_345_152
"""`time.Time{}.UnixNano()`"""


# ── java-liftbridge ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"partitions": 3},
        {"group": "a-group"},
        {"subject": "another.subject"},
        {
            "retentionMaxBytes": 1 << 20,
            "retentionMaxMessages": 100,
            "retentionMaxAge": 60_000,
            "cleanerInterval": 60_000,
            "segmentMaxBytes": 1 << 16,
            "segmentMaxAge": 10_000,
            "compactMaxGoroutines": 2,
            "compactEnabled": True,
        },
    ],
)
def test_java_creates_and_deletes_streams(api: Api, options: dict[str, Any]) -> None:
    name = unique_name("java")
    api.CreateStream(**{"name": name, "subject": name, "replicationFactor": 1, **options})
    assert len(api.stream(name).partitions) == options.get("partitions", 1)
    with refused(Status.ALREADY_EXISTS):
        api.CreateStream(name=name, subject=name, replicationFactor=1)
    api.DeleteStream(name=name)
    with refused(Status.NOT_FOUND):
        api.DeleteStream(name=name)


@pytest.fixture
def ten(api: Api, make_stream: MakeStream) -> Stream:
    stream = make_stream()
    for number in range(10):
        api.publish(stream.name, f"m{number}", key=f"k{number}".encode())
    return stream


@pytest.mark.parametrize(
    ("fields", "offsets"),
    [
        ({"startPosition": pb.EARLIEST}, range(10)),
        ({"startPosition": pb.LATEST}, [9]),
        ({"startPosition": pb.OFFSET, "startOffset": 5}, range(5, 10)),
        ({"startPosition": pb.TIMESTAMP, "startTimestamp": 1_600_000_000 * 1_000_000}, range(10)),
    ],
)
def test_java_starts_where_it_asks_to(api: Api, ten: Stream, fields: dict[str, Any], offsets: Any) -> None:
    """Its times are seconds times a million, long before anything of ours."""
    subscription = api.subscribe(ten.name, **fields)
    found = subscription.take(len(offsets))
    assert [message.offset for message in found] == list(offsets)
    assert [message.value for message in found] == [f"m{offset}".encode() for offset in offsets]
    subscription.cancel()


def test_java_gets_exactly_what_is_published_after_subscribe_returned(api: Api, ten: Stream) -> None:
    subscription = api.subscribe(ten.name, startPosition=pb.NEW_ONLY)
    for number in range(10):
        api.publish(ten.name, f"new {number}")
    assert [message.value for message in subscription.take(10)] == [f"new {number}".encode() for number in range(10)]
    subscription.cancel()


def test_java_subscribes_to_nothing(api: Api) -> None:
    api.open_subscription("no-such-stream", startPosition=pb.NEW_ONLY).expect_end(Status.NOT_FOUND)


def test_java_publishes_to_subjects_of_a_wildcard_stream(api: Api, make_stream: MakeStream) -> None:
    root = unique_name("foo")
    stream = make_stream(subject=f"{root}.*")
    api.PublishToSubject(subject=f"{root}.warm", value=b"warm")
    for number in range(5):
        ack = api.PublishToSubject(subject=f"{root}.{number}", value=b"%d" % number, correlationId=f"c{number}").ack
        assert (ack.correlationId, ack.stream, ack.msgSubject) == (f"c{number}", stream.name, f"{root}.{number}")
    found = api.read(stream.name)[1:]
    assert [message.value for message in found] == [b"0", b"1", b"2", b"3", b"4"]
    assert [message.subject for message in found] == [f"{root}.{number}" for number in range(5)]


# ── go-liftbridge ────────────────────────────────────────────────────────────────────────────────


def test_go_connects_with_an_idle_session_and_publishes_much_later(api: Api, make_stream: MakeStream) -> None:
    """A session is opened before anything else, and before the stream exists."""
    session = api.publish_async()
    assert api.FetchMetadata().brokers
    stream = make_stream(partitions=4)
    time.sleep(0.5)  # it is idle: that is the point
    for partition in range(4):
        session.send(stream.name, b"x", partition=partition, correlationId=f"{partition:022d}", expectedOffset=-1)
    answers = session.take(4)
    assert {answer.ack.correlationId for answer in answers} == {f"{partition:022d}" for partition in range(4)}
    session.finish()


@pytest.fixture
def pinging(broker: BrokerProcess) -> Iterator[Api]:
    """A client that asks five times a second whether the server is still there."""
    options = {
        "grpc.keepalive_time_ms": 200,
        "grpc.keepalive_timeout_ms": 60_000,
        "grpc.keepalive_permit_without_calls": 1,
        "grpc.http2.max_pings_without_data": 0,
        "grpc.http2.min_ping_interval_without_data_ms": 200,
    }
    client = broker.api(**options)
    yield client
    client.close()


def test_idle_streams_with_keepalive_are_left_alone(pinging: Api, make_stream: MakeStream, api: Api) -> None:
    stream = make_stream()
    subscription = pinging.subscribe(stream.name)
    session = pinging.publish_async()
    session.send(stream.name, b"first")
    session.next()
    assert subscription.next().value == b"first"
    time.sleep(1.5)  # idle, but for pings
    session.send(stream.name, b"second")
    assert session.next().ack.offset == 1
    assert subscription.next().value == b"second"
    subscription.cancel()
    session.finish()
    assert api.FetchMetadata().brokers


def test_go_sends_times_that_it_did_not_set(api: Api, ten: Stream) -> None:
    subscription = api.subscribe(
        ten.name,
        startPosition=pb.LATEST,
        startTimestamp=UNSET_GO_TIME,
        stopPosition=pb.STOP_ON_CANCEL,
        stopTimestamp=UNSET_GO_TIME,
    )
    assert subscription.next().offset == 9
    subscription.cancel()


def test_go_maps_what_sessions_answer(api: Api, ten: Stream) -> None:
    session = api.publish_async()
    session.send("no-such-stream", b"x", correlationId="1", expectedOffset=-1)
    assert session.next().asyncError.code == pb.PublishAsyncError.NOT_FOUND
    api.SetStreamReadonly(name=ten.name, readonly=True)
    session.send(ten.name, b"x", correlationId="2", expectedOffset=-1)
    assert session.next().asyncError.code == pb.PublishAsyncError.READONLY
    api.SetStreamReadonly(name=ten.name, readonly=False)
    session.send(ten.name, b"x", correlationId="3", expectedOffset=-1)
    assert session.next().ack.correlationId == "3"
    session.finish()


class GoConsumer:
    """The consumer of go-liftbridge without its clocks: join, ask for assignments, subscribe, remember, leave."""

    def __init__(self, api: Api, group: str, name: str, streams: list[str]) -> None:
        self.api, self.group, self.name = api, group, name
        joined = api.JoinConsumerGroup(groupId=group, consumerId=name, streams=streams)
        self.epoch = joined.epoch
        self.subscriptions: dict[tuple[str, int], Any] = {}

    def refresh(self) -> None:
        """Once round the loop: an epoch that changed means that everything is subscribed to again."""
        call = self.api.future(
            "FetchConsumerGroupAssignments", groupId=self.group, consumerId=self.name, epoch=self.epoch
        )
        if call.code() is Status.FAILED_PRECONDITION:
            (known,) = self.api.FetchMetadata(groups=[self.group]).groupMetadata
            self.epoch, self.subscriptions = known.epoch, {}
            return self.refresh()
        answer = call.result()
        if answer.epoch != self.epoch:
            self.epoch, self.subscriptions = answer.epoch, {}
        wanted = {(one.stream, number) for one in answer.assignments for number in one.partitions}
        for stream, partition in wanted - self.subscriptions.keys():
            cursor = self.api.FetchCursor(stream=stream, partition=partition, cursorId=f"__group:{self.group}")
            start = {"startPosition": pb.OFFSET, "startOffset": cursor.offset + 1}
            if cursor.offset < 0:
                start = {"startPosition": pb.EARLIEST}
            self.subscriptions[stream, partition] = self.api.subscribe(
                stream,
                partition,
                consumer={"groupId": self.group, "groupEpoch": self.epoch, "consumerId": self.name},
                **start,
            )
        return None

    def read(self, stream: str, partition: int) -> bytes:
        """One message, remembered."""
        message = self.subscriptions[stream, partition].next()
        self.api.SetCursor(stream=stream, partition=partition, cursorId=f"__group:{self.group}", offset=message.offset)
        value: bytes = message.value
        return value


def test_go_consumers_share_a_stream_and_take_over_from_each_other(api: Api, make_stream: MakeStream) -> None:
    stream, group = make_stream(partitions=2), unique_name("group")
    for number in range(3):
        for partition in range(2):
            api.publish(stream.name, b"%d" % number, partition=partition)
    first = GoConsumer(api, group, "first", [stream.name])
    first.refresh()
    assert [first.read(stream.name, 0), first.read(stream.name, 1)] == [b"0", b"0"]
    second = GoConsumer(api, group, "second", [stream.name])
    second.refresh()
    old = dict(first.subscriptions)
    assert set(second.subscriptions) == {(stream.name, 1)}
    assert old[stream.name, 1].end()[0] is Status.OK
    first.refresh()
    assert set(first.subscriptions) == {(stream.name, 0)}
    assert [first.read(stream.name, 0), second.read(stream.name, 1)] == [b"1", b"1"]
    api.LeaveConsumerGroup(groupId=group, consumerId="first")
    second.refresh()
    assert set(second.subscriptions) == {(stream.name, 0), (stream.name, 1)}
    assert [second.read(stream.name, 0), second.read(stream.name, 1)] == [b"2", b"2"]
    api.LeaveConsumerGroup(groupId=group, consumerId="second")
