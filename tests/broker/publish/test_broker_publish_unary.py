"""Publish and PublishToSubject: one message, one answer."""

from __future__ import annotations

import time

import pytest

from tests.support import envelopes
from tests.support.api_client import Api, Status, pb, refused
from tests.support.broker_fixtures import MakeStream, StartBroker, unique_name
from tests.support.broker_process import BrokerProcess
from tests.support.nats_client import NatsClient
from tests.support.nats_server import NatsServer
from tests.support.raw_http2 import RawGrpc
from tests.support.waiting import eventually


def test_no_stream_is_refused(api: Api) -> None:
    with refused(Status.INVALID_ARGUMENT, "no stream provided"):
        api.Publish(value=b"x")


def test_an_unknown_stream_or_partition_is_not_found(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    for name, partition in (("never-was", 0), (stream.name, 1), (stream.name, -1)):
        for timeout in (30.0, None):
            with refused(Status.NOT_FOUND):
                api.Publish(stream=name, partition=partition, value=b"x", timeout=timeout)


@pytest.mark.parametrize("policy", [pb.LEADER, pb.ALL])
def test_with_a_deadline_there_is_an_ack_that_says_everything(api: Api, make_stream: MakeStream, policy: int) -> None:
    stream = make_stream(partitions=2)
    for offset in range(2):
        before = time.time_ns()
        answer = api.Publish(stream=stream.name, partition=1, value=b"x", ackPolicy=policy, correlationId=f"c{offset}")
        ack = answer.ack
        assert (ack.stream, ack.partitionSubject, ack.msgSubject) == (
            stream.name,
            stream.subject,
            f"{stream.subject}.1",
        )
        assert (ack.offset, ack.correlationId, ack.ackPolicy) == (offset, f"c{offset}", policy)
        assert before <= ack.receptionTimestamp <= ack.commitTimestamp <= time.time_ns()
        assert ack.ackError == pb.Ack.OK
        assert answer.correlationId == ""
        assert not answer.HasField("asyncError")


def test_an_all_ack_comes_when_everybody_can_read_the_message(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    for number in range(20):
        ack = api.publish(stream.name, b"%d" % number, ackPolicy=pb.ALL)
        assert api.partition(stream.name).highWatermark >= ack.offset


@pytest.mark.parametrize(("policy", "timeout"), [(pb.NONE, 30.0), (pb.NONE, None), (pb.LEADER, None), (pb.ALL, None)])
def test_without_a_deadline_or_with_policy_none_the_answer_has_no_ack(
    api: Api, make_stream: MakeStream, policy: int, timeout: float | None
) -> None:
    stream = make_stream()
    answer = api.Publish(stream=stream.name, value=b"x", ackPolicy=policy, timeout=timeout)
    assert not answer.HasField("ack")
    eventually(lambda: api.partition(stream.name).newestOffset == 0, "the message arrived")


@pytest.mark.parametrize("timeout", ["1n", "999n", "0m"])
def test_a_deadline_of_a_nanosecond_is_exceeded(broker: BrokerProcess, make_stream: MakeStream, timeout: str) -> None:
    """What Java sends; grpcio rounds its deadlines up."""
    request = pb.PublishRequest(stream=make_stream().name, value=b"x").SerializeToString()
    client = RawGrpc(broker.address)
    call = client.call("/proto.API/Publish", request, grpc_timeout=timeout)
    client.pump_until(lambda: call in client.ended)
    assert client.headers[call]["grpc-status"] == "4"
    client.close()


def test_ten_milliseconds_are_enough_for_an_ack(api: Api, make_stream: MakeStream) -> None:
    """What the tests of the Java client rely on. A busy machine may miss it often; a broker that lingers misses it always."""
    stream = make_stream()
    in_time = 0

    def ten_were() -> bool:
        nonlocal in_time
        begun = time.monotonic()
        api.publish(stream.name, b"x")
        in_time += time.monotonic() - begun < 0.01
        return in_time >= 10

    eventually(ten_were, "ten acks came in time")


def test_the_clients_own_inbox_gets_the_ack_too(api: Api, make_stream: MakeStream, nats: NatsClient) -> None:
    stream, inbox = make_stream(), unique_name("inbox")
    nats.subscribe(inbox)
    answer = api.Publish(stream=stream.name, value=b"x", ackInbox=inbox, correlationId="mine")
    ack = envelopes.ack_in(nats.next().payload)
    assert (ack.stream, ack.offset, ack.ackInbox, ack.correlationId) == (stream.name, 0, inbox, "mine")
    assert (answer.ack.offset, answer.ack.correlationId) == (0, "mine")


def test_the_clients_own_inbox_gets_the_ack_although_nobody_waits(
    api: Api, make_stream: MakeStream, nats: NatsClient
) -> None:
    stream, inbox = make_stream(), unique_name("inbox")
    nats.subscribe(inbox)
    api.Publish(stream=stream.name, value=b"x", ackInbox=inbox, timeout=None)
    assert envelopes.ack_in(nats.next().payload).offset == 0


def test_everybody_on_the_subject_sees_what_the_api_published(
    api: Api, make_stream: MakeStream, nats: NatsClient
) -> None:
    stream = make_stream(partitions=2)
    nats.subscribe(f"{stream.subject}.>")
    nats.subscribe(stream.subject)
    for partition, subject in ((0, stream.subject), (1, f"{stream.subject}.1")):
        api.publish(stream.name, b"value", partition=partition, key=b"key", headers={"h": b"1"})
        seen = nats.next()
        message = pb.Message.FromString(envelopes.unwrap(seen.payload, envelopes.PUBLISH))
        assert seen.subject == subject
        assert (message.key, message.value, dict(message.headers)) == (b"key", b"value", {"h": b"1"})


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 65_536, 1_000_000])
def test_values_of_all_sizes_are_themselves_again(api: Api, make_stream: MakeStream, size: int) -> None:
    stream = make_stream()
    value = (bytes(range(256)) * (size // 256 + 1))[:size]
    for key in (b"", b"k" * min(size, 1000)):
        api.publish(stream.name, value, key=key)
    found = api.read(stream.name)
    assert [message.value for message in found] == [value, value]
    assert found[1].key == b"k" * min(size, 1000)


def test_what_is_larger_than_can_be_replicated_is_refused(start_broker: StartBroker) -> None:
    api = start_broker({"clustering.replication.max.bytes": 1024}).api()
    api.CreateStream(name="s", subject="s")
    with refused(Status.INVALID_ARGUMENT):
        api.publish("s", b"x" * 1025)
    assert api.publish("s", b"x" * 512).offset == 0
    assert [len(message.value) for message in api.read("s")] == [512]
    api.close()


def test_one_mebibyte_is_the_limit(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    with refused(Status.INVALID_ARGUMENT):
        api.publish(stream.name, b"x" * (1 << 20))
    assert api.publish(stream.name, b"x" * ((1 << 20) - 1024)).offset == 0


def test_a_request_beyond_four_mebibytes_is_too_much_for_the_server(api: Api, make_stream: MakeStream) -> None:
    with refused(Status.RESOURCE_EXHAUSTED):
        api.publish(make_stream().name, b"x" * (4 << 20))


def test_requests_that_are_no_protobuf_are_refused_and_nobody_is_hurt(api: Api) -> None:
    for request in (b"\xff", b"\x0a\x7f", b"\x1a\x02\xff\xfe", b"\x00", b"\x0b", bytes(100)):
        with refused((Status.INTERNAL, Status.INVALID_ARGUMENT)):
            api.raw("Publish", request)
    assert api.FetchMetadata().brokers


def test_unknown_fields_are_tolerated_by_every_call(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    unknown = bytes.fromhex("cab80203616263") + bytes.fromhex("d0b80207") + bytes.fromhex("d9b8020102030405060708")
    answer = api.raw("Publish", pb.PublishRequest(stream=stream.name, value=b"x").SerializeToString() + unknown)
    assert pb.PublishResponse.FromString(answer).ack.offset == 0
    name = unique_name("unknown")
    api.raw("CreateStream", pb.CreateStreamRequest(name=name, subject=name).SerializeToString() + unknown)
    api.raw("FetchMetadata", unknown)
    api.raw("DeleteStream", unknown + pb.DeleteStreamRequest(name=name).SerializeToString())


def test_an_unknown_method_is_unimplemented(api: Api) -> None:
    for path in ("/proto.API/Nothing", "/nothing.at.All/Publish"):
        with refused(Status.UNIMPLEMENTED):
            api.channel.unary_unary(path)(b"", timeout=30)


def test_publishing_fails_at_once_while_nats_is_away_and_works_when_it_is_back(
    start_broker: StartBroker, nats_server: NatsServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    del nats_server  # this one has to die
    with NatsServer(tmp_path_factory.mktemp("own-nats")) as own:
        broker = start_broker(nats_url=own.url)
        api = broker.api()
        api.CreateStream(name="s", subject="s")
        assert api.publish("s", b"before").offset == 0
        own.stop()

        def fails() -> bool:
            call = api.future("Publish", stream="s", value=b"lost", timeout=10)
            return bool(call.code() is Status.UNKNOWN)

        eventually(fails, "publishing without NATS is refused")
        session = api.publish_async()
        session.send("s", b"lost", correlationId="c")
        answer = session.next()
        assert (answer.correlationId, answer.asyncError.code) == ("c", pb.PublishAsyncError.INTERNAL)
        own.start()

        def works() -> bool:
            session.send("s", b"after", correlationId="c")
            return not session.next().HasField("asyncError")

        eventually(works, "publishing works again")
        values = [message.value for message in api.read("s")]
        assert values[0] == b"before"
        assert set(values[1:]) <= {b"lost", b"after"}
        assert values[-1] == b"after"
        session.finish()
        api.close()


# ── PublishToSubject ─────────────────────────────────────────────────────────────────────────────


def test_a_plain_subscriber_gets_the_envelope(api: Api, nats: NatsClient) -> None:
    subject = unique_name("subject")
    nats.subscribe(subject)
    api.PublishToSubject(subject=subject, value=b"value", key=b"key", headers={"h": b"1"}, timeout=None)
    seen = nats.next()
    message = pb.Message.FromString(envelopes.unwrap(seen.payload, envelopes.PUBLISH))
    assert (message.value, message.key, dict(message.headers)) == (b"value", b"key", {"h": b"1"})


def test_the_first_ack_of_all_streams_is_the_answer(api: Api, make_stream: MakeStream) -> None:
    subject = unique_name("subject")
    streams = [make_stream(subject=subject) for _ in range(3)]
    ack = api.PublishToSubject(subject=subject, value=b"x", correlationId="c").ack
    assert ack.stream in [stream.name for stream in streams]
    assert (ack.offset, ack.correlationId, ack.msgSubject, ack.partitionSubject) == (0, "c", subject, subject)
    eventually(
        lambda: [api.partition(stream.name).newestOffset for stream in streams] == [0, 0, 0], "every stream took it"
    )
    for stream in streams:
        assert [message.value for message in api.read(stream.name)] == [b"x"]


def test_without_a_stream_the_deadline_passes(api: Api) -> None:
    begun = time.monotonic()
    with refused(Status.DEADLINE_EXCEEDED):
        api.PublishToSubject(subject=unique_name("nobody"), value=b"x", timeout=0.5)
    assert 0.4 < time.monotonic() - begun < 30


@pytest.mark.parametrize(("policy", "timeout"), [(pb.NONE, 30.0), (pb.LEADER, None)])
def test_without_a_deadline_or_with_policy_none_nobody_waits(api: Api, policy: int, timeout: float | None) -> None:
    answer = api.PublishToSubject(subject=unique_name("nobody"), value=b"x", ackPolicy=policy, timeout=timeout)
    assert not answer.HasField("ack")


def test_an_error_ack_is_handed_through(start_broker: StartBroker) -> None:
    api = start_broker({"clustering.replication.max.bytes": 1024}).api()
    api.CreateStream(name="s", subject="too.large")
    ack = api.PublishToSubject(subject="too.large", value=b"x" * 2000).ack
    assert (ack.ackError, ack.offset, ack.commitTimestamp) == (pb.Ack.TOO_LARGE, 0, 0)
    assert api.partition("s").newestOffset == -1
    api.close()


@pytest.mark.parametrize("subject", ["", "with space", "cr\r\nPUB x 1\r\ny", "a..b", "nul\0"])
def test_a_subject_that_would_break_the_nats_connection_does_not(
    api: Api, make_stream: MakeStream, nats: NatsClient, subject: str
) -> None:
    nats.subscribe("x")
    with refused((Status.INVALID_ARGUMENT, Status.UNKNOWN, Status.DEADLINE_EXCEEDED)):
        api.PublishToSubject(subject=subject, value=b"x", timeout=1)
    assert nats.pending() == []
    assert api.publish(make_stream().name, b"still here").offset == 0
