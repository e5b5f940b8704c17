"""A child process in a session of its own, and the last lines of its standard error."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

LINE_BYTES_MAX: Final = 16 * 1024
LINES_KEPT: Final = 50


class ChildProcess(asyncio.Protocol):
    """Has ended when its standard error is closed. Ctrl-C does not reach it: its parent stops it in order."""

    def __init__(
        self,
        command: list[str],
        environment: Mapping[str, str],
        *,
        stop_seconds_max: float,
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        """Must be called on the main thread."""
        self.ended = asyncio.Event()
        self.last_lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._stop_seconds_max = stop_seconds_max
        self._on_line = on_line
        self._partial = b""
        self._transport: asyncio.BaseTransport | None = None
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=environment,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status; None while it runs."""
        return self._process.poll()

    async def watch(self) -> None:
        """Begin to read its standard error."""
        assert self._process.stderr is not None  # it was made with a pipe
        await asyncio.get_running_loop().connect_read_pipe(lambda: self, self._process.stderr)

    async def stop(self) -> None:
        """Terminate it, kill it when that takes too long, and wait for its exit."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            self._process.send_signal(number)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.ended.wait(), self._stop_seconds_max)
                break
        await asyncio.to_thread(self._process.wait)
        if self._transport is not None:
            self._transport.close()

    # ── asyncio calls these ──

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        self._partial = self._partial[-LINE_BYTES_MAX:]
        for line in lines:
            text = line.decode(errors="replace").rstrip()
            self.last_lines.append(text)
            if self._on_line is not None:
                self._on_line(text)

    def connection_lost(self, _exc: Exception | None) -> None:
        # The pipe closes shortly before the process ends.
        if self.status is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=1)
        self.ended.set()
