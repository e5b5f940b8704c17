"""Publishing straight to NATS: an envelope on the subject of the partition, and an inbox that the ack comes to.

It saves the way through a broker, needs a connection to NATS, and has the same face as a publisher through brokers. Without an ack
(`ack="none"`) there is what core NATS gives: at most once.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from time import monotonic
from typing import Any, Final, Self

from bascule.client.connection import options
from bascule.client.connection.brokers import Brokers, timed_out
from bascule.client.connection.failures import publish_failure, unknown_outcome
from bascule.client.connection.retry import Deadline
from bascule.client.publish.publish_session import EXPIRY_SECONDS, AckFuture, fail
from bascule.client.publish.publisher import BasePublisher, power_of_two
from bascule.errors import BasculeError, CallerError, RecordTooLarge, Unavailable
from bascule.kernels.nats.protocol import CallbackSink
from bascule.kernels.window.window import PublishWindow, encode_publish_envelope
from bascule.net.nats.auth import Login
from bascule.net.nats.link import LinkOptions, NatsLink

UNSENT_BYTES_MAX: Final = 4 << 20
"""Written and not yet taken by the socket; whoever publishes faster waits."""

WILDCARDS: Final = ("*", ">")


class NatsPublisher(BasePublisher):
    """Publishes to one stream over NATS. Made by `Client.nats_publisher`; connects when it is first used or entered."""

    def __init__(self, brokers: Brokers, stream: str, servers: Iterable[str], login: Login, **choices: Any) -> None:
        super().__init__(stream, **choices)
        self._brokers = brokers
        self._link = NatsLink(
            LinkOptions(servers=tuple(servers), name=f"bascule publisher of {stream}", login=login, connect_attempts=2)
        )
        self._link.on_state = self._on_state
        self._link.on_room = self._tell_room
        self._window = PublishWindow(power_of_two(self.window), on_failed=self._failed, on_lost=self._lost)
        self._inbox = b"_INBOX.bascule." + secrets.token_hex(12).encode()
        self._subjects: dict[int, bytes] = {}
        self._connecting: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._expiry: asyncio.TimerHandle | None = None
        self._reason = ""

    async def connect(self) -> None:
        """Until acks can come. Raises Unavailable. Sending does it by itself."""
        self._check_open()
        if self._connecting is None or (self._connecting.done() and self._connecting.exception() is not None):
            self._connecting = self._loop.create_task(self._connect(), name="nats publisher")
        await asyncio.shield(self._connecting)

    async def _connect(self) -> None:
        info = await self._brokers.stream(self.stream, Deadline.after(self.timeout))
        if any(token in WILDCARDS for token in info.subject.split(".")):
            raise CallerError(
                f"stream `{self.stream}` has the subject `{info.subject}`, and one cannot publish to a wildcard",
                hint="publish through a broker: `client.publisher(…)`",
            )
        self._partitions = len(info.partitions)
        for number in info.partitions:
            self._subjects[number] = subject_of(info.subject, number)
        await self._link.connect()
        self._link.subscribe(self._inbox, CallbackSink(self._on_ack))
        await self._link.flush(self.timeout)

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    # ── sending ──────────────────────────────────────────────────────────────────────────────────

    async def _count_partitions(self) -> int:
        await self.connect()
        return self._partitions

    def _try_send(
        self,
        partition: int,
        value: bytes,
        key: bytes | None,
        headers: dict[str, bytes] | None,
        expected_offset: int,
        future: AckFuture,
    ) -> bool:
        if not self._link.connected or self._link.unsent > UNSENT_BYTES_MAX:
            return False
        subject = self._subjects.get(partition)
        if subject is None:
            raise options.wrong("partition", partition, f"from 0 to {self._partitions - 1}")
        wants_ack = self.ack_policy != options.ACK_POLICIES["none"]
        correlation_id = b""
        if wants_ack:
            if not self._window.free:
                return False
            # The room is checked first: a slot that was taken is given back only by an ack or by time.
            self._check_size(value, key, headers)
            correlation_id = self._window.take(future, monotonic() + self.timeout) or b""
        envelope = encode_publish_envelope(
            value,
            key,
            headers,
            correlation_id=correlation_id,
            expected_offset=expected_offset,
            ack_inbox=self._inbox if wants_ack else b"",
            ack_policy=self.ack_policy,
        )
        self._link.publish(subject, envelope)
        if not wants_ack:
            future.set_result(None)  # type: ignore[arg-type]
        elif self._expiry is None:
            self._expiry = self._loop.call_later(EXPIRY_SECONDS, self._expire)
        return True

    def _check_size(self, value: bytes, key: bytes | None, headers: dict[str, bytes] | None) -> None:
        extra = sum(len(name) + len(one) + 16 for name, one in (headers or {}).items())
        size = len(value) + len(key or b"") + extra + 256
        if self._link.max_payload and size > self._link.max_payload:
            raise RecordTooLarge(
                f"a message of {len(value)} bytes does not fit what the NATS server takes, {self._link.max_payload}",
                hint="raise `max_payload` of nats-server, and `clustering.replication.max.bytes` of the brokers",
            )

    async def _send_later(self, *message: Any) -> None:
        await self.connect()
        try:
            async with asyncio.timeout(self.timeout):
                while not self._try_send(*message):
                    self._room.clear()
                    await self._room.wait()
                    self._check_open()
        except TimeoutError:
            if not self._link.connected:
                raise Unavailable(f"NATS was away for {self.timeout:g} s: {self._reason}") from None
            raise timed_out("waiting for room to publish", self.timeout) from None

    # ── acks ─────────────────────────────────────────────────────────────────────────────────────

    def _on_ack(self, _subject: bytes, _reply: bytes, _headers: bytes | None, payload: bytes) -> None:
        self._window.resolve_envelope(payload)
        self._tell_room()

    def _on_state(self, connected: bool, reason: str) -> None:
        if not connected:
            self._reason = reason
            self._window.lose_all()
        self._tell_room()

    def _tell_room(self) -> None:
        self._room.set()

    def _failed(self, waiter: AckFuture | None, _number: int, code: int, text: str) -> None:
        error = publish_failure(code, text)
        fail(waiter, error)
        self._note(error)

    def _lost(self, publishes: list[tuple[int, AckFuture | None]]) -> None:
        reason = "its time was up" if self._link.connected else self._reason or "the connection to NATS was lost"
        for _, waiter in publishes:
            error: BasculeError = unknown_outcome("the message was sent", reason)
            fail(waiter, error)
            self._note(error)
        self._tell_room()

    def _expire(self) -> None:
        self._expiry = None
        self._window.expire(monotonic())
        if self._window.outstanding:
            self._expiry = self._loop.call_later(EXPIRY_SECONDS, self._expire)

    async def _drain(self) -> None:
        while self._window.outstanding:
            self._room.clear()
            await self._room.wait()
        if self._link.connected:
            await self._link.flush(self.timeout)

    async def _release(self) -> None:
        self._reason = "the publisher was closed"
        if self._connecting is not None:
            self._connecting.cancel()
        await self._link.close()
        self._window.lose_all()
        if self._expiry is not None:
            self._expiry.cancel()


def subject_of(subject: str, partition: int) -> bytes:
    """The subject of a partition: the stream's own for the first, with the number behind it for the others."""
    return (f"{subject}.{partition}" if partition else subject).encode()
