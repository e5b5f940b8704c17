"""How long one publish takes, one after the other: from sending it to the ack of the leader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bench.load_row import load_row
from bench.load_tools import Running, run, run_grpcio, tool
from bench.report import LoadRow
from bench.systems import Broker, Systems

LOAD: Final = "one publish at a time"
SIZES: Final = (128, 1024)
MESSAGES: Final = 10_000
GRPCIO_MESSAGES: Final = 2_000


def rows(systems: Systems) -> Iterator[LoadRow]:
    messages = systems.messages(MESSAGES)
    for size in SIZES:
        yield _echo(systems, size, messages)
        for broker in systems.brokers:
            yield _unary(broker, size, messages)
            yield _unary_grpcio(broker, size, systems.messages(GRPCIO_MESSAGES))
            yield _envelope(broker, size, messages)
        yield _jetstream(systems, size, messages)


def _echo(systems: Systems, size: int, messages: int) -> LoadRow:
    """What NATS itself takes: a responder in C that does nothing. Nothing that stores messages behind NATS can be quicker."""
    responder = {"port": systems.nats_port, "subject": "echo"}
    with Running([tool("nats_load"), "echo"], responder, ready=True):
        systems.nats.begin()
        outcome = run(
            "nats_load", "acked", port=systems.nats_port, subjects="echo", messages=messages, size=size, window=1
        )
        usage = systems.nats.usage()
    return load_row(LOAD, f"{size} B, request and reply", "nats-server alone", outcome, usage, latency=True)


def _unary(broker: Broker, size: int, messages: int) -> LoadRow:
    with broker.streams(1) as streams:
        broker.process.begin()
        outcome = run("grpc_load", "publish", port=broker.port, streams=streams.names[0], messages=messages, size=size)
        usage = broker.process.usage()
    return load_row(LOAD, f"{size} B, Publish, raw client", broker.name, outcome, usage, latency=True)


def _unary_grpcio(broker: Broker, size: int, messages: int) -> LoadRow:
    with broker.streams(1) as streams:
        broker.process.begin()
        outcome = run_grpcio("publish", port=broker.port, streams=streams.names[0], messages=messages, size=size)
        usage = broker.process.usage()
    return load_row(LOAD, f"{size} B, Publish, grpcio", broker.name, outcome, usage, latency=True)


def _envelope(broker: Broker, size: int, messages: int) -> LoadRow:
    with broker.streams(1) as streams:
        broker.process.begin()
        outcome = run(
            "nats_load",
            "acked",
            port=broker.nats_port,
            subjects=streams.subjects,
            messages=messages,
            size=size,
            window=1,
            envelope=1,
        )
        usage = broker.process.usage()
    return load_row(LOAD, f"{size} B, envelope over NATS", broker.name, outcome, usage, latency=True)


def _jetstream(systems: Systems, size: int, messages: int) -> LoadRow:
    jetstream = systems.jetstream
    with jetstream.stream() as name:
        jetstream.process.begin()
        outcome = run(
            "nats_load", "acked", port=jetstream.port, subjects=f"{name}.0", messages=messages, size=size, window=1
        )
        usage = jetstream.process.usage()
    return load_row(LOAD, f"{size} B, publish, raw client", jetstream.name, outcome, usage, latency=True)
