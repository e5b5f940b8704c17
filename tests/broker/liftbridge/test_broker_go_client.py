"""go-liftbridge's PublishAsync over a restart of a lone broker, with that client's sequence of calls.

The client has one PublishAsync call for each broker. When it ends with UNAVAILABLE, the client dials again, at most five times and 50
ms apart; a port that refuses all of them, any other status, and a regular end make it give up for good.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.api_client import Api, grpc, pb
from tests.support.broker_fixtures import StartBroker, unique_name
from tests.support.broker_process import clean_environ
from tests.support.nats_server import NatsServer
from tests.support.waiting import PATIENCE_SECONDS, eventually

DIALS: Final = 5
DIAL_SECONDS: Final = 0.05


class GoPublisher:
    """The asynchronous publisher of go-liftbridge: `dispatchAcks`, `reconnect` and `publishAsync`."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel: grpc.Channel | None = None
        self._requests: queue.Queue[Any] = queue.Queue()
        self._acks: queue.Queue[Any] = queue.Queue()
        self.gave_up = ""
        self._is_closed = False
        call = self._redial()
        assert call is not None
        self._thread = threading.Thread(target=self._dispatch_acks, args=(call,), daemon=True)
        self._thread.start()

    def _redial(self) -> Any:
        """Dial and begin the call; None if the connection was refused."""
        channel = grpc.insecure_channel(self._address, options=[("grpc.use_local_subchannel_pool", 1)])
        states: queue.Queue[Any] = queue.Queue()
        channel.subscribe(states.put, try_to_connect=True)
        while (state := states.get()) not in (
            grpc.ChannelConnectivity.READY,
            grpc.ChannelConnectivity.TRANSIENT_FAILURE,
        ):
            continue
        if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            channel.close()
            return None
        if self._channel is not None:
            self._channel.close()
        self._channel, self._requests = channel, queue.Queue()
        begin = channel.stream_stream(
            "/proto.API/PublishAsync",
            request_serializer=lambda one: one.SerializeToString(),
            response_deserializer=pb.PublishResponse.FromString,
        )
        return begin(iter(self._requests.get, None))

    def _dispatch_acks(self, call: Any) -> None:
        while True:
            try:
                self._acks.put(next(call))
            except StopIteration:
                self.gave_up = "the call ended regularly"
                return
            except grpc.RpcError as error:
                if self._is_closed:
                    return
                call = self._reconnect() if error.code() is grpc.StatusCode.UNAVAILABLE else None
                if call is None:
                    self.gave_up = f"{error.code()}: {error.details()}"
                    return

    def _reconnect(self) -> Any:
        for _ in range(DIALS):
            if (call := self._redial()) is not None:
                return call
            time.sleep(DIAL_SECONDS)
        return None

    def publish(self, stream: str, value: bytes) -> bool:
        """Whether the message was acked within the client's 5 s."""
        correlation = unique_name("m")
        self._requests.put(pb.PublishRequest(stream=stream, value=value, correlationId=correlation, expectedOffset=-1))
        deadline = time.monotonic() + 5
        while (left := deadline - time.monotonic()) > 0:
            with suppress(queue.Empty):
                answer = self._acks.get(timeout=left)
                if answer.ack.correlationId == correlation:
                    return True
        return False

    def close(self) -> None:
        self._is_closed = True
        if self._channel is not None:
            self._channel.close()


# ── a supervisor that keeps the port ─────────────────────────────────────────────────────────────


class Supervised:
    """A broker whose listening socket outlives it, as a socket unit of systemd arranges it."""

    def __init__(self, directory: Path, nats_url: str) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        file = directory / "bascule.json"
        file.write_text(json.dumps({"listen": self.address, "flight.enabled": False, "http.enabled": False}))
        self._arguments = ["-c", str(file), "-d", str(directory / "data"), "--nats-servers", nats_url]
        self._arguments += ["--raft-bootstrap-seed", "--namespace", unique_name("kept")]
        self._log = directory / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        own = self._socket.fileno()
        script = f'exec 3<&{own}; export LISTEN_PID=$$ LISTEN_FDS=1; exec "$@"'
        command = ["bash", "-c", script, "bash", sys.executable, "-m", "bascule.broker", *self._arguments]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=clean_environ(), pass_fds=(own,))

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        self._socket.close()


@pytest.fixture
def supervised(tmp_path: Path, nats_server: NatsServer) -> Iterator[Supervised]:
    broker = Supervised(tmp_path, nats_server.url)
    broker.start()
    yield broker
    broker.close()


def test_publish_async_goes_on_after_a_restart_if_the_port_is_kept(supervised: Supervised) -> None:
    with closing(Api(supervised.address)) as api:
        api.CreateStream(name="s", subject=unique_name("s"), timeout=PATIENCE_SECONDS)
    with closing(GoPublisher(supervised.address)) as publisher:
        assert publisher.publish("s", b"before")
        for _ in range(2):
            supervised.kill()
            time.sleep(2 * DIALS * DIAL_SECONDS)  # longer than the client tries
            supervised.start()
            eventually(lambda: publisher.gave_up or publisher.publish("s", b"after"), "a message is acked again")
            assert publisher.gave_up == ""


# ── without a supervisor ─────────────────────────────────────────────────────────────────────────


def is_open(address: str) -> bool:
    host, port = address.rsplit(":", 1)
    with suppress(OSError), closing(socket.create_connection((host, int(port)))):
        return True
    return False


def test_a_lone_broker_that_stops_keeps_its_port_to_the_end(start_broker: StartBroker) -> None:
    broker = start_broker()
    assert is_open(broker.address) and is_open(broker.http_address)
    os.kill(broker.pid, signal.SIGTERM)
    while broker.is_running:
        if not is_open(broker.address):
            assert not is_open(broker.http_address), "the gRPC port was closed before the last parts were stopped"
    assert broker.wait() == 0
