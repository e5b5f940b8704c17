"""Pausing, resuming and pausing by itself."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.support.api_client import Api, Status, grpc, pb, refused
from tests.support.broker_fixtures import MakeStream, StartBroker
from tests.support.nats_client import NatsClient
from tests.support.waiting import eventually


def paused(api: Api, name: str) -> list[int]:
    return [number for number, one in sorted(api.stream(name).partitions.items()) if one.paused]


def test_pausing_all_partitions_is_seen_and_can_be_repeated(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream(partitions=2)
    for _ in range(3):
        api.PauseStream(name=stream.name)
        assert paused(api, stream.name) == [0, 1]


def test_paused_partitions_do_not_count_as_load(start_broker: StartBroker) -> None:
    api = start_broker().api()
    api.CreateStream(name="s", subject="s", partitions=2)

    def load() -> tuple[int, int]:
        (broker,) = api.FetchMetadata().brokers
        return broker.partitionCount, broker.leaderCount

    assert load() == (2, 2)
    api.PauseStream(name="s")
    assert load() == (0, 0)
    api.publish("s", b"x", partition=1)
    assert load() == (1, 1)
    api.close()


def test_publishing_resumes_only_that_partition(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream(partitions=3)
    for partition in range(3):
        api.publish(stream.name, b"before", partition=partition)
    api.PauseStream(name=stream.name)
    assert api.publish(stream.name, b"after", partition=1).offset == 1
    assert paused(api, stream.name) == [0, 2]
    assert [message.value for message in api.read(stream.name, 1)] == [b"before", b"after"]


def test_a_session_resumes_too(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream(partitions=2)
    session = api.publish_async()
    for offset in range(5):
        api.PauseStream(name=stream.name)
        session.send(stream.name, b"%d" % offset, partition=1)
        assert session.next().ack.offset == offset
        assert paused(api, stream.name) == [0]
    session.finish()


def test_a_burst_into_a_paused_partition_loses_nothing_and_keeps_its_order(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    api.PauseStream(name=stream.name)
    session = api.publish_async()
    for number in range(500):
        session.send(stream.name, b"%d" % number)
    assert [answer.ack.offset for answer in session.take(500)] == list(range(500))
    session.finish()
    assert [int(message.value) for message in api.read(stream.name)] == list(range(500))


def test_resume_all_resumes_every_paused_partition(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream(partitions=3)
    api.PauseStream(name=stream.name, partitions=[0, 2], resumeAll=True)
    assert paused(api, stream.name) == [0, 2]
    api.publish(stream.name, b"x", partition=0)
    assert paused(api, stream.name) == []
    for partition in range(3):
        assert api.partition(stream.name, partition).newestOffset == (0 if partition == 0 else -1)


def test_each_pause_decides_anew_whether_all_are_resumed(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream(partitions=2)
    api.PauseStream(name=stream.name, resumeAll=True)
    api.PauseStream(name=stream.name, resumeAll=False)
    api.publish(stream.name, b"x", partition=0)
    assert paused(api, stream.name) == [1]


def test_publishing_to_a_partition_that_is_not_paused_resumes_nothing(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream(partitions=2)
    api.PauseStream(name=stream.name, partitions=[1], resumeAll=True)
    api.publish(stream.name, b"x", partition=0)
    assert paused(api, stream.name) == [1]


def test_unknown_streams_and_partitions_are_not_found_and_nothing_is_paused(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream(partitions=2)
    with refused(Status.NOT_FOUND):
        api.PauseStream(name="never-was")
    for partitions in ([0, 2], [-1], [5]):
        with refused(Status.NOT_FOUND):
            api.PauseStream(name=stream.name, partitions=partitions)
    assert paused(api, stream.name) == []


def test_plain_messages_neither_resume_nor_are_kept(api: Api, make_stream: MakeStream, nats: NatsClient) -> None:
    stream = make_stream()
    api.publish(stream.name, b"before")
    api.PauseStream(name=stream.name)
    nats.publish(stream.subject, b"lost")
    api.PublishToSubject(subject=stream.subject, value=b"lost too", timeout=None)
    with refused(Status.DEADLINE_EXCEEDED):
        api.PublishToSubject(subject=stream.subject, value=b"lost as well", timeout=0.3)
    assert paused(api, stream.name) == [0]
    api.publish(stream.name, b"after")
    assert [message.value for message in api.read(stream.name)] == [b"before", b"after"]


def test_subscribing_resumes_when_asked_to(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream(partitions=2)
    api.publish(stream.name, b"x")
    api.PauseStream(name=stream.name)
    subscription = api.subscribe(stream.name, resume=True)
    assert subscription.next().value == b"x"
    assert paused(api, stream.name) == [1]
    api.publish(stream.name, b"y")
    assert subscription.next().value == b"y"
    subscription.cancel()


def test_partition_metadata_fails_while_paused_and_tells_the_times_afterwards(
    api: Api, make_stream: MakeStream
) -> None:
    stream = make_stream()
    times = api.partition(stream.name).pauseTimestamps
    assert (times.firstTimestamp, times.latestTimestamp) == (0, 0)
    api.publish(stream.name, b"x")
    received = api.partition(stream.name).messagesReceivedTimestamps.firstTimestamp
    api.PauseStream(name=stream.name)
    with refused(Status.FAILED_PRECONDITION):
        api.partition(stream.name)
    api.publish(stream.name, b"y")
    found = api.partition(stream.name)
    assert not found.paused
    assert 0 < found.pauseTimestamps.firstTimestamp < found.pauseTimestamps.latestTimestamp
    assert found.messagesReceivedTimestamps.firstTimestamp == received


def test_after_exactly_one_pause_first_and_latest_are_the_same(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    api.PauseStream(name=stream.name)
    times = api.stream(stream.name).partitions[0].pauseTimestamps
    assert times.firstTimestamp == times.latestTimestamp > 0


def test_a_paused_stream_can_be_deleted(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    api.PauseStream(name=stream.name)
    api.DeleteStream(name=stream.name)
    assert api.stream(stream.name).error == pb.StreamMetadata.UNKNOWN_STREAM


def test_pause_and_readonly_survive_a_kill(start_broker: StartBroker) -> None:
    broker = start_broker()
    api = broker.api()
    api.CreateStream(name="s", subject="s", partitions=4)
    for partition in range(4):
        api.publish("s", b"x", partition=partition)
    api.PauseStream(name="s", partitions=[1, 3], resumeAll=True)
    api.SetStreamReadonly(name="s", partitions=[2, 3], readonly=True)
    api.close()
    broker.restart()
    api = broker.api()
    found = api.stream("s").partitions
    assert [(found[n].paused, found[n].readonly) for n in range(4)] == [
        (False, False),
        (True, False),
        (False, True),
        (True, True),
    ]
    assert api.publish("s", b"y", partition=1).offset == 1
    assert paused(api, "s") == []
    with refused(Status.FAILED_PRECONDITION):
        api.publish("s", b"y", partition=2)
    with refused(Status.FAILED_PRECONDITION):
        api.publish("s", b"y", partition=3)
    api.close()


def test_pausing_and_resuming_many_times_under_load_loses_no_ack(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    session = api.publish_async()
    acks: list[Any] = []
    for number in range(30):
        for _ in range(20):
            session.send(stream.name, b"%d" % number)
        api.PauseStream(name=stream.name)
    session.half_close()
    acks = [answer for answer in session.call if not answer.HasField("asyncError")]
    assert acks
    stored = {message.offset for message in api.read(stream.name, resume=True)}
    assert {answer.ack.offset for answer in acks} <= stored


# ── by itself ────────────────────────────────────────────────────────────────────────────────────


def wake(api: Api, stream: str, partition: int = 0) -> Any:
    """Publish, and wake it with that; the ack. While NATS stands still it may fall asleep again before it has begun to listen."""

    def attempt() -> Any:
        try:
            return api.publish(stream, b"x", partition=partition)
        except grpc.RpcError as error:
            assert error.code() is Status.INTERNAL, error
            assert "has not resumed it yet" in error.details(), error
            return None

    return eventually(attempt, f"{stream}/{partition} stays awake for a message")


def test_an_idle_partition_pauses_by_itself(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream(partitions=2, autoPauseTime=300)
    subscription = api.subscribe(stream.name)
    eventually(lambda: paused(api, stream.name) == [0, 1], "both partitions pause although they never had a message")
    subscription.expect_end(Status.FAILED_PRECONDITION)
    assert wake(api, stream.name).offset == 0
    assert paused(api, stream.name) in ([1], [0, 1])
    eventually(lambda: paused(api, stream.name) == [0, 1], "it pauses again")


def test_a_busy_partition_does_not_pause(api: Api, make_stream: MakeStream) -> None:
    pause_seconds = 1.0

    def is_told_apart() -> bool:
        """False when this machine kept somebody from publishing for so long that even the busy one may have paused."""
        busy, idle = (make_stream(autoPauseTime=int(pause_seconds * 1000)) for _ in range(2))
        before, gap = time.monotonic(), 0.0
        while paused(api, idle.name) != [0]:
            begun = time.monotonic()
            api.publish(busy.name, b"x")
            gap = max(gap, time.monotonic() - before)
            before = begun
        found = api.stream(busy.name).partitions[0]
        gap = max(gap, time.monotonic() - before)
        if gap >= pause_seconds:
            return False
        assert (found.paused, found.pauseTimestamps.firstTimestamp) == (False, 0)
        return True

    eventually(is_told_apart, "somebody published often enough")


def test_subscribers_can_keep_a_partition_awake(api: Api, make_stream: MakeStream) -> None:
    watched = make_stream(autoPauseTime=300, autoPauseDisableIfSubscribers=True)
    subscription = api.subscribe(watched.name, resume=True)  # on a slow machine it pauses before anybody can subscribe
    for _ in range(3):
        other = make_stream(autoPauseTime=300)
        eventually(lambda name=other.name: paused(api, name) == [0], "the one without subscribers pauses")  # type: ignore[misc]
        assert paused(api, watched.name) == []
    subscription.cancel()
    eventually(lambda: paused(api, watched.name) == [0], "it pauses when its subscriber has gone")


def test_zero_means_never(start_broker: StartBroker) -> None:
    api = start_broker({"streams.auto.pause.time": "300ms"}).api()
    api.CreateStream(name="never", subject="never", autoPauseTime=0)
    api.CreateStream(name="default", subject="default")
    eventually(lambda: paused(api, "default") == [0], "the server's default applies")
    assert paused(api, "never") == []
    api.close()


@pytest.mark.parametrize("sleepers", [20])
def test_many_partitions_sleep_and_wake(api: Api, make_stream: MakeStream, sleepers: int) -> None:
    stream = make_stream(partitions=sleepers, autoPauseTime=200)
    eventually(lambda: len(paused(api, stream.name)) == sleepers, "all pause")
    for partition in range(sleepers):
        assert wake(api, stream.name, partition).offset == 0
