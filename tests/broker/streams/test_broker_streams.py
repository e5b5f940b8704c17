"""CreateStream, DeleteStream and what FetchMetadata says about it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.support.api_client import Api, Status, pb, refused
from tests.support.broker_fixtures import MakeStream, StartBroker, unique_name
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import eventually


def test_a_stream_is_in_the_metadata_as_soon_as_it_was_created(api: Api) -> None:
    name, before = unique_name("fresh"), time.time_ns()
    api.CreateStream(name=name, subject="a.b.c")
    found = api.stream(name)
    assert (found.name, found.subject, found.error) == (name, "a.b.c", pb.StreamMetadata.OK)
    assert before <= found.creationTimestamp <= time.time_ns()
    (broker,) = api.FetchMetadata().brokers
    (partition,) = found.partitions.values()
    assert (partition.id, partition.leader) == (0, broker.id)
    assert (list(partition.replicas), list(partition.isr)) == ([broker.id], [broker.id])
    assert (partition.highWatermark, partition.newestOffset) == (-1, -1)
    assert not partition.paused
    assert not partition.readonly


def test_three_partitions_are_numbered_and_counted(start_broker: StartBroker) -> None:
    api = start_broker().api()
    api.CreateStream(name="three", subject="three", partitions=3)
    assert sorted(api.stream("three").partitions) == [0, 1, 2]
    for number in range(3):
        assert api.partition("three", number).id == number
    (broker,) = api.FetchMetadata().brokers
    assert (broker.partitionCount, broker.leaderCount) == (3, 3)
    api.close()


@pytest.mark.parametrize("subject", ["same", "another"])
def test_a_second_stream_of_that_name_is_refused_whatever_its_subject(
    api: Api, make_stream: MakeStream, subject: str
) -> None:
    stream = make_stream()
    with refused(Status.ALREADY_EXISTS, "stream already exists"):
        api.CreateStream(name=stream.name, subject=stream.subject if subject == "same" else "another.subject")
    assert api.stream(stream.name).subject == stream.subject


def test_of_many_who_create_the_same_stream_at_once_one_succeeds(api: Api) -> None:
    name = unique_name("contested")
    calls = [api.future("CreateStream", name=name, subject=f"contested.{number}") for number in range(20)]
    codes = [call.code() for call in calls]
    assert codes.count(Status.OK) == 1, codes
    assert codes.count(Status.ALREADY_EXISTS) == 19, codes
    winner = [number for number, code in enumerate(codes) if code is Status.OK]
    assert api.stream(name).subject == f"contested.{winner[0]}"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"name": "", "subject": "x"}, "Name cannot be empty"),
        ({"name": "x", "subject": ""}, "Subject is invalid"),
        ({"name": "x", "subject": "with space"}, "Subject is invalid"),
        ({"name": "x", "subject": "with\ttab"}, "Subject is invalid"),
        ({"name": "x", "subject": "with\rreturn"}, "Subject is invalid"),
        ({"name": "x", "subject": "with\nline"}, "Subject is invalid"),
        ({"name": "x", "subject": "two..dots"}, "Subject is invalid"),
        ({"name": "x", "subject": ".leading"}, "Subject is invalid"),
        ({"name": "x", "subject": "trailing."}, "Subject is invalid"),
        ({"name": "__activity", "subject": "x"}, "Stream is reserved"),
        ({"name": "__cursors", "subject": "x"}, "Stream is reserved"),
        ({"name": "x", "subject": "x", "replicationFactor": 2}, ""),
        ({"name": "x", "subject": "x", "replicationFactor": -2}, ""),
        ({"name": "x", "subject": "x", "partitions": -1}, ""),
        ({"name": "x", "subject": "x", "partitions": -(2**31)}, ""),
        ({"name": "x", "subject": "x", "partitions": 2**31 - 1}, ""),
        ({"name": "a/b", "subject": "x"}, ""),
        ({"name": "..", "subject": "x"}, ""),
        ({"name": ".", "subject": "x"}, ""),
        ({"name": "a*", "subject": "x"}, ""),
        ({"name": ">", "subject": "x"}, ""),
        ({"name": "a b", "subject": "x"}, ""),
        ({"name": "a\0b", "subject": "x"}, ""),
        ({"name": "a\nb", "subject": "x"}, ""),
        ({"name": "x" * 10_000, "subject": "x"}, ""),
        ({"name": "x", "subject": "x" * 10_000}, ""),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_and_changes_nothing(
    api: Api, fields: dict[str, object], text: str
) -> None:
    with refused(Status.INVALID_ARGUMENT, text):
        api.CreateStream(**fields)
    assert "x" not in [stream.name for stream in api.FetchMetadata().streamMetadata]


@pytest.mark.parametrize("name", ["events.DGT", "ems.helb.sensors", "with-dash_and_underscore", "größe", "UPPER"])
def test_names_that_people_use_are_accepted(api: Api, name: str) -> None:
    api.CreateStream(name=name, subject=unique_name("names"))
    assert api.publish(name, b"x").stream == name
    assert [message.stream for message in api.read(name)] == [name]
    api.DeleteStream(name=name)


def test_minus_one_replicates_to_every_member(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream(replicationFactor=-1)
    assert len(api.stream(stream.name).partitions[0].replicas) == 1


def test_every_setting_of_a_stream_can_be_given(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream(
        group="workers",
        replicationFactor=1,
        partitions=2,
        retentionMaxBytes=1 << 30,
        retentionMaxMessages=1_000_000,
        retentionMaxAge=3_600_000,
        cleanerInterval=60_000,
        segmentMaxBytes=1 << 20,
        segmentMaxAge=60_000,
        compactMaxGoroutines=2,
        compactEnabled=True,
        autoPauseTime=0,
        autoPauseDisableIfSubscribers=True,
        minIsr=1,
        optimisticConcurrencyControl=False,
        encryption=False,
    )
    assert api.publish(stream.name, b"x", partition=1, key=b"k").offset == 0


def test_what_is_published_right_after_create_is_kept(api: Api, make_stream: MakeStream) -> None:
    for _ in range(20):
        stream = make_stream(partitions=2)
        assert api.publish(stream.name, b"a", partition=1).offset == 0
        assert [message.value for message in api.read(stream.name, 1)] == [b"a"]


# ── delete ───────────────────────────────────────────────────────────────────────────────────────


def folders_of(broker: BrokerProcess, name: str) -> list[Path]:
    """Folders may go while they are looked at: `os.walk` does not mind."""
    return [Path(root, one) for root, folders, _ in os.walk(broker.data) for one in folders if name in one]


def test_deleting_takes_metadata_and_data_away(api: Api, broker: BrokerProcess, make_stream: MakeStream) -> None:
    stream = make_stream(partitions=2)
    api.publish(stream.name, b"x")
    assert folders_of(broker, stream.name)
    api.DeleteStream(name=stream.name)
    assert api.stream(stream.name).error == pb.StreamMetadata.UNKNOWN_STREAM
    assert stream.name not in [one.name for one in api.FetchMetadata().streamMetadata]
    with refused(Status.NOT_FOUND):
        api.publish(stream.name, b"x")
    eventually(lambda: not folders_of(broker, stream.name), "the folder of the deleted stream is gone")


def test_deleting_an_unknown_stream_is_not_found(api: Api) -> None:
    with refused(Status.NOT_FOUND, "stream does not exist"):
        api.DeleteStream(name="never-was")


@pytest.mark.parametrize("name", ["__cursors", "__activity"])
def test_reserved_streams_cannot_be_deleted(api: Api, name: str) -> None:
    with refused(Status.INVALID_ARGUMENT, "Stream is reserved"):
        api.DeleteStream(name=name)


def test_a_name_can_be_used_again_and_the_new_stream_is_empty(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    for _ in range(5):
        assert api.publish(stream.name, b"x").offset == 0
        api.DeleteStream(name=stream.name)
        api.CreateStream(name=stream.name, subject=stream.subject)
        assert api.partition(stream.name).newestOffset == -1
    api.publish(stream.name, b"last")
    assert [message.value for message in api.read(stream.name)] == [b"last"]


# ── metadata ─────────────────────────────────────────────────────────────────────────────────────


def test_metadata_comes_in_the_order_asked_for_and_unknown_names_are_no_error(
    api: Api, make_stream: MakeStream
) -> None:
    first, second = make_stream(), make_stream()
    found = api.FetchMetadata(streams=[second.name, "never-was", first.name]).streamMetadata
    assert [one.name for one in found] == [second.name, "never-was", first.name]
    assert [one.error for one in found] == [
        pb.StreamMetadata.OK,
        pb.StreamMetadata.UNKNOWN_STREAM,
        pb.StreamMetadata.OK,
    ]
    assert not found[1].partitions


def test_asking_for_no_stream_means_all_and_for_no_group_none(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    api.JoinConsumerGroup(groupId=unique_name("group"), consumerId="c", streams=[stream.name])
    # A new broker makes the stream of cursors at once, but not before it serves.
    eventually(lambda: "__cursors" in [one.name for one in api.FetchMetadata().streamMetadata], "cursors have a stream")
    found = api.FetchMetadata()
    assert {stream.name, "__cursors"} <= {one.name for one in found.streamMetadata}
    assert not found.groupMetadata


def test_unknown_groups_are_no_error(api: Api) -> None:
    (found,) = api.FetchMetadata(groups=["never-was"]).groupMetadata
    assert (found.groupId, found.error) == ("never-was", pb.ConsumerGroupMetadata.UNKNOWN_GROUP)


def test_the_broker_is_told_under_the_address_it_listens_on(api: Api, broker: BrokerProcess) -> None:
    (found,) = api.FetchMetadata().brokers
    assert f"{found.host}:{found.port}" == broker.address
    assert found.id


def test_host_and_port_are_what_clients_are_told(start_broker: StartBroker) -> None:
    api = start_broker({"host": "localhost", "clustering.server.id": "the-one"}).api()
    (found,) = api.FetchMetadata().brokers
    assert (found.id, found.host) == ("the-one", "localhost")
    assert api.address.endswith(f":{found.port}")
    api.close()


def test_metadata_without_a_deadline_is_answered(api: Api) -> None:
    assert api.FetchMetadata(timeout=None).brokers


def test_without_a_metadata_leader_creating_fails_with_the_words_that_clients_know(start_broker: StartBroker) -> None:
    """gufo retries on exactly this status and text."""
    broker = start_broker(seed=False, arguments=["--raft-bootstrap-peers", "somebody-who-never-comes"])
    api = broker.api()
    with refused(Status.INTERNAL) as why:
        api.CreateStream(name="x", subject="x", timeout=None)
    assert why.text == "no known metadata leader"
    with refused(Status.INTERNAL) as why:
        api.DeleteStream(name="x", timeout=None)
    assert why.text == "no known metadata leader"
    api.close()


# ── partition metadata ───────────────────────────────────────────────────────────────────────────


def test_partition_metadata_of_what_is_not_there_is_not_found(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    for name, number in (("never-was", 0), (stream.name, 1), (stream.name, -1)):
        with refused(Status.NOT_FOUND, "partition not found"):
            api.partition(name, number)


def test_partition_metadata_follows_the_log(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream(partitions=2)
    for number in range(3):
        api.publish(stream.name, b"x", partition=1, ackPolicy=pb.ALL)
        found = api.partition(stream.name, 1)
        assert (found.newestOffset, found.highWatermark) == (number, number)
    assert api.partition(stream.name, 0).newestOffset == -1


def test_times_of_messages_begin_at_zero_and_first_is_latest_after_one(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    times = api.partition(stream.name).messagesReceivedTimestamps
    assert (times.firstTimestamp, times.latestTimestamp) == (0, 0)
    first = api.publish(stream.name, b"x").receptionTimestamp
    times = api.partition(stream.name).messagesReceivedTimestamps
    assert times.firstTimestamp == times.latestTimestamp
    assert abs(times.firstTimestamp - first) < 60_000_000_000
    api.publish(stream.name, b"y")
    later = api.partition(stream.name).messagesReceivedTimestamps
    assert later.firstTimestamp == times.firstTimestamp
    assert later.latestTimestamp > later.firstTimestamp
