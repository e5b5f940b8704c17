"""A server that speaks HTTP/2 frame by frame and lets a test do what no good server would."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeAlias

import hpack

from tests.support.http2_client import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    Frame,
    frame,
    grpc_message,
    settings,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HEAD: Final = [(":status", "200"), ("content-type", "application/grpc")]


class Peer:
    """One connection of a client, from the server's side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.encoder = hpack.Encoder()
        self.decoder = hpack.Decoder()
        self.seen: list[Frame] = []

    async def begin(self, **values: int) -> None:
        """The preface, and SETTINGS given as `setting_3=1`."""
        assert await self.reader.readexactly(len(PREFACE)) == PREFACE
        self.send(settings({int(name.removeprefix("setting_")): value for name, value in values.items()}))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def headers(self, stream: int, fields: list[tuple[str, str]], *, ends: bool = False) -> None:
        self.send(frame(HEADERS, END_HEADERS | (END_STREAM if ends else 0), stream, self.encoder.encode(fields)))

    def answer(self, stream: int, *messages: bytes, status: str = "0") -> None:
        """As it should be."""
        self.headers(stream, HEAD)
        self.send(frame(DATA, 0, stream, b"".join(map(grpc_message, messages))))
        self.headers(stream, [("grpc-status", status)], ends=True)

    def go_away(self, last: int, code: int = 0, text: bytes = b"") -> None:
        self.send(frame(GOAWAY, 0, 0, last.to_bytes(4, "big") + code.to_bytes(4, "big") + text))

    def reset(self, stream: int, code: int) -> None:
        self.send(frame(RST_STREAM, 0, stream, code.to_bytes(4, "big")))

    async def read(self) -> Frame:
        head = await self.reader.readexactly(9)
        payload = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
        got = Frame(head[3], head[4], int.from_bytes(head[5:], "big"), payload)
        self.seen.append(got)
        if got.kind == SETTINGS and not got.flags & 1:
            self.send(frame(SETTINGS, 1))
        return got

    async def until(self, kind: int, stream: int | None = None) -> Frame:
        while True:
            got = await self.read()
            if got.kind == kind and stream in (None, got.stream):
                return got

    async def request(self) -> tuple[int, dict[str, str]]:
        """The head of the next call."""
        got = await self.until(HEADERS)
        return got.stream, {str(name): str(value) for name, value in self.decoder.decode(got.payload)}

    async def whole_request(self) -> int:
        """The next call whose client has nothing more to say. Calls may be sent at the same time."""
        while True:
            got = await self.read()
            if got.kind in (HEADERS, DATA) and got.flags & END_STREAM:
                return got.stream


Script: TypeAlias = Callable[[Peer], Awaitable[None]]


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[str]:
    """The address of a server that does to each client what the script says, and hangs up when it ends."""
    failures: list[BaseException] = []
    peers: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        peers.add(task)
        try:
            await script(Peer(reader, writer))
            with suppress(ConnectionError):
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except AssertionError as error:
            failures.append(error)
        finally:
            writer.close()
            with suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in list(peers):
            task.cancel()
        await asyncio.gather(*peers, return_exceptions=True)
        await server.wait_closed()
    if failures:
        raise failures[0]
