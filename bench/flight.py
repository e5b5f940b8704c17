"""Tables over Arrow Flight: read from a broker's log, beside a server that has the same record batches ready in memory."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bascule.proto import api_pb2
from bench.load_row import load_row
from bench.load_tools import Outcome, Running, run
from bench.processes import Process, Usage
from bench.report import LoadRow, Row, at_least, measured
from bench.systems import Broker, Streams, Systems

LOAD: Final = "Arrow Flight read"
SHAPES: Final = ((1, 1), (1, 4))
MESSAGES: Final = {128: 2_000_000, 1024: 500_000}
PUT_MESSAGES: Final = 200_000
CPU_MAX: Final = {128: 0.15}
"""CPU seconds of the broker per million rows. The prototype of this path took 0.11, and 0.04 where batches lay ready."""
START_SECONDS_MAX: Final = 60.0


def rows(systems: Systems) -> Iterator[Row | LoadRow]:
    broker = systems.brokers[0]
    location = f"grpc://127.0.0.1:{_flight_port(broker)}"
    for size, full in MESSAGES.items():
        messages = systems.messages(full)
        for shape in SHAPES:
            with broker.streams(*shape) as streams:
                _fill(broker, streams, size, messages)
                yield from _reads(broker, streams, location, size, messages)
    with broker.streams(1) as streams:
        yield _put(broker, streams, systems.messages(PUT_MESSAGES))


def _flight_port(broker: Broker) -> int:
    answer = broker.call("FetchMetadata", api_pb2.FetchMetadataRequest(), api_pb2.FetchMetadataResponse)
    return int(answer.brokers[0].flightPort)


def _fill(broker: Broker, streams: Streams, size: int, messages: int) -> None:
    run("nats_load", "blast", port=broker.nats_port, subjects=streams.subjects, messages=messages, size=size)
    stored, _ = broker.await_stored(streams, messages)
    if stored != messages:
        raise RuntimeError(f"{broker.name} stored {stored:,} of {messages:,} messages")


def _reads(broker: Broker, streams: Streams, location: str, size: int, messages: int) -> Iterator[Row | LoadRow]:
    arguments = {"stream": streams.names[0], "partitions": streams.partitions_each, "messages": messages}
    conditions = f"{size} B, {streams.label}"
    built = _measure(broker.process, "read", location, arguments)
    yield load_row(LOAD, conditions, broker.name, *built, cpu_max=CPU_MAX.get(size))
    pruned = _measure(broker.process, "read-columns", location, arguments)
    yield load_row(LOAD, f"{conditions}, offset and value only", broker.name, *pruned)
    with _prebuilt(location, streams) as (process, ready):
        ready_made = _measure(process, "read", ready, arguments)
    yield load_row(LOAD, conditions, "ready-made Arrow", *ready_made)
    ratio = ready_made[0].seconds / built[0].seconds
    yield measured(f"{LOAD}: rows/s of ready-made batches", ratio, "×", conditions)


def _measure(process: Process, mode: str, location: str, arguments: dict[str, object]) -> tuple[Outcome, Usage]:
    process.begin()
    with Running([sys.executable, "-m", "bench.flight_load", mode], {"location": location, **arguments}) as running:
        outcome = running.outcome()
    return outcome, process.usage()


@contextmanager
def _prebuilt(location: str, streams: Streams) -> Iterator[tuple[Process, str]]:
    with tempfile.TemporaryDirectory(prefix="bascule-prebuilt-") as name:
        directory = Path(name)
        addresses = directory / "addresses.json"
        command = [sys.executable, "-m", "bench.flight_prebuilt", "--location", location]
        command += ["--stream", streams.names[0], "--partitions", str(streams.partitions_each)]
        process = Process("prebuilt", [*command, "--addresses", str(addresses)], directory, {"PYTHONPATH": _path()})
        try:
            deadline = time.monotonic() + START_SECONDS_MAX
            while not addresses.exists():
                process.check()
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{process.name} does not serve:\n{process.said()}")
                time.sleep(0.05)
            yield process, f"grpc://127.0.0.1:{json.loads(addresses.read_text())['flight']}"
        finally:
            process.stop()


def _path() -> str:
    """Another working directory, the same modules."""
    return ":".join([str(Path(__file__).resolve().parent.parent), *filter(None, sys.path)])


def _put(broker: Broker, streams: Streams, messages: int) -> Row:
    arguments: dict[str, object] = {"stream": streams.names[0], "messages": messages}
    outcome, usage = _measure(broker.process, "put", f"127.0.0.1:{broker.port}", arguments)
    millions = outcome.messages / 1e6
    conditions = (
        f"128 B, acks of all; CPU-s/M: client {outcome.client_cpu / millions:.2f}, broker {usage.cpu / millions:.2f}"
    )
    return at_least("Arrow Flight put", outcome.messages / outcome.seconds, "rows/s", conditions, 50_000)
