"""An attacker with full access to NATS: it records all internal messages and sends them again, changes them, or forges its own."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from bascule.net.nats.seal import SealedChannel, SealKeys
from tests.support.nats_client import NatsClient, NatsMessage

RECORDED_MAX: Final = 20_000
BURST: Final = 50
PAUSE_SECONDS: Final = 0.02


class Attacker:
    """Does not know the cluster secret. `forge` sends bytes as they are and under a seal of another secret."""

    def __init__(self, url: str, namespace: str, seed: int = 1) -> None:
        self._url = url
        self._namespace = namespace
        self._random = random.Random(seed)
        self._nats = NatsClient(url)
        self._keys = SealKeys(["not the secret of the cluster"], namespace)
        self._recorded: deque[NatsMessage] = deque(maxlen=RECORDED_MAX)
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self.sent = 0

    def forge(
        self, subject: str, payload: bytes, *, sender: str = "", purpose: str = "control", reply: str = ""
    ) -> None:
        self._nats.send(NatsClient.publication(subject, payload, reply=reply))
        self.sent += 1
        if sender:
            channel = SealedChannel(self._keys, self._namespace, purpose, sender, lambda _subject, _data: None)
            seal = channel.seal(subject.encode(), payload, reply.encode())
            self._nats.send(NatsClient.publication(subject, seal + payload, reply=reply))
            self.sent += 1

    def subscribe(self, subject: str) -> None:
        self._nats.subscribe(subject)

    def next_heard(self) -> NatsMessage:
        return self._nats.next()

    def heard(self, seconds: float) -> list[NatsMessage]:
        found = []
        while (message := self._nats.poll(seconds)) is not None:
            found.append(message)
        return found

    # ── recording and replaying ──────────────────────────────────────────────────────────────────

    @contextmanager
    def at_work(self) -> Iterator[Attacker]:
        """Records, replays, reorders, changes and floods in a thread until the block ends."""
        thread = threading.Thread(target=self._work, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._stopping.set()
            thread.join()
        if self._failure is not None:
            raise self._failure

    def _work(self) -> None:
        attacks: list[Callable[[NatsMessage], tuple[str, bytes, str]]] = [
            self._replay,
            self._redirect,
            self._change,
            self._cut,
            self._noise,
        ]
        try:
            with NatsClient(self._url) as nats:
                nats.subscribe(f"{self._namespace}.>")
                while not self._stopping.is_set():
                    self._recorded += nats.pending()
                    output = b""
                    for _ in range(min(BURST, len(self._recorded))):
                        message = self._random.choice(self._recorded)
                        subject, payload, reply = self._random.choice(attacks)(message)
                        output += NatsClient.publication(subject, payload, reply=reply)
                        self.sent += 1
                    nats.send(output)
                    time.sleep(PAUSE_SECONDS)
        except BaseException as error:
            self._failure = error

    def _replay(self, message: NatsMessage) -> tuple[str, bytes, str]:
        return message.subject, message.payload, message.reply

    def _redirect(self, message: NatsMessage) -> tuple[str, bytes, str]:
        return self._random.choice(self._recorded).subject, message.payload, message.reply

    def _change(self, message: NatsMessage) -> tuple[str, bytes, str]:
        data = bytearray(message.payload or b"x")
        for _ in range(self._random.randint(1, 4)):
            data[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)
        return message.subject, bytes(data), message.reply

    def _cut(self, message: NatsMessage) -> tuple[str, bytes, str]:
        return message.subject, message.payload[: self._random.randrange(len(message.payload) + 1)], message.reply

    def _noise(self, message: NatsMessage) -> tuple[str, bytes, str]:
        return message.subject, self._random.randbytes(self._random.randrange(2048)), message.reply

    def close(self) -> None:
        self._nats.close()
