"""PublishAsync: many messages, an answer for each, one stream."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from bascule import limits
from tests.support import envelopes
from tests.support.api_client import Api, Status, pb, refused
from tests.support.broker_fixtures import MakeStream, StartBroker, unique_name
from tests.support.cluster import LONG_TIMEOUTS, Cluster
from tests.support.nats_client import NatsClient
from tests.support.nats_server import NatsServer
from tests.support.waiting import eventually

ErrorCode = pb.PublishAsyncError


def answer_of(api: Api, stream: str, **fields: Any) -> Any:
    """The answer to one message; the session goes on behind it."""
    session = api.publish_async()
    session.send(stream, b"x", correlationId="c", **fields)
    answer = session.next()
    assert session.finish() == []
    return answer


def failure_of(api: Api, stream: str, **fields: Any) -> Any:
    answer = answer_of(api, stream, **fields)
    assert answer.HasField("ack"), "clients older than asyncError look into it"
    assert answer.ack.correlationId == ""
    assert answer.correlationId == "c"
    assert answer.HasField("asyncError")
    return answer.asyncError


def test_an_ack_says_everything(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream(partitions=2)
    for policy in (pb.LEADER, pb.ALL):
        before = time.time_ns()
        answer = answer_of(api, stream.name, partition=1, ackPolicy=policy)
        ack = answer.ack
        assert answer.correlationId == ack.correlationId == "c"
        assert not answer.HasField("asyncError")
        assert (ack.stream, ack.partitionSubject, ack.msgSubject) == (
            stream.name,
            stream.subject,
            f"{stream.subject}.1",
        )
        assert (ack.offset, ack.ackPolicy, ack.ackError) == (policy, policy, pb.Ack.OK)
        assert ack.ackInbox
        assert before <= ack.receptionTimestamp <= ack.commitTimestamp <= time.time_ns()
    assert [message.timestamp for message in api.read(stream.name, 1)][-1] == ack.receptionTimestamp


def test_a_message_without_a_stream_is_refused(api: Api) -> None:
    assert failure_of(api, "").code == ErrorCode.BAD_REQUEST


def test_an_unknown_stream_or_partition_is_not_found(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    assert failure_of(api, "never-was").code == ErrorCode.NOT_FOUND
    assert failure_of(api, stream.name, partition=1).code == ErrorCode.NOT_FOUND
    assert failure_of(api, stream.name, partition=-1).code == ErrorCode.NOT_FOUND


def test_a_readonly_partition_is_told(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    api.SetStreamReadonly(name=stream.name, readonly=True)
    assert failure_of(api, stream.name).code == ErrorCode.READONLY


def test_a_message_that_is_too_large_is_a_bad_request(start_broker: StartBroker) -> None:
    api = start_broker({"clustering.replication.max.bytes": 1024}).api()
    api.CreateStream(name="s", subject="s")
    failure = failure_of(api, "s", key=b"k" * 1025)
    assert (failure.code, failure.message) == (ErrorCode.BAD_REQUEST, "message exceeds max replication size")
    api.close()


def test_large_keys_and_many_headers_are_stored(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    headers = {f"h{number}": b"v" for number in range(2_000)}
    assert api.publish(stream.name, b"x", key=b"k" * 300_000).offset == 0
    assert api.publish(stream.name, b"x", headers=headers).offset == 1
    first, second = api.read(stream.name)
    assert first.key == b"k" * 300_000
    assert headers.items() <= dict(second.headers).items()


def test_a_refused_message_names_the_limits_of_its_parts(api: Api, make_stream: MakeStream) -> None:
    failure = failure_of(api, make_stream().name, headers={f"h{number}": b"" for number in range(5_000)})
    assert failure.code == ErrorCode.BAD_REQUEST
    for limit in (
        f"{limits.RECORD_KEY_BYTES_MAX} bytes of key",
        f"{limits.RECORD_HEADERS_MAX} headers",
        f"{limits.RECORD_HEADERS_BYTES_MAX} bytes of headers",
    ):
        assert limit in failure.message


def test_errors_do_not_end_the_session(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    session = api.publish_async()
    for number in range(100):
        session.send("never-was", b"x", correlationId=f"bad {number}")
        session.send(stream.name, b"x", correlationId=f"good {number}")
    answers = session.take(200)
    failed = [answer.correlationId for answer in answers if answer.HasField("asyncError")]
    stored = [answer.ack.correlationId for answer in answers if not answer.HasField("asyncError")]
    assert failed == [f"bad {number}" for number in range(100)]
    assert stored == [f"good {number}" for number in range(100)]
    assert session.finish() == []


def test_errors_come_although_no_ack_was_wanted(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    session = api.publish_async()
    session.send(stream.name, b"x", ackPolicy=pb.NONE, correlationId="fine")
    session.send("never-was", b"x", ackPolicy=pb.NONE, correlationId="bad")
    answer = session.next()
    assert (answer.correlationId, answer.asyncError.code) == ("bad", ErrorCode.NOT_FOUND)
    assert session.finish() == []
    eventually(lambda: api.partition(stream.name).newestOffset == 0, "the message arrived")
    assert [message.value for message in api.read(stream.name)] == [b"x"]


def test_policy_none_has_no_answer(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    session = api.publish_async()
    for number in range(100):
        session.send(stream.name, b"%d" % number, ackPolicy=pb.NONE)
    session.send(stream.name, b"last", correlationId="last")
    assert session.next().ack.offset == 100
    assert session.finish() == []


@pytest.mark.parametrize("policy", [pb.LEADER, pb.ALL])
def test_messages_of_a_session_keep_their_order(api: Api, make_stream: MakeStream, policy: int) -> None:
    stream, count = make_stream(partitions=3), 3000
    session = api.publish_async()
    for number in range(count):
        session.send(stream.name, b"%d" % number, partition=number % 3, correlationId=str(number), ackPolicy=policy)
    acks = [answer.ack for answer in session.take(count)]
    assert session.finish() == []
    assert len({ack.correlationId for ack in acks}) == count
    for ack in acks:
        assert ack.offset == int(ack.correlationId) // 3
    for partition in range(3):
        values = [int(message.value) for message in api.read(stream.name, partition)]
        assert values == list(range(partition, count, 3))


def test_half_closing_waits_for_every_ack(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    for count in (1, 10, 2000):
        session = api.publish_async()
        for number in range(count):
            session.send(stream.name, b"x", correlationId=str(number), ackPolicy=pb.ALL)
        assert [answer.ack.correlationId for answer in session.finish()] == [str(number) for number in range(count)]


def test_half_closing_an_idle_session_ends_it_at_once(api: Api) -> None:
    """Twenty of them: each would wait five seconds for acks."""
    begun = time.monotonic()
    for _ in range(20):
        assert api.publish_async().finish() == []
    assert time.monotonic() - begun < 50


def test_half_closing_waits_five_seconds_for_acks_that_never_come(tmp_path: Path, nats_server: NatsServer) -> None:
    """Two in-sync replicas are required, and one of the two does nothing."""
    directory = tmp_path / unique_name("acks")
    with Cluster(directory, nats=nats_server, servers=("a", "b"), config=LONG_TIMEOUTS) as cluster:
        cluster.create_stream("two", factor=2, minIsr=2)
        (follower,) = cluster.followers_of("two")
        cluster.pause(follower)
        session = cluster.api(cluster.leader_of("two")).publish_async()
        session.send("two", b"x", ackPolicy=pb.ALL)
        begun = time.monotonic()
        assert session.finish() == []
        assert 3 < time.monotonic() - begun < 60


def test_the_same_correlation_id_may_be_used_for_all(api: Api, make_stream: MakeStream) -> None:
    """gufo counts answers and does not look at them."""
    stream = make_stream()
    session = api.publish_async()
    for number in range(10):
        session.send(stream.name, b"%d" % number, correlationId="same")
    answers = session.take(10)
    assert [answer.ack.offset for answer in answers] == list(range(10))
    assert {answer.correlationId for answer in answers} == {"same"}
    session.finish()


def test_an_empty_correlation_id_is_fine(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    session = api.publish_async()
    for _ in range(10):
        session.send(stream.name, b"x")
    assert [answer.ack.offset for answer in session.take(10)] == list(range(10))
    session.finish()


def test_an_inbox_of_the_client_is_overridden(api: Api, make_stream: MakeStream, nats: NatsClient) -> None:
    stream, inbox = make_stream(), unique_name("inbox")
    nats.subscribe(inbox)
    session = api.publish_async()
    session.send(stream.name, b"x", ackInbox=inbox)
    answer = session.next()
    assert answer.ack.offset == 0
    assert answer.ack.ackInbox != inbox
    assert nats.pending() == []
    session.finish()


def test_sessions_do_not_get_each_others_acks(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    sessions = [api.publish_async() for _ in range(10)]
    for number in range(100):
        for index, session in enumerate(sessions):
            session.send(stream.name, b"x", correlationId=f"{index}/{number}")
    for index, session in enumerate(sessions):
        expected = [f"{index}/{number}" for number in range(100)]
        assert [answer.ack.correlationId for answer in session.take(100)] == expected
        assert session.finish() == []
    assert api.partition(stream.name).newestOffset == 999


def test_cancelled_sessions_leave_what_they_published(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    for _ in range(20):
        session = api.publish_async()
        session.send(stream.name, b"x")
        session.next()
        session.send(stream.name, b"y")
        session.cancel()
    assert api.publish(stream.name, b"end").offset >= 20


def test_an_ack_forged_by_somebody_else_does_no_harm(api: Api, make_stream: MakeStream, nats: NatsClient) -> None:
    """The inbox of a session is a NATS subject: anybody may write to it."""
    stream = make_stream()
    session = api.publish_async()
    session.send(stream.name, b"x", correlationId="1")
    inbox = session.next().ack.ackInbox
    for garbage in (b"", b"garbage", envelopes.wrap(b"\xff\xff", kind=envelopes.ACK), envelopes.message(b"no ack")):
        nats.publish(inbox, garbage)
    session.send(stream.name, b"y", correlationId="2")
    answers = [session.next()]
    while answers[-1].correlationId != "2":
        answers.append(session.next())
    assert answers[-1].ack.offset == 1
    session.finish()


def test_everybody_on_the_subject_sees_a_session_too(api: Api, make_stream: MakeStream, nats: NatsClient) -> None:
    stream = make_stream()
    nats.subscribe(stream.subject)
    session = api.publish_async()
    session.send(stream.name, b"value", key=b"key")
    session.next()
    message = pb.Message.FromString(envelopes.unwrap(nats.next().payload, envelopes.PUBLISH))
    assert (message.key, message.value) == (b"key", b"value")
    session.finish()


def test_a_request_that_is_no_protobuf_ends_the_session_and_nothing_else(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    good = pb.PublishRequest(stream=stream.name, value=b"x").SerializeToString()
    call = api.channel.stream_stream("/proto.API/PublishAsync")(iter([good, b"\xff\xff\xff"]), timeout=30)
    with refused((Status.INTERNAL, Status.INVALID_ARGUMENT)):
        list(call)
    assert api.publish(stream.name, b"still here").offset >= 0


def test_messages_from_nothing_to_a_mebibyte_in_one_session(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    sizes = [0, 1, 100, 16_384, 65_535, 65_536, 500_000, 1_000_000, 0, 3, 1_000_000, 1]
    session = api.publish_async()
    for index, size in enumerate(sizes):
        session.send(stream.name, bytes([index]) * size, correlationId=str(index))
    assert [answer.ack.offset for answer in session.take(len(sizes))] == list(range(len(sizes)))
    session.finish()
    assert [message.value for message in api.read(stream.name)] == [
        bytes([index]) * size for index, size in enumerate(sizes)
    ]
