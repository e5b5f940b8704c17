"""What the link to NATS costs: messages into a sink that counts, publishes out of a kernel, beside a receiver in C.

Publisher, nats-server and receiver share the machine, so messages per second are mostly the server's; the CPU is the receiver's own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bascule.broker.embedded_nats import EmbeddedNats, EmbeddedNatsOptions
from bascule.kernels.nats.protocol import NatsReader, publish_many
from bascule.kernels.wire.output import OutputBuffer
from bascule.net.nats.link import LinkOptions, NatsLink
from bench.load_tools import Running, tool
from bench.report import Row, at_most, measured
from tests.support.kernels.probes import CountingSink

MESSAGES: Final = 3_000_000
SIZE: Final = 128
WHAT: Final = f"{SIZE}-byte messages"
UNSENT_MAX: Final = 4 << 20


def rows(directory: Path) -> Iterator[Row]:
    yield from scanning()
    yield from writing()
    yield from asyncio.run(through_the_server(directory))


def scanning() -> Iterator[Row]:
    """The scan alone, over a read that lies in memory."""
    reader = NatsReader(message_bytes_max=1 << 20, line_bytes_max=4096)
    reader.attach(1, CountingSink())
    data = (b"MSG orders.new 1 %d\r\n" % SIZE + bytes(SIZE) + b"\r\n") * 5_000
    rounds = 400
    began = time.process_time()
    for _ in range(rounds):
        reader.examine(data)
    spent = time.process_time() - began
    yield at_most("nats scan", spent / (rounds * 5_000) * 1e6, "CPU-s/M", f"{WHAT}, from memory", 0.1)


def writing() -> Iterator[Row]:
    output = OutputBuffer()
    rounds = 400
    began = time.process_time()
    for _ in range(rounds):
        publish_many(output, b"orders.new", bytes(SIZE), 5_000)
        output.clear()
    spent = time.process_time() - began
    yield at_most("nats publish", spent / (rounds * 5_000) * 1e6, "CPU-s/M", f"{WHAT}, into memory", 0.1)


async def through_the_server(directory: Path) -> list[Row]:
    nats = EmbeddedNats(EmbeddedNatsOptions(directory=directory / "nats", port=0))
    await nats.start()
    port = int(nats.url.rpartition(":")[2])
    try:
        found = [await receive(nats.url, port), await publish(nats.url)]
        return [row for group in found for row in group] + list(await asyncio.to_thread(compare, port))
    finally:
        await nats.stop()


async def receive(url: str, port: int) -> list[Row]:
    link = NatsLink(LinkOptions(servers=(url,), name="bench"))
    await link.connect()
    sink = CountingSink()
    link.subscribe(b"bench.in", sink)
    await link.flush()
    blast = {"port": port, "subjects": "bench.in", "messages": MESSAGES, "size": SIZE}
    with Running([tool("nats_load"), "blast"], blast) as publisher:
        began, began_cpu = time.monotonic(), time.process_time()
        while sink.messages < MESSAGES and link.connected:
            await asyncio.sleep(0.01)
        seconds, spent = time.monotonic() - began, time.process_time() - began_cpu
        await asyncio.to_thread(publisher.outcome)
    await link.close()
    return [
        measured("nats link receives", sink.messages / seconds, "msg/s", f"{WHAT}, one publisher"),
        at_most("nats link receives", spent / sink.messages * 1e6, "CPU-s/M", f"{WHAT}, one publisher", 0.2),
    ]


async def publish(url: str) -> list[Row]:
    link = NatsLink(LinkOptions(servers=(url,), name="bench"))
    await link.connect()
    began, began_cpu = time.monotonic(), time.process_time()
    for _ in range(MESSAGES // 500):
        publish_many(link.output, b"bench.out", bytes(SIZE), 500)
        link.schedule_flush()
        await asyncio.sleep(0)
        while link.unsent > UNSENT_MAX:
            await asyncio.sleep(0.001)
    await link.flush(60)
    seconds, spent = time.monotonic() - began, time.process_time() - began_cpu
    await link.close()
    return [
        measured("nats link publishes", MESSAGES / seconds, "msg/s", f"{WHAT}, no subscriber"),
        at_most("nats link publishes", spent / MESSAGES * 1e6, "CPU-s/M", f"{WHAT}, no subscriber", 0.2),
    ]


def compare(port: int) -> Iterator[Row]:
    """A subscriber in C that only counts: what the server can deliver, and what receiving costs at least."""
    counted = {"port": port, "subject": "bench.in", "messages": MESSAGES, "silence_ms": 5_000}
    blast = {"port": port, "subjects": "bench.in", "messages": MESSAGES, "size": SIZE}
    with Running([tool("nats_load"), "count"], counted, ready=True) as counter:
        with Running([tool("nats_load"), "blast"], blast) as publisher:
            publisher.outcome()
        outcome = counter.outcome()
    yield measured("nats C receiver", outcome.messages / outcome.seconds, "msg/s", f"{WHAT}, one publisher")
    yield measured("nats C receiver", outcome.client_cpu / outcome.messages * 1e6, "CPU-s/M", f"{WHAT}, one publisher")
