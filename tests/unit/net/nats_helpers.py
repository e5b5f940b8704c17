"""What the tests of the connection to NATS share: both event loops, a server that does what a test tells it, patience."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import uvloop

from bascule.net.nats.link import LinkOptions, NatsLink

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def run(loop: str, main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main)


async def until(holds: Callable[[], object], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.005)


class PatientLink(NatsLink):
    """A server may stand still for a while."""

    async def flush(self, timeout: float = 60.0) -> None:
        await super().flush(timeout)


class Watched:
    """A link and all that it told."""

    def __init__(self, link: NatsLink) -> None:
        self.link = link
        self.states: list[tuple[bool, str]] = []
        self.errors: list[str] = []
        link.on_state = lambda connected, reason: self.states.append((connected, reason))
        link.on_error = self.errors.append


@asynccontextmanager
async def linked(*servers: str, **options: Any) -> AsyncIterator[Watched]:
    """A link that is connected, and closed at the end."""
    options = {"reconnect_wait_seconds": 0.01, "connect_seconds_max": 60.0, **options}
    watched = Watched(PatientLink(LinkOptions(servers=servers, name="test", **options)))
    await watched.link.connect()
    try:
        yield watched
    finally:
        await watched.link.close()


Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def scripted(*scripts: Script) -> AsyncIterator[str]:
    """A server that treats its first client after the first script, the next after the next, and all others after the last."""
    clients = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal clients
        script = scripts[min(clients, len(scripts) - 1)]
        clients += 1
        try:
            await script(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"


INFO = b"INFO " + json.dumps({"server_id": "x", "max_payload": 1048576, "headers": True}).encode() + b"\r\n"


async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> dict[str, Any]:
    """The server's side of a login; what the client said of itself."""
    writer.write(INFO)
    line = await reader.readuntil(b"\r\n")
    assert line.startswith(b"CONNECT ")
    assert await reader.readuntil(b"\r\n") == b"PING\r\n"
    writer.write(b"PONG\r\n")
    fields: dict[str, Any] = json.loads(line.removeprefix(b"CONNECT "))
    return fields


async def serve_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer PINGs until the client goes."""
    while line := await reader.readline():
        if line == b"PING\r\n":
            writer.write(b"PONG\r\n")


async def stay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server without faults, and without messages."""
    await accept(reader, writer)
    await serve_on(reader, writer)
