"""A Go Liftbridge server as others on NATS see it: its subjects and answers, without streams.

It listens to the subjects of its control plane, answers the survey of servers, announces itself as a seed, and stops when another
server announces itself, as the Go server does. It records every message that could change its cluster.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Final

from bascule.proto.internal_pb2 import ServerInfoRequest, ServerInfoResponse
from tests.support import envelopes
from tests.support.nats_client import NatsClient, NatsMessage

SERVER_INFO_REQUEST: Final = 10
SERVER_INFO_RESPONSE: Final = 11
ANNOUNCE_SECONDS: Final = 0.2
"""The Go server announces itself every 10 s."""


class GoLiftbridge:
    def __init__(self, nats_url: str, namespace: str, server_id: str = "go.server-1") -> None:
        self.namespace, self.server_id = namespace, server_id
        self.stopped_by: bytes | None = None
        """The message that stopped it."""
        self.disturbed_by: list[NatsMessage] = []
        """Join requests and forwarded operations: they change the members and the metadata of its cluster."""
        self._prefix = f"{namespace}.raft.metadata"
        self._nats = NatsClient(nats_url)
        for subject in ("info", "join", "propagate", "bootstrap", "bootstrap.reply", f"status.{server_id}"):
            self._nats.subscribe(f"{self._prefix}.{subject}")
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="go-liftbridge", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        announced = 0.0
        while not self._is_closing.is_set() and self.stopped_by is None:
            if time.monotonic() - announced > ANNOUNCE_SECONDS:
                announced = time.monotonic()
                inbox = f"{self._prefix}.bootstrap.reply"
                self._nats.publish(f"{self._prefix}.bootstrap", self.server_id.encode(), reply=inbox)
            message = self._nats.poll(0.05)
            if message is not None:
                self._take(message)

    def _take(self, message: NatsMessage) -> None:
        kind = message.subject.removeprefix(f"{self._prefix}.")
        if kind == "info":
            self._answer_survey(message)
        elif kind.startswith("bootstrap"):
            if message.payload != self.server_id.encode():
                self.stopped_by = message.payload
        else:
            self.disturbed_by.append(message)

    def _answer_survey(self, message: NatsMessage) -> None:
        if ServerInfoRequest.FromString(envelopes.unwrap(message.payload, SERVER_INFO_REQUEST)).id != self.server_id:
            answer = ServerInfoResponse(id=self.server_id, host="go-host", port=9292).SerializeToString()
            self._nats.publish(message.reply, envelopes.wrap(answer, kind=SERVER_INFO_RESPONSE))

    def check_undisturbed(self) -> None:
        assert self.stopped_by is None, f"a bootstrap message stopped the Liftbridge server: {self.stopped_by!r}"
        assert self._thread.is_alive()
        assert self.disturbed_by == []

    def close(self) -> None:
        self._is_closing.set()
        self._thread.join()
        self._nats.close()

    def __enter__(self) -> GoLiftbridge:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()
