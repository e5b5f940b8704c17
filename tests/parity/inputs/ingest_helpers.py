"""A sink with a NATS reader in front of it and an ack writer behind it, without a socket."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from bascule.kernels.batches.pool import BatchPool
from bascule.kernels.envelope.ack_object import Ack
from bascule.kernels.ingest.acks import AckRouter, AckWriter
from bascule.kernels.ingest.sink import PartitionSink, PreparedBatch
from bascule.kernels.nats.protocol import MessageSink, NatsReader
from bascule.kernels.records.builder import BatchBuilder
from tests.parity.twins.twin_ingest import NatsMessage
from tests.support.kernels.message_objects import parse_ack_envelope

PREFIX = b"ns.ack.server."
SID = 9


def small_builder() -> BatchBuilder:
    return BatchBuilder(
        key_bytes_max=100,
        value_bytes_max=100_000,
        headers_max=8,
        headers_bytes_max=300,
        subject_bytes_max=4096,
        batch_bytes_max=200_000,
        records_max=1000,
    )


def new_pool(bytes_max: int = 1 << 20) -> BatchPool:
    return BatchPool(small_builder, bytes_max)


def new_sink(pool: BatchPool | None = None, **options: Any) -> PartitionSink:
    settings: dict[str, Any] = {
        "stream": b"orders",
        "partition": 0,
        "base_subject": b"orders.subject",
        "payload_bytes_max": 1000,
        "batch_records_max": 100,
        "batch_bytes_max": 10_000,
    }
    return PartitionSink(pool or new_pool(), **{**settings, **options})


def new_reader(sink: MessageSink | None = None) -> NatsReader:
    reader = NatsReader(message_bytes_max=1 << 20, line_bytes_max=8192)
    reader.connected = True
    reader.max_payload = 1 << 20
    if sink is not None:
        reader.attach(SID, sink)
    return reader


def feed(reader: NatsReader, messages: Iterable[NatsMessage]) -> None:
    data = b"".join(one.frame(SID) for one in messages)
    while data:
        buffer = reader.get_buffer()
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        del buffer
        assert list(reader.received(size)) == []
        data = data[size:]


def published(reader: NatsReader) -> list[tuple[bytes, bytes]]:
    """What was written into the connection, as (subject, payload); every byte has to belong to a PUB."""
    data, found = bytes(reader.output), []
    reader.output.clear()
    while data:
        line = re.match(rb"PUB ([^ \r\n]+) (\d+)\r\n", data)
        assert line is not None, data[:100]
        stop = line.end() + int(line[2])
        assert data[stop : stop + 2] == b"\r\n"
        found.append((line[1], data[line.end() : stop]))
        data = data[stop + 2 :]
    return found


def acks_in(reader: NatsReader) -> list[Ack]:
    found = []
    for subject, payload in published(reader):
        ack = parse_ack_envelope(payload)
        assert ack is not None
        assert ack.ack_inbox == subject
        found.append(ack)
    return found


def new_writer(reader: NatsReader) -> AckWriter:
    return AckWriter(reader, AckRouter(PREFIX))


def stamped(batch: PreparedBatch, base_offset: int) -> bytes:
    assert batch.builder is not None
    with batch.builder.stamp(base_offset, 1, 1_000) as view:
        return bytes(view)
