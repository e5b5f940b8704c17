"""Consumer groups: who reads what."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest

from tests.support.api_client import Api, Status, grpc, pb, refused
from tests.support.broker_fixtures import MakeStream, StartBroker, unique_name
from tests.support.waiting import eventually


def group_metadata(api: Api, group: str) -> Any:
    (found,) = api.FetchMetadata(groups=[group]).groupMetadata
    return found


class MovedOn(AssertionError):
    """The answer is of another epoch than the one that the group had just before."""


def assignments(api: Api, group: str, consumer: str, epoch: int | None = None) -> dict[str, list[int]]:
    known = group_metadata(api, group)
    answer = api.FetchConsumerGroupAssignments(
        groupId=group, consumerId=consumer, epoch=known.epoch if epoch is None else epoch
    )
    if answer.epoch != known.epoch:
        raise MovedOn
    return {one.stream: sorted(one.partitions) for one in answer.assignments}


def test_the_first_member_gets_everything_at_epoch_zero(api: Api, make_stream: MakeStream) -> None:
    stream, group = make_stream(partitions=3), unique_name("g")
    joined = api.JoinConsumerGroup(groupId=group, consumerId="c1", streams=[stream.name])
    (broker,) = api.FetchMetadata().brokers
    assert (joined.coordinator, joined.epoch) == (broker.id, 0)
    assert (joined.consumerTimeout, joined.coordinatorTimeout) == (15_000_000_000, 15_000_000_000)
    found = group_metadata(api, group)
    assert (found.error, found.coordinator, found.epoch) == (pb.ConsumerGroupMetadata.OK, broker.id, 0)
    assert assignments(api, group, "c1") == {stream.name: [0, 1, 2]}


def test_each_stream_is_spread_over_the_members(api: Api, make_stream: MakeStream) -> None:
    """Two members, two streams of three partitions: neither has all of a busy stream."""
    streams, group = [make_stream(partitions=3).name for _ in range(2)], unique_name("g")
    for consumer in ("c1", "c2"):
        api.JoinConsumerGroup(groupId=group, consumerId=consumer, streams=streams)
    one, two = (assignments(api, group, consumer) for consumer in ("c1", "c2"))
    for stream in streams:
        assert sorted(map(len, (one[stream], two[stream]))) == [1, 2]
        assert sorted(one[stream] + two[stream]) == [0, 1, 2]
    assert sum(map(len, one.values())) == sum(map(len, two.values())) == 3


def test_members_of_different_streams_come_and_go(api: Api, make_stream: MakeStream) -> None:
    foo, bar, group = make_stream(partitions=2), make_stream(partitions=2), unique_name("g")
    api.JoinConsumerGroup(groupId=group, consumerId="c1", streams=[foo.name, bar.name])
    assert assignments(api, group, "c1") == {foo.name: [0, 1], bar.name: [0, 1]}
    joined = api.JoinConsumerGroup(groupId=group, consumerId="c2", streams=[foo.name])
    assert joined.epoch > 0
    assert assignments(api, group, "c2") == {foo.name: [1]}
    assert assignments(api, group, "c1") == {foo.name: [0], bar.name: [0, 1]}
    api.LeaveConsumerGroup(groupId=group, consumerId="c2")
    assert group_metadata(api, group).epoch > joined.epoch
    assert assignments(api, group, "c1") == {foo.name: [0, 1], bar.name: [0, 1]}


def test_partitions_are_shared_evenly_and_members_keep_what_they_have(api: Api, make_stream: MakeStream) -> None:
    stream, group = make_stream(partitions=5), unique_name("g")
    for consumer in ("c", "a", "b"):
        api.JoinConsumerGroup(groupId=group, consumerId=consumer, streams=[stream.name])
    shares = [assignments(api, group, consumer)[stream.name] for consumer in "abc"]
    assert [len(share) for share in shares] == [2, 1, 2]
    assert sorted(number for share in shares for number in share) == [0, 1, 2, 3, 4]


def test_a_member_without_a_partition_is_a_member_all_the_same(api: Api, make_stream: MakeStream) -> None:
    stream, group = make_stream(), unique_name("g")
    for consumer in ("a", "b"):
        api.JoinConsumerGroup(groupId=group, consumerId=consumer, streams=[stream.name])
    assert assignments(api, group, "a") == {stream.name: [0]}
    assert not any(assignments(api, group, "b").values())


@pytest.mark.parametrize(
    "fields",
    [
        {"groupId": "", "consumerId": "c", "streams": ["s"]},
        {"groupId": "g", "consumerId": "", "streams": ["s"]},
        {"groupId": "g", "consumerId": "c", "streams": []},
    ],
)
def test_joining_needs_a_group_a_consumer_and_a_stream(api: Api, fields: dict[str, Any]) -> None:
    with refused(Status.INVALID_ARGUMENT):
        api.JoinConsumerGroup(**fields)


def test_joining_twice_or_for_an_unknown_stream_is_refused(api: Api, make_stream: MakeStream) -> None:
    stream, group = make_stream(), unique_name("g")
    with refused(Status.FAILED_PRECONDITION):
        api.JoinConsumerGroup(groupId=group, consumerId="c", streams=["never-was"])
    assert group_metadata(api, group).error == pb.ConsumerGroupMetadata.UNKNOWN_GROUP
    api.JoinConsumerGroup(groupId=group, consumerId="c", streams=[stream.name])
    with refused(Status.FAILED_PRECONDITION):
        api.JoinConsumerGroup(groupId=group, consumerId="c", streams=[stream.name])
    with refused(Status.FAILED_PRECONDITION):
        api.JoinConsumerGroup(groupId=group, consumerId="d", streams=[stream.name, "never-was"])
    assert group_metadata(api, group).epoch == 0


def test_leaving_what_one_is_not_in_is_refused(api: Api, make_stream: MakeStream) -> None:
    stream, group = make_stream(), unique_name("g")
    with refused(Status.NOT_FOUND):
        api.LeaveConsumerGroup(groupId=group, consumerId="c")
    api.JoinConsumerGroup(groupId=group, consumerId="c", streams=[stream.name])
    with refused(Status.FAILED_PRECONDITION):
        api.LeaveConsumerGroup(groupId=group, consumerId="d")


def test_the_last_member_takes_the_group_with_it(api: Api, make_stream: MakeStream) -> None:
    stream, group = make_stream(), unique_name("g")
    api.JoinConsumerGroup(groupId=group, consumerId="c", streams=[stream.name])
    api.LeaveConsumerGroup(groupId=group, consumerId="c")
    assert group_metadata(api, group).error == pb.ConsumerGroupMetadata.UNKNOWN_GROUP
    with refused(Status.NOT_FOUND):
        api.FetchConsumerGroupAssignments(groupId=group, consumerId="c", epoch=0)
    assert api.JoinConsumerGroup(groupId=group, consumerId="c", streams=[stream.name]).epoch == 0


def test_assignments_are_for_members_and_an_older_epoch_gets_the_present_ones(
    api: Api, make_stream: MakeStream
) -> None:
    stream, group = make_stream(), unique_name("g")
    with refused(Status.NOT_FOUND):
        api.FetchConsumerGroupAssignments(groupId=group, consumerId="c", epoch=0)
    api.JoinConsumerGroup(groupId=group, consumerId="c", streams=[stream.name])
    for consumer, epoch in (("c", 1), ("c", 2**64 - 1), ("d", 0)):
        with refused(Status.FAILED_PRECONDITION):
            api.FetchConsumerGroupAssignments(groupId=group, consumerId=consumer, epoch=epoch)
    api.JoinConsumerGroup(groupId=group, consumerId="d", streams=[stream.name])
    answer = api.FetchConsumerGroupAssignments(groupId=group, consumerId="c", epoch=0)
    assert answer.epoch == group_metadata(api, group).epoch > 0
    assert [list(one.partitions) for one in answer.assignments] == [[0]]


def test_deleting_a_stream_takes_it_from_the_members(api: Api, make_stream: MakeStream) -> None:
    kept, gone, group = make_stream(partitions=2), make_stream(partitions=2), unique_name("g")
    api.JoinConsumerGroup(groupId=group, consumerId="a", streams=[kept.name, gone.name])
    api.JoinConsumerGroup(groupId=group, consumerId="b", streams=[kept.name])
    before = group_metadata(api, group).epoch
    api.DeleteStream(name=gone.name)
    assert group_metadata(api, group).epoch > before
    found = {consumer: assignments(api, group, consumer) for consumer in "ab"}
    assert all(gone.name not in one for one in found.values())
    assert sorted(found["a"].get(kept.name, []) + found["b"].get(kept.name, [])) == [0, 1]
    assert len(found["a"].get(kept.name, [])) == 1


@pytest.mark.parametrize("missing", ["groupId", "consumerId", "coordinator"])
def test_a_report_needs_a_group_a_consumer_and_a_coordinator(api: Api, missing: str) -> None:
    report = {"groupId": "g", "consumerId": "c", "coordinator": "b", missing: ""}
    with refused(Status.INVALID_ARGUMENT):
        api.ReportConsumerGroupCoordinator(**report, epoch=0)


def test_a_report_that_does_not_fit_is_refused(api: Api, make_stream: MakeStream) -> None:
    stream, group = make_stream(), unique_name("g")
    coordinator = api.JoinConsumerGroup(groupId=group, consumerId="c", streams=[stream.name]).coordinator
    right = {"groupId": group, "consumerId": "c", "coordinator": coordinator, "epoch": 0}
    for wrong in ({"groupId": "never-was"}, {"coordinator": "another"}, {"epoch": 1}, {"consumerId": "d"}):
        with refused(Status.FAILED_PRECONDITION):
            api.ReportConsumerGroupCoordinator(**{**right, **wrong})


def test_without_another_broker_a_coordinator_cannot_be_replaced(api: Api, make_stream: MakeStream) -> None:
    stream, group = make_stream(), unique_name("g")
    coordinator = api.JoinConsumerGroup(groupId=group, consumerId="c", streams=[stream.name]).coordinator
    with refused(Status.FAILED_PRECONDITION):
        api.ReportConsumerGroupCoordinator(groupId=group, consumerId="c", coordinator=coordinator, epoch=0)
    assert group_metadata(api, group).coordinator == coordinator


def test_a_minority_of_reports_is_taken_down_and_changes_nothing(api: Api, make_stream: MakeStream) -> None:
    stream, group = make_stream(), unique_name("g")
    for consumer in "abc":
        api.JoinConsumerGroup(groupId=group, consumerId=consumer, streams=[stream.name])
    found = group_metadata(api, group)
    for _ in range(3):
        api.ReportConsumerGroupCoordinator(
            groupId=group, consumerId="a", coordinator=found.coordinator, epoch=found.epoch
        )
    assert group_metadata(api, group) == found


class StoodStill(Exception):
    """Somebody did, for longer than a member may be silent: nobody can tell who is put out then."""


class Alive:
    """A member that gives signs of life, and knows how long it has been silent."""

    SILENCE_SECONDS_MAX = 4.0

    def __init__(self, api: Api, group: str) -> None:
        self._api, self._group = api, group
        self._last = time.monotonic()
        joined = api.JoinConsumerGroup(groupId=group, consumerId="alive", streams=["s"])
        assert (joined.consumerTimeout, joined.coordinatorTimeout) == (4_000_000_000, 5_000_000_000)

    def has(self, partitions: list[int]) -> bool:
        """The group may move on between the question for its epoch and the one with it: then the answer has another epoch."""
        asked, found = time.monotonic(), None
        with contextlib.suppress(grpc.RpcError, MovedOn):
            found = assignments(self._api, self._group, "alive")
        if time.monotonic() - self._last > 0.9 * self.SILENCE_SECONDS_MAX:
            raise StoodStill
        if found is not None:
            self._last = asked
        return found == {"s": partitions}


def test_a_silent_member_is_removed_and_one_that_asks_stays(start_broker: StartBroker) -> None:
    api = start_broker({"groups.consumer.timeout": "4s", "groups.coordinator.timeout": "5s"}).api()
    api.CreateStream(name="s", subject="s", partitions=2)

    def watched(group: str) -> bool:
        try:
            alive = Alive(api, group)
            api.JoinConsumerGroup(groupId=group, consumerId="silent", streams=["s"])
            assert alive.has([0])
            joined_at = time.monotonic()
            eventually(lambda: alive.has([0, 1]), "the silent member's partition is free")
            asked = {"groupId": group, "consumerId": "silent", "epoch": group_metadata(api, group).epoch}
            answer = api.future("FetchConsumerGroupAssignments", **asked).code()
            assert alive.has([0, 1])
            assert answer is Status.FAILED_PRECONDITION
            while time.monotonic() < joined_at + 5:  # longer than it may be silent
                assert alive.has([0, 1])
                time.sleep(0.05)
        except StoodStill:
            return False
        return True

    groups: list[str] = []

    def watched_one() -> bool:
        groups.append(unique_name("g"))
        return watched(groups[-1])

    eventually(watched_one, "a member was watched without a pause")
    eventually(
        lambda: group_metadata(api, groups[-1]).error == pb.ConsumerGroupMetadata.UNKNOWN_GROUP,
        "the group is gone with its last member",
    )
    api.close()


def test_groups_survive_a_kill_and_their_members_get_a_fresh_chance(start_broker: StartBroker) -> None:
    broker = start_broker()
    api = broker.api()
    api.CreateStream(name="s", subject="s", partitions=4)
    for consumer in ("a", "b"):
        api.JoinConsumerGroup(groupId="g", consumerId=consumer, streams=["s"])
    before = {consumer: assignments(api, "g", consumer) for consumer in ("a", "b")}
    epoch = group_metadata(api, "g").epoch
    api.close()
    broker.restart()
    api = broker.api()
    assert group_metadata(api, "g").epoch == epoch
    assert {consumer: assignments(api, "g", consumer) for consumer in ("a", "b")} == before
    api.close()
    broker.config["groups.consumer.timeout"] = "500ms"  # only now: who is slow is not to be put out before
    broker.restart()
    api = broker.api()
    eventually(
        lambda: group_metadata(api, "g").error == pb.ConsumerGroupMetadata.UNKNOWN_GROUP,
        "members that are silent after the restart are removed too",
    )
    api.close()
