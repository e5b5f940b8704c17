"""NATS by hand over one blocking socket: exactly the bytes a test wants to send, and whatever comes back."""

from __future__ import annotations

import json
import select
import socket
import time
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from urllib.parse import urlsplit

from tests.support.waiting import PATIENCE_SECONDS


@dataclass(frozen=True)
class NatsMessage:
    subject: str
    reply: str
    headers: bytes
    payload: bytes
    sid: int


class NatsClient:
    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname and parts.port
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout=PATIENCE_SECONDS)
        self._input = b""
        self._arrived: deque[NatsMessage] = deque()
        self._pongs = 0
        self._sid = 0
        try:
            self._greet()
        except BaseException:
            self.close()
            raise

    def _greet(self) -> None:
        self.info = json.loads(self._line().removeprefix(b"INFO "))
        options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": False, "name": "test"}
        self.send(b"CONNECT " + json.dumps(options).encode() + b"\r\n")
        self.flush()

    # ── writing ──────────────────────────────────────────────────────────────────────────────────

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def publish(self, subject: str, payload: bytes = b"", *, reply: str = "", headers: bytes = b"") -> None:
        """The server has it when this returns: whatever anybody sends from then on comes behind it."""
        self.send(self.publication(subject, payload, reply=reply, headers=headers))
        self.flush()

    @staticmethod
    def publication(subject: str, payload: bytes = b"", *, reply: str = "", headers: bytes = b"") -> bytes:
        """The bytes of a PUB, or of an HPUB when there are headers (the lines behind `NATS/1.0`, each with its CRLF)."""
        words = [subject, reply] if reply else [subject]
        if not headers:
            return " ".join(["PUB", *words, str(len(payload))]).encode() + b"\r\n" + payload + b"\r\n"
        block = b"NATS/1.0\r\n" + headers + b"\r\n"
        line = " ".join(["HPUB", *words, str(len(block)), str(len(block) + len(payload))])
        return line.encode() + b"\r\n" + block + payload + b"\r\n"

    def subscribe(self, subject: str, queue: str = "") -> int:
        """Done when it returns."""
        self._sid += 1
        words = ["SUB", subject, queue, str(self._sid)] if queue else ["SUB", subject, str(self._sid)]
        self.send(" ".join(words).encode() + b"\r\n")
        self.flush()
        return self._sid

    def flush(self) -> None:
        """The server has seen everything sent so far."""
        self._pongs = 0
        self.send(b"PING\r\n")
        while not self._pongs:
            self._read_one()

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    def next(self, timeout: float = PATIENCE_SECONDS) -> NatsMessage:
        found = self.poll(timeout)
        assert found is not None, f"no message came within {timeout:g} s"
        return found

    def poll(self, timeout: float) -> NatsMessage | None:
        """The next message, None when there is none in time."""
        deadline = time.monotonic() + timeout
        while not self._arrived:
            left = deadline - time.monotonic()
            if not self._input and (left <= 0 or not select.select([self._socket], [], [], left)[0]):
                return None
            self._read_one()
        return self._arrived.popleft()

    def pending(self) -> list[NatsMessage]:
        """What was delivered to us by now: everything the server got before this call is among it."""
        self.flush()
        found = list(self._arrived)
        self._arrived.clear()
        return found

    def _read_one(self) -> None:
        line = self._line()
        words = line.split()
        if words[0] == b"PONG":
            self._pongs += 1
        elif words[0] == b"PING":
            self.send(b"PONG\r\n")
        elif words[0] in (b"MSG", b"HMSG"):
            self._message(words)
        elif words[0] == b"-ERR":
            raise AssertionError(f"nats-server says {line!r}")

    def _message(self, words: list[bytes]) -> None:
        with_headers = words[0] == b"HMSG"
        size = int(words[-1])
        headers_size = int(words[-2]) if with_headers else 0
        reply = words[3].decode() if len(words) == (6 if with_headers else 5) else ""
        body = self._exactly(size + 2)[:-2]
        found = NatsMessage(words[1].decode(), reply, body[:headers_size], body[headers_size:], int(words[2]))
        self._arrived.append(found)

    def _more(self) -> None:
        data = self._socket.recv(1 << 16)
        if not data:
            raise ConnectionError("nats-server hung up")
        self._input += data

    def _line(self) -> bytes:
        while b"\r\n" not in self._input:
            self._more()
        line, _, self._input = self._input.partition(b"\r\n")
        return line

    def _exactly(self, size: int) -> bytes:
        while len(self._input) < size:
            self._more()
        found, self._input = self._input[:size], self._input[size:]
        return found

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> NatsClient:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()
