"""What arrives on a stream's NATS subject, from publishers that may know nothing of us."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.support import envelopes
from tests.support.api_client import Api, pb
from tests.support.broker_fixtures import MakeStream, StartBroker, Stream, unique_name
from tests.support.nats_client import NatsClient
from tests.support.waiting import eventually


def stored(api: Api, stream: Stream, count: int, partition: int = 0) -> list[Any]:
    """The first `count` messages of a partition, as they arrive."""
    subscription = api.subscribe(stream.name, partition)
    found = subscription.take(count)
    subscription.cancel()
    return found


def user_headers(message: Any) -> dict[str, bytes]:
    return {name: value for name, value in message.headers.items() if name not in ("subject", "reply")}


# ── plain messages ───────────────────────────────────────────────────────────────────────────────


def test_a_plain_message_is_the_value(api: Api, make_stream: MakeStream, nats: NatsClient) -> None:
    stream = make_stream()
    for payload in (b"hello", b"", bytes(range(256)), b"x" * 1_000_000):
        nats.publish(stream.subject, payload)
    found = stored(api, stream, 4)
    assert [message.value for message in found] == [b"hello", b"", bytes(range(256)), b"x" * 1_000_000]
    for message in found:
        assert (message.key, message.subject, message.replySubject) == (b"", stream.subject, "")
        assert dict(message.headers) == {"subject": stream.subject.encode(), "reply": b""}


def test_the_reply_subject_is_kept_and_nobody_writes_to_it(api: Api, make_stream: MakeStream, nats: NatsClient) -> None:
    stream, reply = make_stream(), unique_name("reply")
    nats.subscribe(reply)
    nats.publish(stream.subject, b"plain", reply=reply)
    nats.publish(stream.subject, envelopes.message(b"wrapped", correlationId="c"), reply=reply)
    for message in stored(api, stream, 2):
        assert message.replySubject == reply
        assert message.headers["reply"] == reply.encode()
    api.publish(stream.name, b"both were processed", ackPolicy=pb.ALL)
    assert nats.pending() == []


def test_headers_of_nats_become_headers_of_the_message(api: Api, make_stream: MakeStream, nats: NatsClient) -> None:
    stream = make_stream()
    nats.publish(stream.subject, b"value", headers=b"Trace-Id: 42\r\nEmpty:\r\nSpaced:   around  \r\n", reply="r")
    nats.publish(stream.subject, b"", headers=b"Only: headers\r\n")
    nats.publish(stream.subject, b"none")
    first, second, third = stored(api, stream, 3)
    assert first.value == b"value"
    assert first.replySubject == "r"
    found = user_headers(first)
    assert found["Trace-Id"] == b"42"
    assert found["Empty"] == b""
    assert found["Spaced"].strip() == b"around"
    assert (second.value, user_headers(second)) == (b"", {"Only": b"headers"})
    assert user_headers(third) == {}


def test_headers_of_the_envelope_win_over_those_of_nats(api: Api, make_stream: MakeStream, nats: NatsClient) -> None:
    stream = make_stream()
    wrapped = envelopes.message(b"value", headers={"Both": b"envelope", "Inner": b"1"})
    nats.publish(stream.subject, wrapped, headers=b"Both: nats\r\nOuter: 2\r\n")
    (message,) = stored(api, stream, 1)
    assert message.value == b"value"
    found = user_headers(message)
    assert (found["Both"], found["Inner"]) == (b"envelope", b"1")


@pytest.mark.parametrize("headers", [b"no colon\r\n", b": no name\r\n", b"\xff\xfe: bytes\r\n", b"subject: forged\r\n"])
def test_odd_headers_of_nats_lose_no_message(
    api: Api, make_stream: MakeStream, nats: NatsClient, headers: bytes
) -> None:
    stream = make_stream()
    nats.publish(stream.subject, b"value", headers=headers)
    (message,) = stored(api, stream, 1)
    assert message.value == b"value"
    assert message.headers["subject"] == stream.subject.encode()


def test_plain_messages_are_never_acked(api: Api, make_stream: MakeStream, nats: NatsClient) -> None:
    stream = make_stream()
    nats.subscribe("*.ack.>")
    nats.subscribe("_INBOX.>")
    nats.publish(stream.subject, b"x", reply="_INBOX.somebody")
    stored(api, stream, 1)
    assert nats.pending() == []


def test_ten_thousand_plain_messages_arrive_in_order(api: Api, make_stream: MakeStream, nats: NatsClient) -> None:
    stream = make_stream()
    nats.send(b"".join(nats.publication(stream.subject, b"%d" % number) for number in range(10_000)))
    assert [int(message.value) for message in stored(api, stream, 10_000)] == list(range(10_000))


# ── envelopes ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("checksum", [False, True])
def test_an_envelope_is_opened(api: Api, make_stream: MakeStream, nats: NatsClient, checksum: bool) -> None:
    stream = make_stream()
    wrapped = envelopes.message(
        b"value",
        checksum=checksum,
        key=b"key",
        headers={"h": b"1"},
        stream="ignored",
        partition=7,
        subject="ignored",
        replySubject="ignored",
        timestamp=5,
        offset=99,
    )
    nats.publish(stream.subject, wrapped)
    (message,) = stored(api, stream, 1)
    assert (message.key, message.value, user_headers(message)) == (b"key", b"value", {"h": b"1"})
    assert (message.stream, message.partition, message.offset) == (stream.name, 0, 0)
    assert (message.subject, message.replySubject) == (stream.subject, "")
    assert message.timestamp > 5


GOOD = envelopes.message(b"value", key=b"key")
FOREIGN = {
    "another magic": b"\xb9\x0e\x43\xb5" + GOOD[4:],
    "seven bytes of an envelope": GOOD[:7],
    "the magic alone": GOOD[:4],
    "another version": envelopes.wrap(GOOD[8:], version=1),
    "an ack": envelopes.wrap(pb.Ack(stream="s", offset=1).SerializeToString(), kind=envelopes.ACK),
    "a type that nobody knows": envelopes.wrap(GOOD[8:], kind=200),
    "a wrong checksum": envelopes.wrap(GOOD[8:], crc=0xDEADBEEF),
    "a checksum in a header of eight bytes": GOOD[:5] + b"\x08\x01\x00" + GOOD[8:],
    "a checksum that is cut off": GOOD[:5] + b"\x0c\x01\x00" + b"\x00\x00",
    "a header longer than the message": GOOD[:5] + b"\xc8\x00\x00",
    "a header longer than the message, with payload": GOOD[:5] + b"\xc8\x00\x00" + b"payload",
    "a header of seven bytes": GOOD[:5] + b"\x07\x00\x00" + GOOD[8:],
    "a header of no bytes": GOOD[:5] + b"\x00\x00\x00" + GOOD[8:],
    "bytes that are no protobuf": envelopes.wrap(b"\xff\xff\xff\xff"),
    "a field that is cut off": envelopes.wrap(b"\x1a\x7fshort"),
    "text that is no UTF-8": envelopes.wrap(b"\x52\x02\xff\xfe"),
    "a field number of zero": envelopes.wrap(b"\x02\x01x"),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_what_is_no_envelope_is_stored_whole(api: Api, make_stream: MakeStream, nats: NatsClient, what: str) -> None:
    stream = make_stream()
    nats.publish(stream.subject, FOREIGN[what])
    nats.publish(stream.subject, GOOD)
    foreign, good = stored(api, stream, 2)
    assert (foreign.value, foreign.key, user_headers(foreign)) == (FOREIGN[what], b"", {})
    assert (good.value, good.key) == (b"value", b"key")


def test_eight_bytes_are_an_empty_message(api: Api, make_stream: MakeStream, nats: NatsClient) -> None:
    stream = make_stream()
    nats.publish(stream.subject, bytes.fromhex("b90e43b400080000"))
    (message,) = stored(api, stream, 1)
    assert (message.value, message.key) == (b"", b"")


def test_a_longer_header_and_unknown_flags_are_honoured(api: Api, make_stream: MakeStream, nats: NatsClient) -> None:
    stream = make_stream()
    nats.publish(stream.subject, bytes.fromhex("b90e43b4000c0000") + b"????" + GOOD[8:])
    nats.publish(stream.subject, bytes.fromhex("b90e43b40008fe00") + GOOD[8:])
    assert [message.value for message in stored(api, stream, 2)] == [b"value", b"value"]


def test_a_key_without_a_value_is_stored(api: Api, make_stream: MakeStream, nats: NatsClient) -> None:
    stream = make_stream()
    nats.publish(stream.subject, envelopes.message(b"", key=b"key"))
    (message,) = stored(api, stream, 1)
    assert (message.key, message.value) == (b"key", b"")


def test_unknown_fields_in_an_envelope_are_ignored(api: Api, make_stream: MakeStream, nats: NatsClient) -> None:
    stream = make_stream()
    nats.publish(stream.subject, GOOD + bytes.fromhex("ca3e03616263") + bytes.fromhex("d03e07"))
    (message,) = stored(api, stream, 1)
    assert (message.key, message.value) == (b"key", b"value")


# ── acks over NATS ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("policy", [pb.LEADER, pb.ALL])
def test_an_envelope_with_an_inbox_is_acked(api: Api, make_stream: MakeStream, nats: NatsClient, policy: int) -> None:
    stream, inbox = make_stream(partitions=2), unique_name("inbox")
    nats.subscribe(inbox)
    for number in range(50):
        wrapped = envelopes.message(b"x", ackInbox=inbox, correlationId=str(number), ackPolicy=policy)
        nats.publish(f"{stream.subject}.1", wrapped)
    for number in range(50):
        ack = envelopes.ack_in(nats.next().payload)
        assert (ack.offset, ack.correlationId, ack.ackPolicy, ack.ackError) == (number, str(number), policy, pb.Ack.OK)
        assert (ack.stream, ack.partitionSubject) == (stream.name, stream.subject)
        assert (ack.msgSubject, ack.ackInbox) == (f"{stream.subject}.1", inbox)
        assert 0 < ack.receptionTimestamp <= ack.commitTimestamp
    assert api.read(stream.name, 1)[-1].timestamp == ack.receptionTimestamp


def test_policy_none_and_no_inbox_are_not_acked(api: Api, make_stream: MakeStream, nats: NatsClient) -> None:
    stream, inbox = make_stream(), unique_name("inbox")
    nats.subscribe(inbox)
    nats.publish(stream.subject, envelopes.message(b"none", ackInbox=inbox, ackPolicy=pb.NONE))
    nats.publish(stream.subject, envelopes.message(b"no inbox", correlationId="c", ackPolicy=pb.ALL))
    nats.publish(stream.subject, envelopes.message(b"acked", ackInbox=inbox, ackPolicy=pb.ALL))
    assert envelopes.ack_in(nats.next().payload).offset == 2
    assert [message.value for message in api.read(stream.name)] == [b"none", b"no inbox", b"acked"]
    assert nats.pending() == []


def test_every_stream_that_took_it_sends_an_ack(api: Api, make_stream: MakeStream, nats: NatsClient) -> None:
    subject, inbox = unique_name("subject"), unique_name("inbox")
    streams = [make_stream(subject=subject) for _ in range(3)]
    nats.subscribe(inbox)
    nats.publish(subject, envelopes.message(b"x", ackInbox=inbox, correlationId="c"))
    acks = [envelopes.ack_in(nats.next().payload) for _ in streams]
    assert sorted(ack.stream for ack in acks) == sorted(stream.name for stream in streams)
    assert {(ack.offset, ack.correlationId) for ack in acks} == {(0, "c")}
    for stream in streams:
        assert [message.value for message in api.read(stream.name)] == [b"x"]


def test_what_is_too_large_is_refused_with_an_ack_if_there_is_an_inbox(start_broker: StartBroker) -> None:
    broker = start_broker({"clustering.replication.max.bytes": 1024})
    api = broker.api()
    api.CreateStream(name="s", subject="limited")
    with NatsClient(broker.nats_url) as nats:
        inbox = unique_name("inbox")
        nats.subscribe(inbox)
        nats.publish("limited", b"p" * 1025)
        nats.publish("limited", envelopes.message(b"x" * 1024, ackInbox=inbox, correlationId="c", ackPolicy=pb.ALL))
        ack = envelopes.ack_in(nats.next().payload)
        assert (ack.ackError, ack.correlationId, ack.offset) == (pb.Ack.TOO_LARGE, "c", 0)
        assert (ack.stream, ack.commitTimestamp) == ("s", 0)
        nats.publish("limited", b"f" * 1024)
        eventually(lambda: api.partition("s").newestOffset == 0, "what fits exactly is stored")
    assert [message.value for message in api.read("s")] == [b"f" * 1024]
    api.close()


INJECTIONS = (
    "x\r\nPUB evil 4\r\nevil",
    "x 5\r\nevil!\r\nPUB evil",
    "x\nPUB evil 4\nevil\n",
    "evil extra",
    "evil\t",
    " evil",
    "evil\r",
    "evil\n",
    "\r\n",
    " ",
    "evil\0",
    "evil\x01",
    "..",
    ".evil",
    "evil.",
    "evil..evil",
    "e" * 5_000,
    "e." * 100_000 + "e",
    "größe evil",
)


@pytest.mark.parametrize("number", range(len(INJECTIONS)))
def test_an_inbox_cannot_write_commands_into_our_connection(
    api: Api, make_stream: MakeStream, nats: NatsClient, number: int
) -> None:
    stream, inbox = make_stream(), unique_name("inbox")
    nats.subscribe("evil")
    nats.subscribe(inbox)
    nats.publish(stream.subject, envelopes.message(b"attack", ackInbox=INJECTIONS[number], ackPolicy=pb.LEADER))
    nats.publish(stream.subject, envelopes.message(b"attack", ackInbox=INJECTIONS[number], ackPolicy=pb.ALL))
    nats.publish(stream.subject, envelopes.message(b"good", ackInbox=inbox, ackPolicy=pb.ALL))
    assert envelopes.ack_in(nats.next().payload).offset == 2
    assert [message.value for message in api.read(stream.name)] == [b"attack", b"attack", b"good"]
    assert nats.pending() == []


def test_a_correlation_id_may_hold_anything(api: Api, make_stream: MakeStream, nats: NatsClient) -> None:
    stream, inbox = make_stream(), unique_name("inbox")
    nats.subscribe(inbox)
    for correlation in ("a\r\nPUB evil 4\r\nevil", "größe", "x" * 10_000, "\0"):
        nats.publish(stream.subject, envelopes.message(b"x", ackInbox=inbox, correlationId=correlation))
        assert envelopes.ack_in(nats.next().payload).correlationId == correlation
    assert api.partition(stream.name).newestOffset == 3


def test_an_inbox_that_is_the_stream_itself_does_not_go_round_for_ever(
    api: Api, make_stream: MakeStream, nats: NatsClient
) -> None:
    stream = make_stream()
    nats.publish(stream.subject, envelopes.message(b"x", ackInbox=stream.subject, correlationId="c"))
    first, second = stored(api, stream, 2)
    assert first.value == b"x"
    assert envelopes.ack_in(second.value).correlationId == "c"
    api.publish(stream.name, b"end", ackPolicy=pb.ALL)
    assert len(api.read(stream.name)) == 3


# ── subjects ─────────────────────────────────────────────────────────────────────────────────────


def test_several_streams_on_one_subject_all_take_it(api: Api, make_stream: MakeStream, nats: NatsClient) -> None:
    subject = unique_name("subject")
    streams = [make_stream(subject=subject) for _ in range(3)]
    nats.publish(subject, b"plain")
    for stream in streams:
        assert [message.value for message in stored(api, stream, 1)] == [b"plain"]


def test_partitions_listen_on_numbered_subjects(api: Api, make_stream: MakeStream, nats: NatsClient) -> None:
    stream = make_stream(partitions=3)
    for subject in (stream.subject, f"{stream.subject}.1", f"{stream.subject}.2", f"{stream.subject}.3"):
        nats.publish(subject, subject.encode())
    nats.publish(f"{stream.subject}.0", b"nobody listens here")
    for partition, subject in enumerate((stream.subject, f"{stream.subject}.1", f"{stream.subject}.2")):
        (message,) = stored(api, stream, 1, partition)
        assert (message.value, message.subject, message.partition) == (subject.encode(), subject, partition)
    assert [api.partition(stream.name, number).newestOffset for number in range(3)] == [0, 0, 0]


def test_wildcards_take_every_subject_that_fits_and_tell_which(
    api: Api, make_stream: MakeStream, nats: NatsClient
) -> None:
    root = unique_name("root")
    one, many = make_stream(subject=f"{root}.*"), make_stream(subject=f"{root}.>")
    for subject in (f"{root}.a", f"{root}.a.b", f"{root}.b"):
        nats.publish(subject, b"x")
    assert [message.subject for message in stored(api, one, 2)] == [f"{root}.a", f"{root}.b"]
    assert [message.subject for message in stored(api, many, 3)] == [f"{root}.a", f"{root}.a.b", f"{root}.b"]


@pytest.mark.parametrize("wildcard", ["*", ">", "*.x.>"])
def test_publishing_through_the_api_to_a_wildcard_stream_works(
    api: Api, make_stream: MakeStream, wildcard: str
) -> None:
    root = unique_name("root")
    stream = make_stream(subject=f"{root}.{wildcard}")
    ack = api.publish(stream.name, b"value", key=b"key")
    assert (ack.offset, ack.msgSubject) == (0, f"{root}.{wildcard}")
    (message,) = api.read(stream.name)
    assert (message.value, message.key, message.subject) == (b"value", b"key", f"{root}.{wildcard}")


def test_publishing_to_a_further_partition_of_a_wildcard_stream_works(api: Api, make_stream: MakeStream) -> None:
    root = unique_name("root")
    stream = make_stream(subject=f"{root}.*", partitions=2)
    assert api.publish(stream.name, b"x", partition=1).msgSubject == f"{root}.*.1"
    assert [message.value for message in api.read(stream.name, 1)] == [b"x"]


def test_streams_of_one_queue_group_share_the_messages(api: Api, make_stream: MakeStream, nats: NatsClient) -> None:
    subject = unique_name("subject")
    shared = [make_stream(subject=subject, group="workers") for _ in range(2)]
    alone = make_stream(subject=subject)
    nats.send(b"".join(nats.publication(subject, b"%d" % number) for number in range(400)))
    assert len(stored(api, alone, 400)) == 400

    def counts() -> list[int]:
        return [api.partition(stream.name).newestOffset + 1 for stream in shared]

    eventually(lambda: sum(counts()) == 400, "every message went to one of the group")
    assert all(count > 0 for count in counts())
    values = [int(message.value) for stream in shared for message in api.read(stream.name)]
    assert sorted(values) == list(range(400))


def test_a_subject_that_is_no_utf8_is_told_as_far_as_it_can_be(
    api: Api, make_stream: MakeStream, nats: NatsClient
) -> None:
    root = unique_name("root")
    stream = make_stream(subject=f"{root}.*")
    nats.send(b"PUB " + root.encode() + b".\xff\xfe r\xff 1\r\nx\r\n")
    (message,) = stored(api, stream, 1)
    assert message.value == b"x"
    assert message.subject.startswith(f"{root}.")
    assert "\ufffd" in message.subject
    assert "\ufffd" in message.replySubject


def test_deleted_streams_no_longer_listen(api: Api, make_stream: MakeStream, nats: NatsClient) -> None:
    subject, inbox = unique_name("subject"), unique_name("inbox")
    gone, kept = make_stream(subject=subject), make_stream(subject=subject)
    api.DeleteStream(name=gone.name)
    nats.subscribe(inbox)
    nats.publish(subject, envelopes.message(b"x", ackInbox=inbox))
    assert envelopes.ack_in(nats.next().payload).stream == kept.name
    assert nats.pending() == []


# ── anything at all ──────────────────────────────────────────────────────────────────────────────


def expected_of(payload: bytes) -> tuple[bytes, bytes]:
    """Key and value that must be stored, by the rules of the format and Google's protobuf."""
    if len(payload) < 8 or payload[:4] != envelopes.MAGIC or payload[4] != 0 or payload[7] != envelopes.PUBLISH:
        return b"", payload
    start = payload[5]
    if start < 8 or start > len(payload):
        return b"", payload
    body = payload[start:]
    if payload[6] & 1 and (start != 12 or envelopes.wrap(body, checksum=True)[8:12] != payload[8:12]):
        return b"", payload
    try:
        message = pb.Message.FromString(body)
    except Exception:
        return b"", payload
    return message.key, message.value


def random_message(rng: random.Random) -> bytes:
    fields: dict[str, Any] = {"value": rng.randbytes(rng.choice((0, 1, 5, 50, 300)))}
    if rng.random() < 0.5:
        fields["key"] = rng.randbytes(rng.randrange(20))
    if rng.random() < 0.5:
        fields["headers"] = {f"h{n}": rng.randbytes(n) for n in range(rng.randrange(4))}
    if rng.random() < 0.5:
        fields |= {"ackInbox": "nobody.listens", "correlationId": "c", "ackPolicy": rng.randrange(3)}
    return envelopes.message(checksum=rng.random() < 0.5, **fields)


def mutated(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(5):
            case 0:
                changed[at : at + 1] = rng.randbytes(1)
            case 1:
                del changed[at : at + rng.randint(1, 4)]
            case 2:
                changed[at:at] = rng.randbytes(rng.randint(1, 4))
            case 3 if len(changed) > 7:
                changed[rng.choice((4, 5, 6, 7))] = rng.choice((0, 1, 2, 7, 8, 9, 12, 13, 200, 255))
            case _:
                del changed[at:]
    return bytes(changed)


@pytest.mark.parametrize("seed", range(3))
def test_anything_at_all_is_stored_in_order_and_hurts_nobody(
    api: Api, make_stream: MakeStream, nats: NatsClient, seed: int
) -> None:
    stream, rng = make_stream(), random.Random(seed)
    payloads = []
    for _ in range(3000):
        kind = rng.random()
        message = random_message(rng)
        payload = rng.randbytes(rng.randrange(200)) if kind < 0.2 else message if kind < 0.4 else mutated(rng, message)
        payloads.append(payload)
    nats.send(b"".join(nats.publication(stream.subject, payload) for payload in payloads))
    found = stored(api, stream, len(payloads))
    for payload, message in zip(payloads, found, strict=True):
        assert (message.key, message.value) == expected_of(payload), payload.hex()
    assert api.publish(stream.name, b"still here").offset == len(payloads)


def test_internal_subjects_shrug_at_garbage(api: Api, nats: NatsClient, make_stream: MakeStream) -> None:
    """Anybody on the NATS server may write to the subjects that brokers use among each other."""
    # A new broker makes the stream at once, but not before it serves.
    namespace = eventually(lambda: api.stream("__cursors").subject, "there is a stream for cursors").split(".")[0]
    (server,) = [broker.id for broker in api.FetchMetadata().brokers]
    stream, rng = make_stream(), random.Random(1)
    subjects = [
        f"{namespace}.{prefix}.{part}"
        for prefix in ("control", "raft.metadata")
        for part in (
            "propagate",
            "info",
            "join",
            "bootstrap",
            f"status.{server}",
            f"{server}.accept",
            f"{server}.request.x",
        )
    ]
    subjects += [
        f"{namespace}.notify.{server}",
        f"{namespace}.ack.x",
        f"{namespace}.ack.{server}.1",
        f"{namespace}.cursors",
    ]
    subjects += [f"{namespace}.{stream.name}.0.replicate", f"{namespace}.{stream.name}.0.offset"]
    for _ in range(300):
        garbage = rng.randbytes(rng.randrange(100))
        wrapped = envelopes.wrap(garbage, kind=rng.randrange(16), checksum=rng.random() < 0.5)
        nats.publish(rng.choice(subjects), rng.choice((garbage, wrapped, b"")), reply=rng.choice(("", "r.e.p.l.y")))
    assert api.publish(stream.name, b"x", ackPolicy=pb.ALL).offset == 0
    name = unique_name("after")
    api.CreateStream(name=name, subject=name)
    api.DeleteStream(name=name)
    api.SetCursor(stream=stream.name, partition=0, cursorId="c", offset=4)
    assert api.FetchCursor(stream=stream.name, partition=0, cursorId="c").offset == 4
