"""A client's and a server's end of HTTP/2 in one process, without sockets: what one puts out, the other is fed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from bascule.kernels.grpc.client import ClientConnection, ClientStream
from bascule.kernels.grpc.server import CallStream, GrpcConnection
from bascule.net.grpc.protocol import connection_limits


class ServerCall(CallStream):
    """The server's end of a call: keeps what came and does what the test says."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.is_half_closed = False
        self.has_ended = False
        self.on_received: Callable[[bytes], Any] | None = None

    def received(self, message: bytes) -> None:
        self.messages.append(message)
        if self.on_received is not None:
            self.on_received(message)

    def client_finished(self) -> None:
        self.is_half_closed = True

    def ended(self) -> None:
        self.has_ended = True


class CallPair:
    """One connection; every call of the client to `/test` gets a ServerCall, the newest is `call`. `routes` are more calls of the
    server."""

    def __init__(
        self, rng: random.Random | None = None, routes: dict[bytes, Callable[[], Any]] | None = None, **bounds: int
    ) -> None:
        self.calls: list[ServerCall] = []
        self.faults: list[Exception] = []
        self._rng = rng
        self.client = ClientConnection(connection_limits(**bounds))
        self.server = GrpcConnection(connection_limits(), routes={b"/test": self._accept, **(routes or {})})
        self.client.on_fault = self.server.on_fault = self.faults.append

    def _accept(self) -> ServerCall:
        self.calls.append(ServerCall())
        return self.calls[-1]

    @property
    def call(self) -> ServerCall:
        return self.calls[-1]

    def open(self, stream: ClientStream) -> ServerCall:
        self.client.open(stream, b"/test")
        self.exchange()
        return self.call

    def exchange(self) -> None:
        """Until neither has anything to say. With a random generator bytes come in pieces of any size."""
        while self._carry(self.client, self.server) + self._carry(self.server, self.client):
            pass

    def _carry(self, source: Any, target: Any) -> int:
        source.flush()
        data = bytes(source.output)
        source.output.clear()
        at = 0
        while at < len(data):
            size = len(data) if self._rng is None else self._rng.choice((1, 9, 14, 100, 5000, 100_000))
            target.feed(data[at : at + size])
            at += size
        return len(data)
