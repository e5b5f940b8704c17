"""The activity stream: what happened to streams and groups, in the order of the Raft log."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.api_client import Api, Status, Subscription, pb, refused
from tests.support.broker_fixtures import StartBroker
from tests.support.waiting import eventually

OPS = (
    "createStreamOp",
    "deleteStreamOp",
    "pauseStreamOp",
    "resumeStreamOp",
    "setStreamReadonlyOp",
    "joinConsumerGroupOp",
    "leaveConsumerGroupOp",
)


def event_of(message: Any) -> tuple[int, Any]:
    """Number of the event, and the one op inside of it."""
    event = pb.ActivityStreamEvent.FromString(message.value)
    present = [name for name in OPS if event.HasField(name)]
    assert present == [OPS[event.op]]
    return event.id, getattr(event, present[0])


class Activity:
    def __init__(self, api: Api) -> None:
        def open_stream() -> Subscription | None:
            subscription = api.open_subscription("__activity")
            try:
                subscription.shake_hands()
            except Exception:
                return None
            return subscription

        self._subscription = eventually(open_stream, "the activity stream is there")
        self._last = -1

    def next(self) -> Any:
        """The next op. Numbers grow; one that was seen already is a repetition, which is allowed."""
        while True:
            number, op = event_of(self._subscription.next())
            if number > self._last:
                self._last = number
                return op


@pytest.fixture
def active(start_broker: StartBroker) -> Any:
    broker = start_broker({"activity.stream.enabled": True})
    api = broker.api()
    yield api
    api.close()


def test_the_first_event_is_the_creation_of_the_stream_itself(active: Api) -> None:
    assert Activity(active).next() == pb.CreateStreamOp(stream="__activity", partitions=[0])


def test_cursors_come_second(start_broker: StartBroker) -> None:
    api = start_broker({"activity.stream.enabled": True, "cursors.stream.partitions": 2}).api()
    activity = Activity(api)
    assert activity.next().stream == "__activity"
    assert activity.next() == pb.CreateStreamOp(stream="__cursors", partitions=[0, 1])
    api.close()


def test_everything_that_happens_to_a_stream_is_told_in_order(active: Api) -> None:
    activity = Activity(active)
    assert activity.next().stream == "__activity"
    active.CreateStream(name="s", subject="s", partitions=3)
    assert activity.next() == pb.CreateStreamOp(stream="s", partitions=[0, 1, 2])
    active.PauseStream(name="s", partitions=[1, 2], resumeAll=True)
    assert activity.next() == pb.PauseStreamOp(stream="s", partitions=[1, 2], resumeAll=True)
    active.publish("s", b"x", partition=1)
    resumed = activity.next()
    assert (resumed.stream, sorted(resumed.partitions)) == ("s", [1, 2])
    active.SetStreamReadonly(name="s", partitions=[0], readonly=True)
    assert activity.next() == pb.SetStreamReadonlyOp(stream="s", partitions=[0], readonly=True)
    active.SetStreamReadonly(name="s", partitions=[0], readonly=False)
    assert activity.next() == pb.SetStreamReadonlyOp(stream="s", partitions=[0], readonly=False)
    active.DeleteStream(name="s")
    assert activity.next() == pb.DeleteStreamOp(stream="s")


def test_pausing_all_names_the_partitions(active: Api) -> None:
    activity = Activity(active)
    activity.next()
    active.CreateStream(name="s", subject="s", partitions=2)
    activity.next()
    active.PauseStream(name="s")
    assert sorted(activity.next().partitions) in ([], [0, 1])


def test_groups_are_told_too(start_broker: StartBroker) -> None:
    broker = start_broker({"activity.stream.enabled": True})
    api = broker.api()
    activity = Activity(api)
    activity.next()
    api.CreateStream(name="s", subject="s")
    activity.next()
    api.JoinConsumerGroup(groupId="g", consumerId="a", streams=["s"])
    assert activity.next() == pb.JoinConsumerGroupOp(groupId="g", consumerId="a", streams=["s"])
    api.JoinConsumerGroup(groupId="g", consumerId="b", streams=["s"])
    assert activity.next() == pb.JoinConsumerGroupOp(groupId="g", consumerId="b", streams=["s"])
    api.LeaveConsumerGroup(groupId="g", consumerId="a")
    assert activity.next() == pb.LeaveConsumerGroupOp(groupId="g", consumerId="a", expired=False)
    api.close()
    # Only now silence counts: before, somebody who is slow would be put out.
    broker.config["groups.consumer.timeout"] = "500ms"
    broker.restart()
    api = broker.api()
    activity = Activity(api)
    told = [activity.next() for _ in range(6)]
    assert told[-1] == pb.LeaveConsumerGroupOp(groupId="g", consumerId="b", expired=True)
    api.close()


def test_what_was_refused_is_not_told(active: Api) -> None:
    activity = Activity(active)
    activity.next()
    with refused(Status.NOT_FOUND):
        active.DeleteStream(name="never-was")
    active.CreateStream(name="s", subject="s")
    with refused(Status.ALREADY_EXISTS):
        active.CreateStream(name="s", subject="s")
    assert activity.next() == pb.CreateStreamOp(stream="s", partitions=[0])
    active.DeleteStream(name="s")
    assert activity.next() == pb.DeleteStreamOp(stream="s")


def test_no_event_is_lost_to_a_kill(start_broker: StartBroker) -> None:
    broker = start_broker({"activity.stream.enabled": True})
    api = broker.api()
    for number in range(10):
        api.CreateStream(name=f"s{number}", subject=f"s{number}")
    api.close()
    broker.restart()
    api = broker.api()
    api.CreateStream(name="last", subject="last")
    activity = Activity(api)
    told = [activity.next().stream for _ in range(12)]
    assert told == ["__activity", *(f"s{number}" for number in range(10)), "last"]
    api.close()


def test_it_is_off_by_default_and_needs_a_known_ack_policy(start_broker: StartBroker) -> None:
    api = start_broker().api()
    assert "__activity" not in [stream.name for stream in api.FetchMetadata().streamMetadata]
    api.close()
    broker = start_broker(
        {"activity.stream.enabled": True, "activity.stream.publish.ack.policy": "sometimes"}, launch_only=True
    )
    assert broker.wait() not in (0, 1)
    assert "activity.stream.publish.ack.policy" in broker.said()


@pytest.mark.parametrize("policy", ["none", "leader", "all"])
def test_every_ack_policy_publishes(start_broker: StartBroker, policy: str) -> None:
    api = start_broker({"activity.stream.enabled": True, "activity.stream.publish.ack.policy": policy}).api()
    activity = Activity(api)
    assert activity.next().stream == "__activity"
    api.CreateStream(name="s", subject="s")
    assert activity.next().stream == "s"
    api.close()
