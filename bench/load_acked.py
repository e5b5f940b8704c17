"""Publishing with an ack for each message: envelopes over NATS, PublishAsync over gRPC, JetStream beside them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bench.load_row import load_row
from bench.load_tools import Outcome, run, run_grpcio
from bench.report import LoadRow
from bench.systems import Broker, Streams, Systems

ENVELOPES: Final = "envelope ingest with acks"
ASYNC: Final = "PublishAsync with acks"
SIZES: Final = (128, 1024)
WINDOWS: Final = (1_000, 8_000)
SHAPES: Final = ((10, 1), (100, 1), (1, 10), (1, 100))
MESSAGES: Final = 600_000
JETSTREAM_MESSAGES: Final = 200_000
GRPCIO_MESSAGES: Final = 40_000
ASYNC_CPU_MAX: Final = {128: 0.8}


def envelope_rows(systems: Systems) -> Iterator[LoadRow]:
    messages = systems.messages(MESSAGES)
    for size in SIZES:
        for window in WINDOWS:
            for broker in systems.brokers:
                with broker.streams(1) as streams:
                    yield _envelopes(broker, streams, size, window, messages)
            yield _jetstream(systems, ENVELOPES, size, window)
        for broker in systems.brokers:
            for shape in SHAPES[:2]:
                with broker.streams(*shape) as streams:
                    yield _envelopes(broker, streams, size, WINDOWS[-1], messages)


def _envelopes(broker: Broker, streams: Streams, size: int, window: int, messages: int) -> LoadRow:
    broker.process.begin()
    outcome = run(
        "nats_load",
        "acked",
        port=broker.nats_port,
        subjects=streams.subjects,
        messages=messages,
        size=size,
        window=window,
        envelope=1,
    )
    return load_row(
        ENVELOPES, f"{size} B, {streams.label}, window {window:,}", broker.name, outcome, broker.process.usage()
    )


def _jetstream(systems: Systems, load: str, size: int, window: int) -> LoadRow:
    jetstream, messages = systems.jetstream, systems.messages(JETSTREAM_MESSAGES)
    with jetstream.stream() as name:
        jetstream.process.begin()
        subject = f"{name}.0"
        outcome = run(
            "nats_load", "acked", port=jetstream.port, subjects=subject, messages=messages, size=size, window=window
        )
        usage = jetstream.process.usage()
    return load_row(load, f"{size} B, 1 stream, window {window:,}", jetstream.name, outcome, usage)


def async_rows(systems: Systems) -> Iterator[LoadRow]:
    for size in SIZES:
        for broker in systems.brokers:
            for shape in ((1, 1), *SHAPES):
                with broker.streams(*shape) as streams:
                    broker.process.begin()
                    outcome = _publish_async(broker, streams, size, systems.messages(MESSAGES))
                    yield _async_row(broker, streams, size, "raw client", outcome)
            with broker.streams(1) as streams:
                broker.process.begin()
                outcome = run_grpcio(
                    "publish-async",
                    port=broker.port,
                    streams=streams.names[0],
                    messages=systems.messages(GRPCIO_MESSAGES),
                    size=size,
                )
                yield _async_row(broker, streams, size, "grpcio", outcome)
        yield _jetstream(systems, ASYNC, size, WINDOWS[-1])


def _publish_async(broker: Broker, streams: Streams, size: int, messages: int) -> Outcome:
    return run(
        "grpc_load",
        "publish-async",
        port=broker.port,
        streams=",".join(streams.names),
        partitions=streams.partitions_each,
        messages=messages,
        size=size,
        window=WINDOWS[-1],
    )


def _async_row(broker: Broker, streams: Streams, size: int, client: str, outcome: Outcome) -> LoadRow:
    targeted = broker.is_ours and client == "raw client"
    return load_row(
        ASYNC,
        f"{size} B, {streams.label}, {client}, window {WINDOWS[-1]:,}",
        broker.name,
        outcome,
        broker.process.usage(),
        cpu_max=ASYNC_CPU_MAX.get(size) if targeted else None,
    )
