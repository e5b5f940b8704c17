"""Consumer groups: a client that is no member takes no partition from one that is, and joins cost little."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.api_client import Api, Status, pb, refused
from tests.support.broker_fixtures import MakeStream, StartBroker, unique_name
from tests.support.guarded_broker import PREFIX_MODEL, Policed

FORGED: Final = 2**64 - 1


def consumer(group: str, name: str, epoch: int) -> dict[str, Any]:
    return {"groupId": group, "consumerId": name, "groupEpoch": epoch}


@pytest.mark.parametrize("name", ["mallory", "a"])
def test_a_forged_epoch_evicts_no_consumer(api: Api, make_stream: MakeStream, name: str) -> None:
    stream, group = make_stream(), unique_name("g")
    joined = api.JoinConsumerGroup(groupId=group, consumerId="a", streams=[stream.name])
    reader = api.subscribe(stream.name, consumer=consumer(group, "a", joined.epoch))
    for epoch in (FORGED, joined.epoch + 1):
        forged = api.open_subscription(stream.name, consumer=consumer(group, name, epoch))
        forged.expect_end(Status.FAILED_PRECONDITION, "epoch")
    api.publish(stream.name, b"x")
    assert reader.next().value == b"x"
    reader.cancel()


def test_a_consumer_that_is_no_member_evicts_none_with_the_right_epoch(api: Api, make_stream: MakeStream) -> None:
    stream, group = make_stream(), unique_name("g")
    joined = api.JoinConsumerGroup(groupId=group, consumerId="a", streams=[stream.name])
    reader = api.subscribe(stream.name, consumer=consumer(group, "a", joined.epoch))
    stranger = api.open_subscription(stream.name, consumer=consumer(group, "mallory", joined.epoch))
    stranger.expect_end(Status.FAILED_PRECONDITION, "mallory is not a member")
    api.publish(stream.name, b"x")
    assert reader.next().value == b"x"
    reader.cancel()


def test_a_reader_that_came_before_the_group_gives_way_to_its_member(api: Api, make_stream: MakeStream) -> None:
    stream, group = make_stream(), unique_name("g")
    squatter = api.subscribe(stream.name, consumer=consumer(group, "mallory", FORGED))
    joined = api.JoinConsumerGroup(groupId=group, consumerId="a", streams=[stream.name])
    reader = api.subscribe(stream.name, consumer=consumer(group, "a", joined.epoch))
    assert squatter.end()[0] is Status.OK
    api.publish(stream.name, b"x")
    assert reader.next().value == b"x"
    reader.cancel()


def test_a_member_with_the_next_epoch_still_takes_over(api: Api, make_stream: MakeStream) -> None:
    stream, group = make_stream(), unique_name("g")
    first = api.JoinConsumerGroup(groupId=group, consumerId="b", streams=[stream.name])
    old = api.subscribe(stream.name, consumer=consumer(group, "b", first.epoch))
    second = api.JoinConsumerGroup(groupId=group, consumerId="a", streams=[stream.name])
    new = api.subscribe(stream.name, consumer=consumer(group, "a", second.epoch))
    assert old.end()[0] is Status.OK
    api.open_subscription(stream.name, consumer=consumer(group, "b", first.epoch)).expect_end(
        Status.FAILED_PRECONDITION, "epoch"
    )
    new.cancel()


def test_the_name_of_a_member_is_not_enough(start_broker: StartBroker, tmp_path: Path) -> None:
    """A client that may read the stream and knows the group's members is still none of them."""
    lines = ["admin, *, *", "mallory, s, Subscribe", "mallory, *, FetchMetadata"]
    policed = Policed(start_broker, tmp_path / "policed", PREFIX_MODEL, lines)
    admin, mallory = policed.admin_api, policed.api("mallory")
    admin.CreateStream(name="s", subject="s")
    joined = admin.JoinConsumerGroup(groupId="g", consumerId="a", streams=["s"])
    reader = admin.subscribe("s", consumer=consumer("g", "a", joined.epoch))
    forged = mallory.open_subscription("s", consumer=consumer("g", "a", joined.epoch))
    forged.expect_end(Status.PERMISSION_DENIED, "FetchConsumerGroupAssignments on resource g")
    admin.publish("s", b"x")
    assert reader.next().value == b"x"
    mallory.close()
    admin.close()


def test_joins_of_a_wide_group_do_not_hold_up_other_clients(api: Api, make_stream: MakeStream) -> None:
    wide, narrow, group = make_stream(partitions=400), make_stream(), unique_name("g")
    joins = [
        api.future("JoinConsumerGroup", groupId=group, consumerId=f"c{number}", streams=[wide.name, narrow.name])
        for number in range(100)
    ]
    api.publish(narrow.name, b"x")
    assert {join.code() for join in joins} == {Status.OK}
    (found,) = api.FetchMetadata(groups=[group]).groupMetadata
    assert found.epoch > 0


def test_a_join_names_each_stream_once(api: Api, make_stream: MakeStream) -> None:
    stream, group = make_stream(), unique_name("g")
    joined = api.JoinConsumerGroup(groupId=group, consumerId="a", streams=[stream.name] * 5_000)
    found = api.FetchConsumerGroupAssignments(groupId=group, consumerId="a", epoch=joined.epoch)
    assert [(one.stream, list(one.partitions)) for one in found.assignments] == [(stream.name, [0])]


# ── ids ──────────────────────────────────────────────────────────────────────────────────────────

FAULTY: Final = ("x" * 257, "x" * 200_000, "ü" * 129, "a\nb", "a\x1b[2J", "a\0", "\u2028", "a\x7f", "\u202ex")


@pytest.mark.parametrize("text", FAULTY, ids=range(len(FAULTY)))
def test_ids_are_short_and_printable(api: Api, make_stream: MakeStream, text: str) -> None:
    stream, group = make_stream(), unique_name("g")
    calls: list[tuple[str, dict[str, Any]]] = [
        ("SetCursor", {"stream": stream.name, "cursorId": text, "offset": 1}),
        ("SetCursor", {"stream": text, "cursorId": "c", "offset": 1}),
        ("JoinConsumerGroup", {"groupId": text, "consumerId": "c", "streams": [stream.name]}),
        ("JoinConsumerGroup", {"groupId": group, "consumerId": text, "streams": [stream.name]}),
        ("LeaveConsumerGroup", {"groupId": text, "consumerId": "c"}),
        ("LeaveConsumerGroup", {"groupId": group, "consumerId": text}),
        ("ReportConsumerGroupCoordinator", {"groupId": text, "consumerId": "c", "coordinator": "b"}),
        ("ReportConsumerGroupCoordinator", {"groupId": group, "consumerId": "c", "coordinator": text}),
    ]
    for method, fields in calls:
        with refused(Status.INVALID_ARGUMENT, " is invalid: it "):
            getattr(api, method)(**fields)
    for given in (consumer(text, "c", 0), consumer(group, text, 0)):
        api.open_subscription(stream.name, consumer=given).expect_end(Status.INVALID_ARGUMENT, " is invalid: it ")
    (found,) = api.FetchMetadata(groups=[group]).groupMetadata
    assert found.error == pb.ConsumerGroupMetadata.UNKNOWN_GROUP


def test_the_longest_ids_work_everywhere(api: Api, make_stream: MakeStream) -> None:
    stream, group = make_stream(), unique_name("g").ljust(256, "g")
    joined = api.JoinConsumerGroup(groupId=group, consumerId="c" * 256, streams=[stream.name])
    api.subscribe(stream.name, consumer=consumer(group, "c" * 256, joined.epoch)).cancel()
    for cursor in (group, f"__group:{group}", f"__hold:{group}"):
        api.SetCursor(stream=stream.name, partition=0, cursorId=cursor, offset=7)
        assert api.FetchCursor(stream=stream.name, partition=0, cursorId=cursor).offset == 7
    api.LeaveConsumerGroup(groupId=group, consumerId="c" * 256)
