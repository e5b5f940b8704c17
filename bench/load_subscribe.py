"""Reading everything that is there: Subscribe from the earliest message on, JetStream's consumers beside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bench.load_row import load_row
from bench.load_tools import Running, run, run_grpcio, tool
from bench.report import LoadRow
from bench.systems import Broker, JetStream, Streams, Systems

LOAD: Final = "Subscribe"
SHAPES: Final = ((1, 1), (10, 1), (100, 1), (1, 10), (1, 100))
MESSAGES: Final = {128: 2_000_000, 1024: 500_000}
GRPCIO_MESSAGES: Final = 200_000
JETSTREAM_MESSAGES: Final = 400_000
PULL_BATCH: Final = 5_000
CPU_MAX: Final = {128: 0.15}


def rows(systems: Systems) -> Iterator[LoadRow]:
    for size, full in MESSAGES.items():
        messages = systems.messages(full)
        for broker in systems.brokers:
            for shape in SHAPES:
                with broker.streams(*shape) as streams:
                    _fill(broker, streams, size, messages)
                    yield _raw(broker, streams, size, messages)
                    if shape == (1, 1):
                        yield _grpcio(broker, streams, size, systems.messages(GRPCIO_MESSAGES))
        yield from _jetstream(systems.jetstream, size, systems.messages(JETSTREAM_MESSAGES))


def _fill(broker: Broker, streams: Streams, size: int, messages: int) -> None:
    run("nats_load", "blast", port=broker.nats_port, subjects=streams.subjects, messages=messages, size=size)
    stored, _ = broker.await_stored(streams, messages)
    if stored != messages:
        raise RuntimeError(f"{broker.name} stored {stored:,} of {messages:,} messages")


def _raw(broker: Broker, streams: Streams, size: int, messages: int) -> LoadRow:
    broker.process.begin()
    outcome = run(
        "grpc_load",
        "subscribe",
        port=broker.port,
        streams=",".join(streams.names),
        partitions=streams.partitions_each,
        messages=messages,
    )
    return load_row(
        LOAD,
        f"{size} B, {streams.label}, raw client",
        broker.name,
        outcome,
        broker.process.usage(),
        cpu_max=CPU_MAX.get(size) if broker.is_ours else None,
    )


def _grpcio(broker: Broker, streams: Streams, size: int, messages: int) -> LoadRow:
    broker.process.begin()
    outcome = run_grpcio("subscribe", port=broker.port, streams=streams.names[0], messages=messages)
    return load_row(LOAD, f"{size} B, {streams.label}, grpcio", broker.name, outcome, broker.process.usage())


def _jetstream(jetstream: JetStream, size: int, messages: int) -> Iterator[LoadRow]:
    with jetstream.stream() as name:
        run("nats_load", "acked", port=jetstream.port, subjects=f"{name}.0", messages=messages, size=size, window=8_000)
        jetstream.add_consumer(name, "pull")
        jetstream.process.begin()
        pulled = run(
            "nats_load",
            "pull",
            port=jetstream.port,
            stream=name,
            consumer="pull",
            messages=messages,
            batch=PULL_BATCH,
        )
        conditions = f"{size} B, pull by {PULL_BATCH:,}, no acks"
        yield load_row(LOAD, conditions, jetstream.name, pulled, jetstream.process.usage())
        subscriber = {"port": jetstream.port, "subject": f"deliver.{name}", "messages": messages}
        with Running([tool("nats_load"), "count"], subscriber, ready=True) as counting:
            jetstream.process.begin()
            jetstream.add_consumer(name, "push", f"deliver.{name}")
            pushed = counting.outcome()
        yield load_row(
            LOAD,
            f"{size} B, push, no acks",
            jetstream.name,
            pushed,
            jetstream.process.usage(),
            lost=messages - pushed.messages,
        )
