"""Messages to internal streams: only those that a broker sealed for this server become records, in the order of their arrival."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bascule.kernels.envelope import messages
from bascule.kernels.ingest.sealed import SealedQueue, SealedSink
from bascule.kernels.nats.protocol import NatsReader
from bascule.kernels.records import records
from bascule.net.nats.seal import SealedChannel, SealKeys
from bascule.proto import api_pb2
from tests.parity.inputs.ingest_helpers import acks_in, feed, new_pool, new_reader, new_writer, stamped
from tests.parity.twins.twin_ingest import NatsMessage
from tests.support.kernels.message_objects import publish_envelope

SUBJECT = b"ns.cursors"
KEYS = SealKeys(["the secret of the brokers"], "ns")
SECOND_SID = 11


def new_channel() -> SealedChannel:
    return SealedChannel(KEYS, "ns", "internal", "a", lambda _subject, _data: None)


def new_sink(queue: SealedQueue, partition: int = 0) -> SealedSink:
    return queue.sink(
        new_pool(),
        stream=b"__cursors",
        partition=partition,
        base_subject=SUBJECT,
        payload_bytes_max=1000,
        batch_records_max=100,
        batch_bytes_max=10_000,
    )


def sealed(channel: SealedChannel, value: bytes, receiver: bytes = b"a", **fields: Any) -> NatsMessage:
    envelope = publish_envelope(api_pb2.PublishRequest(value=value).SerializeToString(), b"_INBOX.1")
    assert envelope is not None
    payload = bytes((len(receiver),)) + receiver + envelope
    return NatsMessage(SUBJECT, channel.seal(SUBJECT, payload) + payload, **fields)


def stored(sink: SealedSink, reader: NatsReader) -> tuple[list[bytes | None], list[int]]:
    """The values of the collected records, and the errors of the acks."""
    writer, values = new_writer(reader), []
    for batch in sink.take():
        values += [one.value for one in records.decode(stamped(batch, 0))] if batch.count else []
        writer.write_errors(batch)
        writer.acknowledge(batch, messages.LEADER, batch.base_offset, 1, 2)
    return values, [one.error for one in acks_in(reader) if one.error]


@given(st.lists(st.sampled_from(["good", "plain", "changed", "again", "elsewhere", "empty"]), max_size=40))
def test_only_genuine_messages_are_stored_once(kinds: list[str]) -> None:
    channel = new_channel()
    sink = new_sink(SealedQueue(channel.open, b"a"))
    reader = new_reader(sink)
    sent: list[NatsMessage] = []
    good: list[int] = []
    refused = 0
    for number, kind in enumerate(kinds):
        value = b"%d" % number
        message = sealed(channel, value)
        if kind == "plain":
            message = NatsMessage(SUBJECT, message.payload[channel.seal_bytes + 2 :])
        elif kind == "changed":
            message = NatsMessage(SUBJECT, message.payload[:-1] + bytes((message.payload[-1] ^ 1,)))
        elif kind == "elsewhere":
            message = sealed(channel, value, b"b")
            refused += 1
        elif kind == "empty":
            message = NatsMessage(SUBJECT, channel.seal(SUBJECT, b""))
        elif kind == "again" and good:
            message = sent[good[-1]]
        else:
            good.append(number)
        sent.append(message)
    feed(reader, sent)
    values, errors = stored(sink, reader)
    assert values == [b"%d" % number for number in good]
    assert errors == [messages.NOT_STORED] * refused


def test_neither_nats_headers_nor_a_reply_are_stored() -> None:
    channel = new_channel()
    sink = new_sink(SealedQueue(channel.open, b"a"))
    feed(new_reader(sink), [sealed(channel, b"x", reply=b"_INBOX.r", headers=b"NATS/1.0\r\na: b\r\n\r\n")])
    (batch,) = sink.take()
    (record,) = records.decode(stamped(batch, 0))
    assert (record.value, record.reply, record.headers) == (b"x", b"", ())


def test_partitions_share_the_order_of_arrival() -> None:
    """One read brings more messages for each partition than a channel accepts out of order."""
    channel = new_channel()
    queue = SealedQueue(channel.open, b"a")
    sinks = [new_sink(queue, number) for number in range(2)]
    reader = new_reader(sinks[0])
    reader.attach(SECOND_SID, sinks[1])
    data = b"".join(sealed(channel, b"%d" % number).frame((9, SECOND_SID)[number % 2]) for number in range(400))
    while data:
        buffer = reader.get_buffer()
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        del buffer
        assert list(reader.received(size)) == []
        data = data[size:]
    assert [sink.waiting_records for sink in sinks] == [200, 200]
    assert channel.stats.refused == 0


def test_a_sink_that_is_gone_takes_its_messages_with_it() -> None:
    channel = new_channel()
    sink = new_sink(SealedQueue(channel.open, b"a"))
    reader = new_reader(sink)
    message = sealed(channel, b"x")
    reader.detach(9)
    feed(reader, [message])
    assert (sink.received, channel.stats.opened) == (0, 0)
