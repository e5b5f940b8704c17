"""Real nats-servers with routes between them, each of which can be killed and started again where it was."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Final

from tests.support.nats_server import NatsServer, binary
from tests.support.tcp_proxy import ProxyProcess

NOWHERE: Final = "127.0.0.1:1"
"""An address at which no server listens."""


class RoutedNatsServer(NatsServer):
    """One server of a cluster. It does not tell clients of the others: who has a list of servers keeps to it."""

    def __init__(self, directory: Path, name: str, route_port: int, routes: list[int]) -> None:
        super().__init__(directory)
        self.name = name
        self.route_port = route_port
        self.routes = routes
        self.is_hidden = False
        """The other servers connect to it at the addresses they were given, and do not learn its own."""

    def start(self) -> None:
        ports = self._directory / "ports"
        shutil.rmtree(ports, ignore_errors=True)
        ports.mkdir(parents=True)
        command = [binary(), "-a", "127.0.0.1", "-p", str(self.port), "--ports_file_dir", str(ports)]
        command += ["-l", str(self._directory / "nats.log"), "--server_name", self.name, "--no_advertise"]
        command += ["--cluster_name", "test", "--cluster", f"nats://127.0.0.1:{self.route_port}"]
        command += ["--routes", ",".join(f"nats://127.0.0.1:{port}" for port in self.routes)]
        command += ["--cluster_advertise", NOWHERE] if self.is_hidden else []
        self._process = subprocess.Popen(command)
        self.port = self._wait_for_port(ports)


class NatsCluster:
    def __init__(self, directory: Path, count: int = 3) -> None:
        route_ports = _free_ports(count)
        self.servers = [
            RoutedNatsServer(directory / f"nats-{number}", f"nats-{number}", port, route_ports)
            for number, port in enumerate(route_ports)
        ]

    def route_through(self, proxy: ProxyProcess) -> None:
        """Before the start: a line that can be cut for each server's connections to each other one, see `lines_between`."""
        ports = [server.route_port for server in self.servers]
        for here, server in enumerate(self.servers):
            there = [number for number in range(len(ports)) if number != here]
            server.routes = [proxy.open(_line(here, number), ports[number]) for number in there]
            server.is_hidden = True

    def lines_between(self, one: int, other: int) -> list[str]:
        return [_line(one, other), _line(other, one)]

    def start(self) -> None:
        for server in self.servers:
            server.start()

    def stop(self) -> None:
        for server in self.servers:
            server.stop()

    def __enter__(self) -> NatsCluster:
        self.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.stop()


def _line(here: int, there: int) -> str:
    return f"route/{here}/{there}"


def _free_ports(count: int) -> list[int]:
    """Routes are told before their servers exist, so their ports have to be known."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
