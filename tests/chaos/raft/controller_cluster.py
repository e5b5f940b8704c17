"""Controllers as real processes on a real nats-server, and a client that asks them and remembers what they answered."""

from __future__ import annotations

import asyncio
import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bascule.errors import Unavailable
from bascule.net.nats.bus import NatsBus
from tests.support.linearizability import Operation
from tests.support.nats_server import NatsServer

ROOT = Path(__file__).resolve().parents[3]
ANSWER_SECONDS = 6.0


class ControllerCluster:
    def __init__(self, directory: Path, nats: NatsServer, bus: NatsBus, servers: list[str], **options: Any) -> None:
        self.directory = directory
        self.nats = nats
        self.bus = bus
        self.servers = servers
        self.options = options
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.history: dict[str, list[Operation]] = {}

    # ── processes ────────────────────────────────────────────────────────────────────────────────

    def start(self, server: str, **more: Any) -> None:
        given = {
            "nats": self.nats.url,
            "directory": str(self.directory / server),
            "namespace": "test",
            "server_id": server,
            **self.options,
            **more,
        }
        command = [sys.executable, "-m", "tests.chaos.raft.controller_process", json.dumps(given)]
        self.processes[server] = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)

    def kill(self, server: str) -> None:
        process = self.processes.pop(server)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()

    def kill_all(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGKILL)
        for server in list(self.processes):
            self.kill(server)

    # ── asking ───────────────────────────────────────────────────────────────────────────────────

    async def status(self, server: str, timeout: float = 5.0) -> dict[str, Any] | None:
        try:
            answer = await self.bus.request(f"test.test.{server}", b'{"call": "status"}', timeout)
        except Unavailable:
            return None
        found: dict[str, Any] = json.loads(answer)
        return found

    async def leader(self, timeout: float = 90.0) -> str:
        """The server that leads, once one does."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            for server in list(self.processes):
                status = await self.status(server)
                if status is not None and status["is_leader"]:
                    return server
            await asyncio.sleep(0.02)
        raise AssertionError("no leader emerged")

    async def ask(self, process: int, server: str, call: str, name: str) -> str | None:
        """Ask, and write the answer into the history. An error that says it was not done leaves no trace."""
        started = time.monotonic()
        request = json.dumps({"call": call, "name": name}).encode()
        answer: str | None = None
        try:
            answer = json.loads(await self.bus.request(f"test.test.{server}", request, ANSWER_SECONDS))
        except Unavailable as error:
            if "no server listens" in error.message:
                return "error: nobody there"
        if answer is not None and answer.startswith("error"):
            return answer
        ended = time.monotonic() if answer is not None else math.inf
        self.history.setdefault(name, []).append(Operation(process, call, answer, started, ended))
        return answer

    async def until(self, server: str, call: str, name: str, wanted: set[str], timeout: float = 90.0) -> str:
        """Ask until the answer is one that was hoped for."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            answer = await self.ask(-1, server, call, name)
            if answer in wanted:
                assert answer is not None
                return answer
            await asyncio.sleep(0.02)
        raise AssertionError(f"{server} never answered {call} {name} with one of {wanted}")
