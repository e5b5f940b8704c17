"""A subscription from its handshake to its end, forwards and backwards."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

from tests.support.api_client import Api, Status, pb, refused
from tests.support.broker_fixtures import MakeStream, StartBroker, unique_name
from tests.support.nats_client import NatsClient
from tests.support.waiting import PATIENCE_SECONDS


def filled(api: Api, make_stream: MakeStream, count: int = 5) -> Any:
    stream = make_stream()
    for number in range(count):
        api.publish(stream.name, f"m{number}")
    return stream


# ── handshake ────────────────────────────────────────────────────────────────────────────────────


def test_the_handshake_comes_at_once_even_when_there_is_nothing_to_read(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    for position in (pb.NEW_ONLY, pb.EARLIEST, pb.LATEST):
        api.subscribe(stream.name, startPosition=position).cancel()


def test_an_unknown_stream_or_partition_is_told_without_a_message(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    for name, partition in (("never-was", 0), (stream.name, 1), (stream.name, -1), ("", 0)):
        api.open_subscription(name, partition).expect_end(Status.NOT_FOUND, "No such partition")


def test_a_group_without_a_consumer_is_refused(api: Api, make_stream: MakeStream) -> None:
    subscription = api.open_subscription(make_stream().name, consumer={"groupId": "g"})
    subscription.expect_end(Status.INVALID_ARGUMENT)


def test_the_consumer_is_checked_before_the_stream(api: Api) -> None:
    api.open_subscription("never-was", consumer={"groupId": "g"}).expect_end(Status.INVALID_ARGUMENT)


def test_the_leader_serves_who_would_take_a_replica_too(api: Api, make_stream: MakeStream) -> None:
    stream = filled(api, make_stream)
    subscription = api.subscribe(stream.name, readISRReplica=True)
    assert len(subscription.take(5)) == 5
    subscription.cancel()


def test_unknown_fields_of_a_request_are_tolerated(api: Api, make_stream: MakeStream) -> None:
    stream = filled(api, make_stream, 1)
    request = pb.SubscribeRequest(stream=stream.name, startPosition=pb.EARLIEST).SerializeToString()
    unknown = bytes.fromhex("ca3e03616263") + bytes.fromhex("d03e07") + bytes.fromhex("d93e0102030405060708")
    call = api.channel.unary_stream("/proto.API/Subscribe")(request + unknown, timeout=30)
    assert next(call) == b""
    assert pb.Message.FromString(next(call)).value == b"m0"
    call.cancel()


# ── what is delivered ────────────────────────────────────────────────────────────────────────────


def test_a_message_has_everything_it_was_published_with(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream(partitions=2)
    headers = {"text": b"plain", "bytes": bytes(range(256)), "": b"no name", "empty": b"", "größe": b"x"}
    ack = api.publish(
        stream.name, b"\x00value\xff", partition=1, key=b"\x00key\xff", headers=headers, correlationId="c1"
    )
    (message,) = api.read(stream.name, 1)
    assert (message.key, message.value) == (b"\x00key\xff", b"\x00value\xff")
    assert (message.stream, message.partition, message.offset) == (stream.name, 1, 0)
    assert message.timestamp == ack.receptionTimestamp
    assert message.subject == f"{stream.subject}.1"
    assert message.replySubject == ""
    assert dict(message.headers) == {**headers, "subject": f"{stream.subject}.1".encode(), "reply": b""}
    assert (message.ackInbox, message.correlationId, message.ackPolicy) == ("", "", pb.LEADER)


def test_headers_that_the_server_sets_win_over_the_publishers(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    api.publish(stream.name, b"x", headers={"subject": b"forged", "reply": b"forged", "kept": b"1"})
    (message,) = api.read(stream.name)
    assert dict(message.headers) == {"subject": stream.subject.encode(), "reply": b"", "kept": b"1"}


def test_times_never_go_backwards_and_are_those_of_the_clock(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    before = time.time_ns()
    session = api.publish_async()
    for number in range(2000):
        session.send(stream.name, b"%d" % number)
    session.take(2000)
    session.finish()
    times = [message.timestamp for message in api.read(stream.name)]
    assert times == sorted(times)
    assert before <= times[0]
    assert times[-1] <= time.time_ns()


def test_many_subscribers_get_the_same(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    subscriptions = [api.subscribe(stream.name) for _ in range(20)]
    for number in range(50):
        api.publish(stream.name, f"m{number}")
    expected = [f"m{number}".encode() for number in range(50)]
    for subscription in subscriptions:
        assert [message.value for message in subscription.take(50)] == expected
        subscription.cancel()


# ── ends ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("position", [pb.EARLIEST, pb.NEW_ONLY])
def test_deleting_the_stream_ends_with_not_found(api: Api, make_stream: MakeStream, position: int) -> None:
    stream = filled(api, make_stream, 3)
    subscription = api.subscribe(stream.name, startPosition=position)
    if position == pb.EARLIEST:
        subscription.take(3)
    api.DeleteStream(name=stream.name)
    subscription.expect_end(Status.NOT_FOUND)


def test_pausing_ends_with_failed_precondition(api: Api, make_stream: MakeStream) -> None:
    stream = filled(api, make_stream, 3)
    subscription = api.subscribe(stream.name)
    subscription.take(3)
    api.PauseStream(name=stream.name)
    subscription.expect_end(Status.FAILED_PRECONDITION)


@pytest.mark.parametrize("position", [pb.EARLIEST, pb.NEW_ONLY, pb.LATEST, pb.OFFSET])
def test_a_paused_partition_shakes_hands_before_it_says_so(api: Api, make_stream: MakeStream, position: int) -> None:
    """Before the handshake, Go would take the status for `not the leader`."""
    stream = filled(api, make_stream, 3)
    api.PauseStream(name=stream.name)
    subscription = api.subscribe(stream.name, startPosition=position)
    subscription.expect_end(Status.FAILED_PRECONDITION)


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_server_that_leaves_is_unavailable_and_not_cancelled(start_broker: StartBroker, signal_number: int) -> None:
    """Go subscribes again on UNAVAILABLE only, and gives up in silence on CANCELLED."""
    broker = start_broker()
    api = broker.api()
    api.CreateStream(name="s", subject="s")
    api.publish("s", b"x")
    idle, reading = api.subscribe("s", startPosition=pb.NEW_ONLY), api.subscribe("s")
    reading.take(1)
    session = api.publish_async()
    session.send("s", b"y")
    session.take(1)
    broker.stop(signal_number)
    assert idle.end()[0] is Status.UNAVAILABLE
    assert reading.end()[0] is Status.UNAVAILABLE
    with refused(Status.UNAVAILABLE):
        session.take(1)
    session.cancel()
    api.close()


def test_a_cancelled_subscription_leaves_the_connection_usable(api: Api, make_stream: MakeStream) -> None:
    stream = filled(api, make_stream, 3)
    for _ in range(200):
        api.subscribe(stream.name).cancel()
    assert len(api.read(stream.name)) == 3


def test_a_deadline_on_a_subscription_is_kept(api: Api, make_stream: MakeStream) -> None:
    subscription = api.open_subscription(make_stream().name, timeout=0.5)
    assert subscription.end()[0] is Status.DEADLINE_EXCEEDED


# ── backwards ────────────────────────────────────────────────────────────────────────────────────


def backwards(api: Api, name: str, **fields: Any) -> list[int]:
    subscription = api.subscribe(name, reverse=True, **fields)
    found = [message.offset for message in subscription.rest()]
    assert subscription.end()[0] is Status.RESOURCE_EXHAUSTED, subscription.end()
    return found


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"startPosition": pb.LATEST}, [4, 3, 2, 1, 0]),
        ({"startPosition": pb.NEW_ONLY}, [4, 3, 2, 1, 0]),
        ({"startPosition": pb.EARLIEST}, [0]),
        ({"startPosition": pb.OFFSET, "startOffset": 2}, [2, 1, 0]),
        ({"startPosition": pb.OFFSET, "startOffset": 100}, [4, 3, 2, 1, 0]),
        (
            {"startPosition": pb.OFFSET, "startOffset": 3, "stopPosition": pb.STOP_OFFSET, "stopOffset": 1},
            [3, 2, 1],
        ),
        ({"startPosition": pb.LATEST, "stopPosition": pb.STOP_OFFSET, "stopOffset": 4}, [4]),
        ({"startPosition": pb.LATEST, "stopPosition": pb.STOP_OFFSET, "stopOffset": 0}, [4, 3, 2, 1, 0]),
    ],
)
def test_reverse_walks_down_and_ends(
    api: Api, make_stream: MakeStream, fields: dict[str, Any], expected: list[int]
) -> None:
    stream = filled(api, make_stream)
    assert backwards(api, stream.name, **fields) == expected


def test_reverse_from_a_time(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    acks = [api.publish(stream.name, b"x") for _ in range(5)]
    time_of_third = acks[3].receptionTimestamp
    assert backwards(api, stream.name, startPosition=pb.TIMESTAMP, startTimestamp=time_of_third) == [3, 2, 1, 0]


def test_reverse_delivers_whole_messages(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    api.publish(stream.name, b"v", key=b"k", headers={"h": b"1"})
    forwards = api.read(stream.name)
    walk = api.subscribe(stream.name, startPosition=pb.LATEST, reverse=True)
    assert list(walk.rest()) == forwards


def test_reverse_crosses_batches_and_segments(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream(segmentMaxBytes=4096)
    session = api.publish_async()
    for number in range(1000):
        session.send(stream.name, b"%d" % number)
    session.take(1000)
    session.finish()
    assert backwards(api, stream.name, startPosition=pb.LATEST) == list(range(999, -1, -1))


def test_reverse_does_not_wait_for_new_messages(api: Api, make_stream: MakeStream) -> None:
    stream = filled(api, make_stream, 2)
    walk = api.subscribe(stream.name, startPosition=pb.LATEST, reverse=True)
    api.publish(stream.name, b"new")
    assert [message.offset for message in walk.rest()][-2:] == [1, 0]


def test_reverse_on_an_empty_partition_fails(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    subscription = api.open_subscription(stream.name, startPosition=pb.LATEST, reverse=True)
    subscription.expect_end(Status.OUT_OF_RANGE, f"partition 0 of stream {stream.name} is empty")


def test_reverse_with_a_stop_above_the_start_is_refused(api: Api, make_stream: MakeStream) -> None:
    stream = filled(api, make_stream)
    subscription = api.open_subscription(
        stream.name,
        startPosition=pb.OFFSET,
        startOffset=1,
        stopPosition=pb.STOP_OFFSET,
        stopOffset=3,
        reverse=True,
    )
    subscription.expect_end(Status.INVALID_ARGUMENT)


# ── members of a group ───────────────────────────────────────────────────────────────────────────


def member(group: str, consumer: str, epoch: int) -> dict[str, Any]:
    return {"groupId": group, "consumerId": consumer, "groupEpoch": epoch}


@pytest.mark.parametrize("epoch", [3, 4])
def test_a_newer_member_takes_over_and_the_old_stream_ends_with_ok(
    api: Api, make_stream: MakeStream, epoch: int
) -> None:
    stream, group = make_stream(), unique_name("g")
    old = api.subscribe(stream.name, consumer=member(group, "a", 3))
    new = api.subscribe(stream.name, consumer=member(group, "b", epoch))
    assert old.end()[0] is Status.OK
    api.publish(stream.name, b"x")
    assert new.next().value == b"x"
    new.cancel()


def test_an_older_member_is_refused(api: Api, make_stream: MakeStream) -> None:
    stream, group = make_stream(), unique_name("g")
    new = api.subscribe(stream.name, consumer=member(group, "a", 3))
    api.open_subscription(stream.name, consumer=member(group, "b", 2)).expect_end(Status.FAILED_PRECONDITION)
    api.publish(stream.name, b"x")
    assert new.next().value == b"x"
    new.cancel()


def test_the_end_of_an_old_stream_does_not_let_a_third_in(api: Api, make_stream: MakeStream) -> None:
    """The same consumer comes again with the same id; when its old stream ends, the new one is still the registered one."""
    stream, group = make_stream(), unique_name("g")
    kept = []
    for epoch in range(2, 12):
        old = api.subscribe(stream.name, consumer=member(group, "a", epoch - 1))
        kept.append(api.subscribe(stream.name, consumer=member(group, "a", epoch)))
        assert old.end()[0] is Status.OK
        lower = api.open_subscription(stream.name, consumer=member(group, "b", epoch - 1))
        lower.expect_end(Status.FAILED_PRECONDITION)


def test_groups_and_partitions_do_not_disturb_each_other(api: Api, make_stream: MakeStream) -> None:
    stream, group = make_stream(partitions=2), unique_name("g")
    subscriptions = [
        api.subscribe(stream.name, 0, consumer=member(group, "a", 5)),
        api.subscribe(stream.name, 1, consumer=member(group, "b", 1)),
        api.subscribe(stream.name, 0, consumer=member(group + "-other", "c", 1)),
        api.subscribe(stream.name, 0),
    ]
    for partition in (0, 1):
        api.publish(stream.name, b"x", partition=partition)
    for subscription in subscriptions:
        assert subscription.next().value == b"x"
        subscription.cancel()


def test_a_member_that_left_makes_room_for_an_older_epoch(api: Api, make_stream: MakeStream) -> None:
    stream, group = make_stream(), unique_name("g")
    gone = api.subscribe(stream.name, consumer=member(group, "a", 9))
    gone.cancel()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        late = api.open_subscription(stream.name, consumer=member(group, "b", 1))
        try:
            late.shake_hands()
            break
        except Exception:
            assert late.end()[0] is Status.FAILED_PRECONDITION
            assert time.monotonic() < deadline
    late.cancel()


# ── several things at once ───────────────────────────────────────────────────────────────────────


def test_one_connection_carries_many_calls(api: Api, make_stream: MakeStream, nats: NatsClient) -> None:
    stream = make_stream(partitions=4)
    subscriptions = [api.subscribe(stream.name, partition) for partition in range(4) for _ in range(10)]
    session = api.publish_async()
    for number in range(100):
        session.send(stream.name, b"async %d" % number, partition=number % 4)
        nats.publish(f"{stream.subject}.3", b"plain")
    session.take(100)
    for index, subscription in enumerate(subscriptions):
        values = [message.value for message in subscription.take(125 if index // 10 == 3 else 25)]
        mine = [value for value in values if value != b"plain"]
        assert mine == [b"async %d" % number for number in range(index // 10, 100, 4)]
        subscription.cancel()
    session.finish()
