"""A line that is cut again and again, in the middle of whatever is on it: nothing acked is missing, nothing comes twice."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import pytest

import bascule
from tests.support.broker_fixtures import StartBroker
from tests.support.on_loop import on_loop, soon, until

pytestmark = pytest.mark.disturbs

CUTS = 60


class Line:
    """Passes bytes on to a broker, in pieces, until it is cut."""

    def __init__(self) -> None:
        self.target = ("", 0)
        self.cuts = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(*self.target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, back}
        if self._server is None or not self._server.is_serving():  # closed meanwhile
            self.cut()
        for source, sink in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._pass(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(random.choice((7, 500, 60_000))):
                sink.write(data)
                await sink.drain()
        sink.transport.abort()
        self._writers.discard(sink)

    def cut(self) -> None:
        """Every connection, at once: what is on the way is lost."""
        self.cuts += 1
        for writer in list(self._writers):
            writer.transport.abort()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.sleep(0.05)  # for whoever was just being connected
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def line_to(start_broker: StartBroker) -> AsyncIterator[Line]:
    """A broker at the end of a line."""
    line = Line()
    await line.open()
    broker = await asyncio.to_thread(start_broker)
    host, _, port = broker.address.rpartition(":")
    line.target = (host, int(port))
    try:
        yield line
    finally:
        await line.close()


@on_loop
async def test_a_line_that_is_cut_again_and_again(start_broker: StartBroker, name: str) -> None:
    acked: dict[bytes, int] = {}
    sent: list[tuple[bytes, asyncio.Future[bascule.Ack]]] = []
    seen: list[tuple[int, bytes]] = []
    stopping = asyncio.Event()

    async def publish(client: bascule.Client) -> None:
        number = 0
        publisher = client.publisher(name, window=256, timeout=60, on_error=lambda _: None)
        while not stopping.is_set():
            value = b"%d " % number + bytes(number * 37 % 3000)
            number += 1
            with contextlib.suppress(bascule.Unavailable):
                sent.append((value, await publisher.send(value)))
            if number % 10 == 0:
                await asyncio.sleep(0.001)
        await publisher.flush()

    async def read(client: bascule.Client) -> None:
        async for batch in client.subscribe(name, start="earliest").batches():
            seen.extend(zip(batch.offsets, [value or b"" for value in batch.values()], strict=True))

    async with line_to(start_broker) as line, bascule.connect(f"127.0.0.1:{line.port}", timeout=60) as client:
        await client.create_stream(name)
        client._brokers.addresses = lambda: [("127.0.0.1", line.port)]  # type: ignore[method-assign]  # not around the line
        publishing = asyncio.create_task(publish(client))
        reading = asyncio.create_task(read(client))
        for _ in range(CUTS):
            before = len(seen)
            await until(lambda before=before: len(seen) > before + 20, "messages flow")  # type: ignore[misc]
            await asyncio.sleep(random.random() * 0.02)
            line.cut()
        stopping.set()
        await soon(publishing, 120)
        for value, future in sent:
            with contextlib.suppress(bascule.OutcomeUnknown):
                acked[value] = (await future).offset
        last = max(acked.values())
        await until(lambda: seen[-1][0] >= last, "everything acked is read")
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)

    assert line.cuts >= CUTS
    numbers = [offset for offset, _ in seen]
    assert numbers == list(range(len(numbers))), "a gap or a repeat"
    values = [value for _, value in seen]
    assert len(set(values)) == len(values), "a message that was stored twice"
    stored = dict(zip(values, numbers, strict=True))
    assert {value: stored.get(value) for value in acked} == acked
    assert len(acked) < len(sent), "sixty cuts leave something in doubt"


@on_loop
async def test_calls_of_every_kind_through_a_line_that_is_cut(start_broker: StartBroker, name: str) -> None:
    async with line_to(start_broker) as line, bascule.connect(f"127.0.0.1:{line.port}", timeout=60) as client:
        client._brokers.addresses = lambda: [("127.0.0.1", line.port)]  # type: ignore[method-assign]
        await client.create_stream(name)
        stopping = asyncio.Event()

        async def cut() -> None:
            while not stopping.is_set():
                await asyncio.sleep(random.random() * 0.05)
                line.cut()

        cutting = asyncio.create_task(cut())
        for _ in range(50):
            assert name in (await client.fetch_metadata([name])).streams
            assert (await client.fetch_partition_metadata(name)).id == 0
            await client.set_readonly(name, readonly=False)
        stopping.set()
        await cutting
