"""A server on a thread of its own, and what it answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

from bascule.kernels.grpc.server import CallStream, UnaryStream
from bascule.net.grpc.admission import AdmissionBounds
from bascule.net.grpc.protocol import connection_limits
from bascule.net.grpc.server import Call, GrpcServer, Route, unary


class Echo(CallStream):
    """Every message back, and OK after the last."""

    def received(self, message: bytes) -> None:
        self.send(message)

    def client_finished(self) -> None:
        self.finish(0)


class Count(CallStream):
    """As many messages of 1,000 bytes as the request says."""

    def __init__(self) -> None:
        self.left = 0
        self.asked = False

    def received(self, message: bytes) -> None:
        self.left = int(message)
        self.asked = True
        self.writable()

    def writable(self) -> None:
        while self.left and self.room_bytes:
            self.send(self.left.to_bytes(4, "big") * 250)
            self.left -= 1
        if self.asked and not self.left:
            self.finish(0)


class Early(CallStream):
    """Ends without having heard anything."""

    def opened(self) -> None:
        self.send(b"enough")
        self.finish(9, "I do not want to hear it")


class Withheld(CallStream):
    """Never gives window back."""

    def opened(self) -> None:
        self.withhold(True)
        self.send_headers()


class Broken(CallStream):
    def received(self, message: bytes) -> None:
        raise RuntimeError(f"planted: {message!r}")


async def hello(request: bytes, _: Call) -> bytes:
    if request == b"sleep":
        await asyncio.sleep(60)
    return b"hello " + request


def routes() -> dict[bytes, Route]:
    return {
        b"/test/Echo": Echo,
        b"/test/Count": Count,
        b"/test/Early": Early,
        b"/test/Withheld": Withheld,
        b"/test/Broken": Broken,
        b"/test/Hello": unary(hello),
        b"/test/Unary": lambda: UnaryStream(lambda stream, request: stream.reply(request)),
    }


class ServerThread:
    """A GrpcServer with an event loop of its own, for blocking clients."""

    def __init__(self, make: Callable[[], GrpcServer]) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.server, self.port = self.run(self._start(make))

    @staticmethod
    async def _start(make: Callable[[], GrpcServer]) -> tuple[GrpcServer, int]:
        server = make()
        return server, await server.start()

    async def _stop(self) -> tuple[GrpcServer, int]:
        await self.server.stop()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)
        return self.server, self.port

    def run(self, job: object) -> tuple[GrpcServer, int]:
        return asyncio.run_coroutine_threadsafe(job, self.loop).result(60)  # type: ignore[arg-type]

    def stop(self) -> None:
        self.run(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Of a server with the limits that servers have."""
    served = ServerThread(lambda: GrpcServer(routes()))
    yield served.port
    served.stop()


@pytest.fixture
def small_server() -> Iterator[Callable[..., ServerThread]]:
    """Makes servers with limits that a test can reach."""
    running: list[ServerThread] = []

    def make(*, preface_seconds: float = 10, connections_max: int = 100, **changed: int) -> ServerThread:
        bounds = connection_limits(**changed)
        running.append(
            ServerThread(
                lambda: GrpcServer(
                    routes(),
                    bounds=bounds,
                    preface_seconds=preface_seconds,
                    admission=AdmissionBounds(connections_max=connections_max),
                )
            )
        )
        return running[-1]

    yield make
    for one in running:
        one.stop()
