"""Acks reach whoever waits for them, and nothing a publisher writes into its inbox or correlation id reaches anything else."""

from __future__ import annotations

from typing import Any

import pytest

from bascule.kernels.envelope import messages
from bascule.kernels.envelope.ack_object import Ack
from bascule.kernels.ingest.acks import AckReceiver, AckRouter, AckSink, AckWriter, CallbackReceiver
from bascule.kernels.ingest.sink import PreparedBatch
from bascule.proto import api_pb2
from tests.parity.inputs.ingest_helpers import PREFIX, acks_in, feed, new_reader, new_sink, new_writer, published
from tests.parity.twins.twin_ingest import NatsMessage
from tests.support.kernels.message_objects import ack_envelope, publish_envelope

PLACE = PREFIX[:-1]
EMPTY = Ack(b"s", b"p", b"m", 7, b"i", b"c", 0, 1, 2, 0)


def envelope(inbox: bytes, *, correlation_id: str = "c", **fields: Any) -> NatsMessage:
    request = api_pb2.PublishRequest(correlationId=correlation_id, expectedOffset=-1, **fields)
    data = publish_envelope(request.SerializeToString(), inbox)
    assert data is not None
    return NatsMessage(b"orders.subject", data)


def bundle(*acks: Ack) -> NatsMessage:
    """Acks as another broker sends them, without a seal."""
    parts = [ack_envelope(one)[8:] for one in acks]
    return NatsMessage(PLACE, b"".join(len(part).to_bytes(4, "little") + part for part in parts))


def collected(*messages: NatsMessage, **options: Any) -> list[PreparedBatch]:
    sink = new_sink(**options)
    feed(new_reader(sink), messages)
    return sink.take()


def test_an_ack_says_where_the_message_is() -> None:
    reader = new_reader()
    (batch,) = collected(envelope(b"_INBOX.1", value=b"a"), envelope(b"_INBOX.2", value=b"b"))
    new_writer(reader).acknowledge(batch, messages.LEADER, 40, 1_000, 2_000)
    assert acks_in(reader) == [
        Ack(b"orders", b"orders.subject", b"orders.subject", 40 + index, inbox, b"c", 0, 1_000, 2_000, 0)
        for index, inbox in enumerate((b"_INBOX.1", b"_INBOX.2"))
    ]


def test_each_policy_gets_its_acks_and_no_others() -> None:
    reader = new_reader()
    writer = new_writer(reader)
    (batch,) = collected(
        envelope(b"leader", ackPolicy="LEADER"), envelope(b"all", ackPolicy="ALL"), envelope(b"none", ackPolicy="NONE")
    )
    assert (batch.has_leader_acks, batch.has_all_acks, batch.has_errors) == (True, True, False)
    writer.acknowledge(batch, messages.ALL, 0, 1, 2)
    assert [(one.ack_inbox, one.offset) for one in acks_in(reader)] == [(b"all", 1)]
    writer.acknowledge(batch, messages.LEADER, 0, 1, 2)
    assert [one.ack_inbox for one in acks_in(reader)] == [b"leader"]
    with pytest.raises(ValueError, match="no acks"):
        writer.acknowledge(batch, messages.NONE, 0, 1, 2)


def test_a_batch_that_was_not_stored_is_answered_with_the_error() -> None:
    reader = new_reader()
    writer = new_writer(reader)
    (batch,) = collected(envelope(b"a"), envelope(b"b", value=b"x" * 2000), envelope(b"c", ackPolicy="ALL"))
    writer.reject(batch, messages.ENCRYPTION, 1, 2)
    assert [(one.ack_inbox, one.error, one.offset) for one in acks_in(reader)] == [(b"a", 4, 0), (b"c", 4, 0)]
    writer.write_errors(batch, 1, 2)
    assert [(one.ack_inbox, one.error, one.commit_timestamp) for one in acks_in(reader)] == [(b"b", 3, 0)]
    with pytest.raises(ValueError, match="needs an error"):
        writer.reject(batch, messages.OK)


@pytest.mark.parametrize(
    "inbox", [b"a b", b"a\r\nPUB victim 0\r\n", b"a\tb", b"a\nb", b"\x00", b"a\x7f", b" ", b"x" * 1901, b"x" * 100_000]
)
def test_an_inbox_that_is_no_subject_gets_no_ack(inbox: bytes) -> None:
    reader = new_reader()
    batches = collected(envelope(inbox), payload_bytes_max=1 << 20)
    for batch in batches:
        assert not batch.has_leader_acks
        new_writer(reader).acknowledge(batch, messages.LEADER, 0, 1, 2)
    assert published(reader) == []


def test_a_correlation_id_may_hold_anything_that_is_text() -> None:
    reader = new_reader()
    (batch,) = collected(envelope(b"_INBOX.1", correlation_id="\r\nPUB victim 0\r\n\r\n"))
    new_writer(reader).acknowledge(batch, messages.LEADER, 0, 1, 2)
    assert [one.correlation_id for one in acks_in(reader)] == [b"\r\nPUB victim 0\r\n\r\n"]


def test_an_ack_larger_than_the_server_takes_is_not_sent() -> None:
    """nats-server would end our connection for it."""
    reader = new_reader()
    reader.max_payload = 500
    writer = new_writer(reader)
    (batch,) = collected(envelope(b"_INBOX.1", correlation_id="c" * 490), envelope(b"_INBOX.2"))
    writer.acknowledge(batch, messages.LEADER, 0, 1, 2)
    assert [one.ack_inbox for one in acks_in(reader)] == [b"_INBOX.2"]
    assert (writer.sent, writer.unsendable) == (1, 1)


def test_without_a_connection_nothing_is_written() -> None:
    reader = new_reader()
    reader.connected = False
    writer = new_writer(reader)
    (batch,) = collected(envelope(b"_INBOX.1"))
    writer.acknowledge(batch, messages.LEADER, 0, 1, 2)
    assert published(reader) == []
    assert writer.unsendable == 1


# ── within this process ──────────────────────────────────────────────────────────────────────────


def test_an_inbox_of_this_process_is_served_without_nats() -> None:
    reader = new_reader()
    router = AckRouter(PREFIX)
    found: dict[int, list[Ack]] = {0: [], 17: []}
    for number, acks in found.items():
        router.receivers[number] = CallbackReceiver(acks.append)
    writer = AckWriter(reader, router)
    (batch,) = collected(*(envelope(PREFIX + number) for number in (b"17", b"0", b"17", b"18", b"017", b"x", b"")))
    writer.acknowledge(batch, messages.LEADER, 5, 1, 2)
    assert [one.offset for one in found[17]] == [5, 7]
    assert [one.offset for one in found[0]] == [6]
    assert (router.delivered, router.unknown) == (3, 3)
    # the prefix alone is a subject like any other
    assert [one.ack_inbox for one in acks_in(reader)] == [PREFIX]


@pytest.mark.parametrize("number", [b"18446744073709551617", b"99999999999999999999", b"1" * 500, b"1.2", b"-1", b"+1"])
def test_a_number_that_is_none_belongs_to_nobody(number: bytes) -> None:
    router = AckRouter(PREFIX)
    router.receivers[1] = CallbackReceiver(lambda _: pytest.fail("not for us"))
    sink = AckSink(router)
    feed(new_reader(sink), [bundle(EMPTY._replace(ack_inbox=PREFIX + number))])
    assert (router.delivered, router.unknown) == (0, 1)


def test_a_receiver_that_is_gone_gets_nothing_more() -> None:
    reader = new_reader()
    router = AckRouter(PREFIX)
    found: list[Ack] = []

    def once(ack: Ack) -> None:
        found.append(ack)
        del router.receivers[3]

    router.receivers[3] = CallbackReceiver(once)
    (batch,) = collected(envelope(PREFIX + b"3"), envelope(PREFIX + b"3"))
    AckWriter(reader, router).acknowledge(batch, messages.LEADER, 0, 1, 2)
    assert [one.offset for one in found] == [0]
    assert router.unknown == 1


def test_a_receiver_that_fails_does_not_take_the_acks_of_others_with_it() -> None:
    faults: list[Exception] = []
    found: list[Ack] = []

    def fail(_: Ack) -> None:
        raise RuntimeError("this session is broken")

    router = AckRouter(PREFIX, faults.append)
    router.receivers[1] = CallbackReceiver(fail)
    router.receivers[2] = CallbackReceiver(found.append)
    (batch,) = collected(envelope(PREFIX + b"1"), envelope(PREFIX + b"2"))
    AckWriter(new_reader(), router).acknowledge(batch, messages.LEADER, 0, 1, 2)
    assert [str(one) for one in faults] == ["this session is broken"]
    assert len(found) == 1


def test_acks_of_other_servers_arrive_over_nats() -> None:
    router = AckRouter(PREFIX)
    found: list[Ack] = []
    router.receivers[4] = CallbackReceiver(found.append)
    router.receivers[5] = AckReceiver()
    sink = AckSink(router)
    reader = new_reader(sink)
    acks = [EMPTY._replace(offset=index, ack_inbox=PREFIX + b"4") for index in range(1000)]
    feed(reader, [bundle(*acks[start : start + 10]) for start in range(0, 1000, 10)])
    feed(
        reader,
        [
            bundle(EMPTY._replace(ack_inbox=PREFIX + b"5")),
            NatsMessage(PLACE, b"no bundle"),
            NatsMessage(PLACE, b""),
            NatsMessage(PLACE, bundle(*acks[:2]).payload[:-1]),
            bundle(EMPTY._replace(ack_inbox=b"elsewhere")),
        ],
    )
    assert found == [*acks, acks[0]]
    assert (router.delivered, sink.invalid) == (1002, 4)


def test_only_opened_bundles_count() -> None:
    router = AckRouter(PREFIX)
    found: list[Ack] = []
    router.receivers[4] = CallbackReceiver(found.append)
    sink = AckSink(router)
    sink.open = lambda subject, data: memoryview(data)[4:] if (subject, data[:4]) == (PLACE, b"seal") else None
    ack = EMPTY._replace(ack_inbox=PREFIX + b"4")
    sealed = NatsMessage(PLACE, b"seal" + bundle(ack).payload)
    feed(
        new_reader(sink), [bundle(ack), sealed, NatsMessage(b"elsewhere", sealed.payload), NatsMessage(PLACE, b"seal")]
    )
    assert found == [ack]
    assert sink.invalid == 1


def test_acks_for_other_brokers_leave_in_sealed_bundles() -> None:
    reader = new_reader()
    writer = AckWriter(reader, AckRouter(PREFIX), b"ns.ack.")
    writer.seal = lambda subject, payload: b"<%b %d>" % (subject, len(payload))
    inboxes = [b"ns.ack.other.token.1", b"_INBOX.1", b"ns.ack.third.token.2", b"ns.ack.other.token.12", b"ns.ack.x"]
    (batch,) = collected(*(envelope(inbox) for inbox in inboxes))
    writer.acknowledge(batch, messages.LEADER, 10, 1, 2)
    sent = dict(published(reader))
    assert sorted(sent) == [b"_INBOX.1", b"ns.ack.other.token", b"ns.ack.third.token"]
    found: list[Ack] = []
    router = AckRouter(b"ns.ack.other.token.")
    router.receivers.update(dict.fromkeys((1, 12), CallbackReceiver(found.append)))
    sink = AckSink(router)
    sink.open = lambda _subject, data: memoryview(data)[data.index(b">") + 1 :]
    feed(new_reader(sink), [NatsMessage(b"ns.ack.other.token", sent[b"ns.ack.other.token"])])
    assert [(one.ack_inbox, one.offset) for one in found] == [(inboxes[0], 10), (inboxes[3], 13)]
    assert (writer.sent, writer.unsendable) == (4, 1)


def test_a_bundle_stays_below_the_largest_payload() -> None:
    reader = new_reader()
    reader.max_payload = 4096
    writer = AckWriter(reader, AckRouter(PREFIX), b"ns.ack.")
    (batch,) = collected(*(envelope(b"ns.ack.o.t.1", correlation_id="c" * 90) for _ in range(100)))
    writer.acknowledge(batch, messages.LEADER, 0, 1, 2)
    sent = published(reader)
    assert len(sent) > 2
    assert max(len(payload) for _, payload in sent) <= 4096
    assert writer.sent == 100
