"""Publishing straight to NATS: an envelope on the partition's subject, and an inbox for the acks."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from typing import Final

from bascule.client.connection import options
from bascule.client.connection.brokers import Brokers
from bascule.client.connection.retry import TimeLimit
from bascule.client.publish.carrier import Carrier, OnFailure, Parcel, Route, WindowCarrier
from bascule.client.publish.sessions import power_of_two
from bascule.errors import CallerError, RecordTooLarge, Unavailable
from bascule.kernels.nats.protocol import CallbackSink
from bascule.kernels.window.message import PublishMessage
from bascule.kernels.window.window import PublishWindow, encode_publish_envelope
from bascule.net.nats.auth import Login
from bascule.net.nats.link import LinkOptions, NatsLink

UNSENT_BYTES_MAX: Final = 4 << 20
"""Bytes written and not yet taken by the socket; at the limit `send` waits."""

ENVELOPE_BYTES: Final = 256
HEADER_BYTES: Final = 16
"""Upper estimates of what an envelope adds to a message, and to each of its headers."""

WILDCARDS: Final = ("*", ">")


class NatsCarrier(WindowCarrier):
    """One connection to NATS for all partitions of a stream: carrier and routes in one."""

    def __init__(
        self,
        brokers: Brokers,
        stream: str,
        servers: Iterable[str],
        login: Login,
        *,
        window: int,
        timeout: float,
        on_failure: OnFailure,
    ) -> None:
        super().__init__(on_failure)
        self._brokers = brokers
        self._stream = stream
        self._timeout = timeout
        self._link = NatsLink(
            LinkOptions(servers=tuple(servers), name=f"bascule publisher of {stream}", login=login, connect_attempts=2)
        )
        self._link.on_state = self._on_state
        self._link.on_room = self._room.set
        self._window = PublishWindow(power_of_two(window), on_failed=self._failed, on_lost=self._lost)
        self._inbox = b"_INBOX.bascule." + secrets.token_hex(12).encode()
        self._subjects: dict[int, bytes] = {}
        self._connecting: asyncio.Task[None] | None = None
        self._why_away = ""
        self._is_closed = False

    async def connect(self) -> None:
        if self._connecting is None or (self._connecting.done() and self._connecting.exception() is not None):
            self._connecting = self._loop.create_task(self._connect(), name="nats publisher")
        await asyncio.shield(self._connecting)

    async def _connect(self) -> None:
        info = await self._brokers.stream(self._stream, TimeLimit.after(self._timeout))
        if any(token in WILDCARDS for token in info.subject.split(".")):
            raise CallerError(
                f"stream `{self._stream}` has the subject `{info.subject}`: no message can be published to a wildcard",
                hint="publish through a broker: `client.publisher(…)`",
            )
        self._subjects = {number: subject_of(info.subject, number) for number in info.partitions}
        await self._link.connect()
        self._link.subscribe(self._inbox, CallbackSink(self._on_ack))
        await self._link.flush(self._timeout)

    async def flush(self) -> None:
        """Return when the NATS server has received everything."""
        if self._link.connected:
            await self._link.flush(self._timeout)

    async def end(self) -> None:
        await self._link.close()

    # ── routes ───────────────────────────────────────────────────────────────────────────────────

    def ready(self, _stream: str, _partition: int) -> Route | None:
        return Route(self, "") if self.is_usable else None

    async def get(self, _stream: str, partition: int, _deadline: TimeLimit) -> Route:
        await self.connect()
        if partition not in self._subjects:
            raise options.wrong("partition", partition, f"from 0 to {len(self._subjects) - 1}")
        return Route(self, "")

    async def has_moved(self, _stream: str, _partition: int, _led_by: str) -> bool:
        return False  # a subject has no leader

    def carriers(self) -> list[Carrier]:
        return [self]

    def close(self) -> None:
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        self._window.lose_all()
        self.disarm()
        self._room.set()

    # ── sending ──────────────────────────────────────────────────────────────────────────────────

    @property
    def is_usable(self) -> bool:
        return self._link.connected

    @property
    def is_idle(self) -> bool:
        return self._window.outstanding == 0

    async def wait_for_room(self, deadline: TimeLimit) -> None:
        try:
            async with asyncio.timeout(deadline.left):
                while not self._has_room() and not self._is_closed:
                    self._room.clear()
                    await self._room.wait()
        except TimeoutError:
            if self._link.connected:
                raise
            raise Unavailable(f"there was no connection to NATS for {self._timeout:g} s: {self._why_away}") from None

    def retire(self) -> None:
        """There is no other connection."""

    def _has_room(self) -> bool:
        return self._link.connected and self._link.unsent <= UNSENT_BYTES_MAX and self._window.free > 0

    def post(self, message: PublishMessage, headers: dict[str, bytes] | None, until: float) -> bool:
        lane = message.lane
        subject = self._subjects.get(lane.target.partition)
        if subject is None or not self._has_room():
            return False
        policy = lane.target.ack_policy
        wants_ack = policy != options.ACK_NONE
        # Checked before a slot is taken, which only an ack or time gives back.
        self._check_size(message.value, message.key, headers)
        envelope = encode_publish_envelope(
            message.value,
            message.key,
            headers,
            correlation_id=(self._window.take(message, until) or b"") if wants_ack else b"",
            expected_offset=message.expected_offset,
            ack_inbox=self._inbox if wants_ack else b"",
            ack_policy=policy,
        )
        self._link.publish(subject, envelope)
        if wants_ack:
            self.arm()
        return True

    def _check_size(self, value: bytes, key: bytes | None, headers: dict[str, bytes] | None) -> None:
        extra = sum(len(name) + len(one) + HEADER_BYTES for name, one in (headers or {}).items())
        size = len(value) + len(key or b"") + extra + ENVELOPE_BYTES
        if self._link.max_payload and size > self._link.max_payload:
            raise RecordTooLarge(
                f"a message of {len(value)} bytes exceeds `max_payload` of the NATS server, {self._link.max_payload}",
                hint="raise `max_payload` of nats-server, and `clustering.replication.max.bytes` of the brokers",
            )

    # ── answers ──────────────────────────────────────────────────────────────────────────────────

    def pending(self) -> list[Parcel]:
        return self._window.pending()

    def expire(self, now: float) -> None:
        self._window.expire(now)
        self._room.set()

    def _on_ack(self, _subject: bytes, _reply: bytes, _headers: bytes | None, payload: bytes) -> None:
        self._window.resolve_envelope(payload)
        self._room.set()

    def _on_state(self, connected: bool, reason: str) -> None:
        if not connected:
            self._why_away = reason
            self._window.lose_all()
        self._room.set()

    def _reason(self) -> str:
        if self._is_closed:
            return "the publisher was closed"
        return "no ack came in time" if self._link.connected else self._why_away or "the connection to NATS was lost"


def subject_of(subject: str, partition: int) -> bytes:
    """The subject of a partition: the stream's own for partition 0, followed by the number for the others."""
    return (f"{subject}.{partition}" if partition else subject).encode()
