"""The files that a message visits in a broker are those of docs/internals/walks.md, and a batch of one message costs few calls.

The brokers run in a thread of this process; publisher and subscriber are sockets and grpcio, which are not below src/bascule. Each walk
is traced several times: functions that most traces do not call belong to something else, such as a heartbeat.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

from bascule.broker.broker import RunningBroker, start_broker
from bascule.broker.ending import BrokerEnding
from bascule.config import load
from bascule.net.listening import take_listening_socket
from tests.broker.walks.pages import SOURCE, files_of
from tests.support.api_client import Api, pb
from tests.support.nats_server import NatsServer
from tests.support.waiting import PATIENCE_SECONDS

TRACES: Final = 7
Call = tuple[str, str]
"""File below src/bascule and function."""


class Tracer:
    """Counts the calls of functions below src/bascule, in all threads that begin while it is installed."""

    def __init__(self) -> None:
        self.calls: Counter[Call] = Counter()
        self._is_recording = False

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if self._is_recording and event == "call":
            path = frame.f_code.co_filename
            if path.startswith(str(SOURCE)):
                self.calls[path[len(str(SOURCE)) + 1 :], frame.f_code.co_qualname] += 1

    def trace(self, action: Callable[[], None]) -> Counter[Call]:
        self.calls = Counter()
        self._is_recording = True
        try:
            action()
        finally:
            self._is_recording = False
        return self.calls


class BrokersInThread:
    """Brokers on one nats-server, on the event loop of a thread."""

    def __init__(self, directory: Path, nats_url: str, names: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.brokers = {name: self._run(self._start(directory / name, nats_url, names, name)) for name in names}

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    async def _start(self, directory: Path, nats_url: str, names: str, name: str) -> RunningBroker:
        settings: dict[str, Any] = {
            "listen": "127.0.0.1:0",
            "data.dir": str(directory),
            "flight.enabled": False,
            "nats.servers": (nats_url,),
            "clustering.server.id": name,
            "clustering.raft.bootstrap.seed": name == names[0],
        }
        config = load(None, settings)
        return await start_broker(config, BrokerEnding(), take_listening_socket(config.listener.bind()))

    def stop(self) -> None:
        for broker in reversed(self.brokers.values()):
            self._run(broker.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def tracer() -> Iterator[Tracer]:
    tracer = Tracer()
    threading.setprofile(tracer)
    yield tracer
    threading.setprofile(None)
    sys.setprofile(None)


@contextmanager
def running(tmp_path: Path, names: str) -> Iterator[tuple[NatsServer, BrokersInThread]]:
    nats = NatsServer(tmp_path / "nats")
    nats.start()
    try:
        brokers = BrokersInThread(tmp_path, nats.url, names)
        try:
            yield nats, brokers
        finally:
            brokers.stop()
    finally:
        nats.stop()


def walk(tracer: Tracer, action: Callable[[], None]) -> tuple[Counter[Call], int]:
    """The calls that most traces of the action have, each as often as in the middle one, and the calls of the shortest trace.

    Raft is left out: its heartbeats go on.
    """
    traces = [
        Counter({call: count for call, count in tracer.trace(action).items() if not call[0].startswith("raft/")})
        for _ in range(TRACES)
    ]
    functions = {call for trace in traces for call in trace}
    usual = +Counter({call: sorted(trace[call] for trace in traces)[TRACES // 2] for call in functions})
    return usual, min(trace.total() for trace in traces)


def check_walk(section: str, tracer: Tracer, action: Callable[[], None], *, files_max: int, calls_max: int) -> None:
    """A slow machine only adds calls: a write that took long sends the next ones to a thread, a follower fetches once more. So the walk
    is repeated for up to a minute, until one is as short as the page says."""
    for _ in range(3):
        action()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        calls, least = walk(tracer, action)
        files = {file for file, _ in calls}
        if files == files_of(section) and least <= calls_max:
            break
        if time.monotonic() > deadline:
            listed = "\n".join(f"{count:3d} {file} {name}" for (file, name), count in sorted(calls.items()))
            assert files == files_of(section), listed
            assert least <= calls_max, listed
    assert len(files) <= files_max


def test_a_plain_message_visits_the_files_of_the_page(tmp_path: Path, tracer: Tracer) -> None:
    with running(tmp_path, "a") as (nats, brokers):
        api = Api(str(brokers.brokers["a"].address))
        api.CreateStream(name="orders", subject="orders")
        reader = api.subscribe("orders")
        with socket.create_connection(("127.0.0.1", nats.port)) as publisher:
            publisher.sendall(b'CONNECT {"verbose":false}\r\nPING\r\n')

            def publish() -> None:
                publisher.sendall(b"PUB orders 5\r\nhello\r\n")
                assert reader.take(1)[0].value == b"hello"

            check_walk("Plain message", tracer, publish, files_max=20, calls_max=80)
        reader.cancel()
        api.close()


def test_a_replicated_message_visits_the_files_of_the_page(tmp_path: Path, tracer: Tracer) -> None:
    """All three brokers are counted."""
    with running(tmp_path, "abc") as (_, brokers):
        apis = [Api(str(broker.address)) for broker in brokers.brokers.values()]
        apis[0].CreateStream(name="orders", subject="orders", replicationFactor=3)
        partition = apis[0].FetchMetadata(streams=["orders"]).streamMetadata[0].partitions[0]
        leader = apis["abc".index(partition.leader)]
        session = leader.publish_async()

        def publish() -> None:
            session.send("orders", b"hello", ackPolicy=pb.ALL)
            assert session.take(1)[0].ack.offset >= 0

        check_walk("PublishAsync with three replicas", tracer, publish, files_max=36, calls_max=700)
        session.finish()
        for api in apis:
            api.close()
