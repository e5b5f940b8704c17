"""Partitions that may be read and not written."""

from __future__ import annotations

import pytest

from tests.support import envelopes
from tests.support.api_client import Api, Status, pb, refused
from tests.support.broker_fixtures import MakeStream, unique_name
from tests.support.nats_client import NatsClient

END = "End of readonly partition"


def test_publishing_fails_only_where_it_is_readonly(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream(partitions=3)
    api.SetStreamReadonly(name=stream.name, partitions=[1], readonly=True)
    for partition in (0, 2):
        assert api.publish(stream.name, b"x", partition=partition).offset == 0
    for timeout in (30.0, None):
        with refused(Status.FAILED_PRECONDITION):
            api.Publish(stream=stream.name, partition=1, value=b"x", timeout=timeout)
    assert [api.stream(stream.name).partitions[number].readonly for number in range(3)] == [False, True, False]
    assert api.partition(stream.name, 1).readonly


def test_all_partitions_at_once_and_back_again(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream(partitions=2)
    for round_number in range(3):
        api.SetStreamReadonly(name=stream.name, readonly=True)
        for partition in range(2):
            with refused(Status.FAILED_PRECONDITION):
                api.publish(stream.name, b"x", partition=partition)
        api.SetStreamReadonly(name=stream.name, readonly=False)
        for partition in range(2):
            assert api.publish(stream.name, b"x", partition=partition).offset == round_number


def test_unknown_streams_and_partitions_are_not_found_and_nothing_changes(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream(partitions=2)
    with refused(Status.NOT_FOUND):
        api.SetStreamReadonly(name="never-was", readonly=True)
    with refused(Status.NOT_FOUND):
        api.SetStreamReadonly(name=stream.name, partitions=[0, 2], readonly=True)
    assert not any(one.readonly for one in api.stream(stream.name).partitions.values())


def test_readers_get_everything_and_then_the_end(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    for number in range(5):
        api.publish(stream.name, b"%d" % number)
    api.SetStreamReadonly(name=stream.name, readonly=True)
    subscription = api.subscribe(stream.name)
    assert [message.value for message in subscription.take(5)] == [b"0", b"1", b"2", b"3", b"4"]
    subscription.expect_end(Status.RESOURCE_EXHAUSTED, END)


def test_readers_that_wait_are_woken(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    api.publish(stream.name, b"x")
    at_end, new_only = api.subscribe(stream.name), api.subscribe(stream.name, startPosition=pb.NEW_ONLY)
    at_end.take(1)
    api.SetStreamReadonly(name=stream.name, readonly=True)
    at_end.expect_end(Status.RESOURCE_EXHAUSTED, END)
    new_only.expect_end(Status.RESOURCE_EXHAUSTED, END)


@pytest.mark.parametrize("position", [pb.NEW_ONLY, pb.EARLIEST, pb.LATEST])
def test_an_empty_readonly_partition_is_at_its_end(api: Api, make_stream: MakeStream, position: int) -> None:
    stream = make_stream()
    api.SetStreamReadonly(name=stream.name, readonly=True)
    code, text = api.open_subscription(stream.name, startPosition=position).end()
    assert code is Status.RESOURCE_EXHAUSTED, text


def test_new_only_on_a_readonly_partition_is_at_its_end(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    api.publish(stream.name, b"x")
    api.SetStreamReadonly(name=stream.name, readonly=True)
    subscription = api.open_subscription(stream.name, startPosition=pb.NEW_ONLY)
    assert subscription.end()[0] is Status.RESOURCE_EXHAUSTED


def test_plain_messages_are_dropped_and_envelopes_are_told(api: Api, make_stream: MakeStream, nats: NatsClient) -> None:
    stream, inbox = make_stream(), unique_name("inbox")
    nats.subscribe(inbox)
    api.publish(stream.name, b"before")
    api.SetStreamReadonly(name=stream.name, readonly=True)
    nats.publish(stream.subject, b"dropped")
    nats.publish(stream.subject, envelopes.message(b"dropped too", ackInbox=inbox, correlationId="c"))
    ack = envelopes.ack_in(nats.next().payload)
    assert (ack.ackError, ack.correlationId) == (pb.Ack.UNKNOWN, "c")
    api.SetStreamReadonly(name=stream.name, readonly=False)
    api.publish(stream.name, b"after")
    assert [message.value for message in api.read(stream.name)] == [b"before", b"after"]


def test_times_of_changes_are_told(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    times = api.partition(stream.name).readonlyTimestamps
    assert (times.firstTimestamp, times.latestTimestamp) == (0, 0)
    api.SetStreamReadonly(name=stream.name, readonly=True)
    once = api.partition(stream.name).readonlyTimestamps
    assert once.firstTimestamp == once.latestTimestamp > 0
    api.SetStreamReadonly(name=stream.name, readonly=False)
    twice = api.partition(stream.name).readonlyTimestamps
    assert twice.firstTimestamp == once.firstTimestamp < twice.latestTimestamp


def test_readonly_outlives_pause_and_resume(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    api.publish(stream.name, b"x")
    api.SetStreamReadonly(name=stream.name, readonly=True)
    api.PauseStream(name=stream.name)
    subscription = api.subscribe(stream.name, resume=True)
    assert subscription.next().value == b"x"
    subscription.expect_end(Status.RESOURCE_EXHAUSTED, END)
    assert api.partition(stream.name).readonly
    with refused(Status.FAILED_PRECONDITION):
        api.publish(stream.name, b"y")
