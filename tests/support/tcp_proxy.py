"""Lines between brokers and NATS that can be cut. `python -m tests.support.tcp_proxy` is a process that holds all lines of a test.

Three ways to cut a line:
    hold     nothing passes; what was sent meanwhile arrives late, when the line is whole again. A network that lost its route.
    swallow  what is sent is taken and thrown away; when the line is whole again its connections are reset. A firewall.
    reset    connections are reset, and new ones are reset at once. A server that is gone.
And a way to make it worse without cutting it:
    slow     everything arrives, each piece some time later: a tenth of a second, unless a test says otherwise.

The process reads orders from its standard input, one JSON object a line, and answers each with one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
PASS: Final = "pass"
HOLD: Final = "hold"
SWALLOW: Final = "swallow"
RESET: Final = "reset"
SLOW: Final = "slow"
CUTS: Final = (HOLD, SWALLOW, RESET)
DELAY_SECONDS: Final = 0.1
UNSENT_BYTES_MAX: Final = 1 << 20


class _Side(asyncio.Protocol):
    """One end of a connection through a line. Reads only while the other end keeps up and the line is not held."""

    def __init__(self, line: _Line) -> None:
        self.line = line
        self.transport: asyncio.Transport | None = None
        self.other: _Side | None = None
        self._is_choked = False
        self._late: deque[bytes] = deque()
        """What the other end sent and gets here later, in its order."""
        line.sides.add(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(UNSENT_BYTES_MAX)
        transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        if self.other is None or self.other.transport is None or self.line.mode not in (PASS, SLOW):
            return
        if self.line.mode == SLOW:
            self.other._late.append(data)
            asyncio.get_running_loop().call_later(self.line.delay_seconds, self.other._arrive)
        else:
            self.other.transport.write(data)

    def _arrive(self) -> None:
        if self._late and self.line.mode == SLOW:
            self._write(self._late.popleft())

    def catch_up(self) -> None:
        """What is late arrives before anything that comes from now on."""
        while self._late:
            self._write(self._late.popleft())

    def _write(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def look(self) -> None:
        """Read or do not read, as things are."""
        if self.transport is None or self.transport.is_closing():
            return
        wants = self.line.mode != HOLD and not (self.other is not None and self.other._is_choked)
        if self.other is None and self.line.mode in (PASS, SLOW):
            wants = False  # nobody to give it to yet
        if wants and not self.transport.is_reading():
            self.transport.resume_reading()
        elif not wants and self.transport.is_reading():
            self.transport.pause_reading()

    def pause_writing(self) -> None:
        self._is_choked = True
        if self.other is not None:
            self.other.look()

    def resume_writing(self) -> None:
        self._is_choked = False
        if self.other is not None:
            self.other.look()

    def connection_lost(self, _error: Exception | None) -> None:
        self.line.sides.discard(self)
        if self.other is not None and self.other.transport is not None and not self.other.transport.is_closing():
            self.other.transport.close()

    def reset(self) -> None:
        if self.transport is not None:
            with contextlib.suppress(OSError):
                raw = self.transport.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()


class _Incoming(_Side):
    """The end of whoever connects; the connection to the target follows when the line lets it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self.line.mode == RESET:
            self.reset()
        else:
            self.line.start(self)


class _Line:
    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.mode = PASS
        self.delay_seconds = DELAY_SECONDS
        self.sides: set[_Side] = set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._healed = asyncio.Event()
        self._healed.set()

    async def open(self) -> int:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Incoming(self), "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    def start(self, side: _Side) -> None:
        self._tasks.add(task := asyncio.get_running_loop().create_task(self._join(side)))
        task.add_done_callback(self._tasks.discard)

    async def _join(self, side: _Side) -> None:
        side.look()
        await self._healed.wait()
        try:
            _, other = await asyncio.get_running_loop().create_connection(lambda: _Side(self), *self.target)
        except OSError:
            side.reset()
            return
        if side.transport is None or side.transport.is_closing():
            other.reset()
            return
        side.other, other.other = other, side
        side.look()
        other.look()

    def set_mode(self, mode: str) -> None:
        before, self.mode = self.mode, mode
        if RESET in (before, mode) or before == SWALLOW:
            for side in list(self.sides):
                side.reset()
        if mode in (PASS, SLOW):
            self._healed.set()
        else:
            self._healed.clear()
        for side in list(self.sides):
            side.catch_up()
            side.look()


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    lines: dict[str, _Line] = {}
    while order := await orders.readline():
        given = json.loads(order)
        answer: dict[str, Any] = {}
        if "target" in given:
            lines[given["line"]] = line = _Line((given["target"][0], given["target"][1]))
            answer["port"] = await line.open()
        else:
            lines[given["line"]].delay_seconds = given.get("delay", DELAY_SECONDS)
            lines[given["line"]].set_mode(given["mode"])
        print(json.dumps(answer), flush=True)


class ProxyProcess:
    """All lines of a test, each known by a name."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.tcp_proxy"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def _order(self, **what: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the proxy is gone"
        told: dict[str, Any] = json.loads(answer)
        return told

    def open(self, line: str, port: int) -> int:
        """A line to a port of this machine; the port where it begins."""
        return int(self._order(line=line, target=["127.0.0.1", port])["port"])

    def cut(self, line: str, how: str) -> None:
        assert how in CUTS, how
        self._order(line=line, mode=how)

    def slow_down(self, line: str, seconds: float = DELAY_SECONDS) -> None:
        self._order(line=line, mode=SLOW, delay=seconds)

    def heal(self, line: str) -> None:
        self._order(line=line, mode=PASS)

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


if __name__ == "__main__":
    asyncio.run(_serve())
