"""Clients that others wrote, on a stream with three replicas: they read on without a gap when its leader is killed, or hands over."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.interop.test_gufo_liftbridge import REQUIREMENTS as GUFO
from tests.interop.test_python_liftbridge import REQUIREMENTS as PYTHON_LIFTBRIDGE
from tests.support.api_client import grpc, pb
from tests.support.cluster import ASK_SECONDS, RECOVERY_SECONDS, Cluster
from tests.support.external_clients import python_with
from tests.support.nats_server import NatsServer
from tests.support.replicas import new_leader
from tests.support.waiting import eventually

STREAM = "clients"
ENOUGH = 150


class Reader:
    """What a client has read so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.offsets: list[int] = []
        self.values: list[bytes] = []

    def take(self, offset: int, value: bytes) -> None:
        self.offsets.append(offset)
        self.values.append(value)


@contextmanager
def script(reader: Reader, python: Path, name: str, cluster: Cluster) -> Iterator[None]:
    """A client in a process of its own, which prints what it reads."""
    environ = {**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python", "PYTHONUNBUFFERED": "1"}
    environ.pop("PYTHONPATH", None)
    command = [str(python), str(Path(__file__).with_name(name)), STREAM, *cluster.addresses]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environ)

    def listen() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            offset, _, value = line.strip().partition(b" ")
            if offset.isdigit():
                reader.take(int(offset), value)

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        yield
    finally:
        process.kill()
        process.wait()
        listener.join()
        if process.stdout is not None:
            process.stdout.close()


@contextmanager
def thread(work: Callable[[threading.Event], None]) -> Iterator[None]:
    end = threading.Event()
    running = threading.Thread(target=work, args=(end,))
    running.start()
    try:
        yield
    finally:
        end.set()
        running.join()


def read_with_grpcio(reader: Reader, cluster: Cluster, end: threading.Event) -> None:
    """The plain API: whoever is not the leader says so, whoever goes away ends the call; then another one is asked."""
    while not end.wait(0.05):
        for name in cluster.servers:
            with suppress(grpc.RpcError, StopIteration):
                call = cluster.api(name).subscribe(
                    STREAM, startPosition=pb.OFFSET, startOffset=len(reader.offsets), timeout=5
                )
                while not end.is_set():
                    message = call.next()
                    reader.take(message.offset, message.value)


def publish(acked: dict[bytes, int], cluster: Cluster, end: threading.Event) -> None:
    """One message after the other, each until all replicas have it."""
    number = 0
    while not end.wait(0.004):
        value = b"%d" % number
        for name in cluster.servers:
            if name not in cluster.well:
                continue
            with suppress(grpc.RpcError):
                ack = cluster.api(name).publish(STREAM, value, ackPolicy=pb.ALL, timeout=ASK_SECONDS)
                acked[value] = ack.offset
                number += 1
                break


def everything(cluster: Cluster) -> list[bytes] | None:
    """None while whoever leads is not whom we asked."""
    with suppress(grpc.RpcError):
        return [message.value for message in cluster.api(cluster.leader_of(STREAM)).read(STREAM)]
    return None


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory, nats_server: NatsServer) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("clients"), nats=nats_server) as found:
        found.create_stream(STREAM)
        yield found


def test_they_read_on_when_the_leader_is_killed_and_when_it_stops(cluster: Cluster) -> None:
    gufo, python_liftbridge = python_with("gufo", GUFO), python_with("python-liftbridge", PYTHON_LIFTBRIDGE)
    readers = [Reader("gufo-liftbridge"), Reader("python-liftbridge"), Reader("grpcio")]
    acked: dict[bytes, int] = {}

    def wait_for_more() -> None:
        before = {reader.name: len(reader.offsets) for reader in readers}
        for reader in readers:
            eventually(
                lambda reader=reader: len(reader.offsets) > before[reader.name] + ENOUGH,  # type: ignore[misc]
                f"{reader.name} reads on",
                RECOVERY_SECONDS,
            )

    with (
        script(readers[0], gufo, "gufo_reader.py", cluster),
        script(readers[1], python_liftbridge, "python_liftbridge_reader.py", cluster),
        thread(lambda end: read_with_grpcio(readers[2], cluster, end)),
        thread(lambda end: publish(acked, cluster, end)),
    ):
        wait_for_more()
        for deed in (cluster.kill, cluster.stop):
            old = cluster.leader_of(STREAM)
            deed(old)
            new_leader(cluster, STREAM, old)
            cluster.restart(old)  # gufo waits for a broker it has once connected to
            cluster.wait_until_in_sync(STREAM)
            wait_for_more()
    log = eventually(lambda: everything(cluster), "somebody leads")
    assert all(log[offset] == value for value, offset in acked.items()), "a message that was acked is lost"
    for reader in readers:
        assert reader.offsets == list(range(len(reader.offsets))), f"{reader.name} has a gap or a repeat"
        assert reader.values == log[: len(reader.values)], reader.name
