"""The data plane's connection to NATS, which reconnects with the same subscriptions.

    link = NatsLink(LinkOptions(servers=("nats://127.0.0.1:4222",), name="broker"))
    await link.connect()
    sid = link.subscribe(b"orders", sink)
    await link.flush()                        # the server has the subscription
    link.publish(b"orders", b"…")

The kernel `nats/protocol` scans the bytes; no code here runs per message. When a connection is lost, the link discards unsent output,
and it refuses publishes without a connection: a failed publish can be retried, one that arrives minutes late cannot be undone.
Callers with publishes in flight get the loss from `on_state`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bascule import __version__, limits
from bascule.errors import BasculeError, CallerError, Unavailable
from bascule.kernels.nats.protocol import SUBJECT_BYTES_MAX, Event, MessageSink, NatsReader, publish
from bascule.kernels.wire.output import OutputBuffer
from bascule.net.nats.address import NatsAddress, ServerList
from bascule.net.nats.auth import Login, client_tls
from bascule.net.nats.connection import Connection

REFUSALS: Final = ("authorization violation", "user authentication", "authentication", "account authentication")
"""Starts of the errors with which a server refuses a login, in lower case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOptions:
    servers: tuple[str, ...]
    name: str
    login: Login = field(default_factory=Login)
    tls: ssl.SSLContext | None = None
    """Requires TLS of every server. Without it, a server that wants TLS needs a certificate that the system trusts."""
    connect_attempts: int = limits.NATS_CONNECT_ATTEMPTS
    connect_seconds_max: float = limits.NATS_CONNECT_SECONDS_MAX
    reconnect_wait_seconds: float = limits.NATS_RECONNECT_WAIT_SECONDS
    ping_seconds: float = limits.NATS_PING_SECONDS


@dataclass(slots=True)
class LinkStats:
    """Counters of the link; the reader counts messages."""

    reconnects: int = 0
    errors: int = 0
    pauses: int = 0
    publishes_refused: int = 0
    bytes_discarded: int = 0
    """Output that was discarded because the connection was lost."""


@dataclass(frozen=True, slots=True)
class _Subscription:
    subject: bytes
    queue: bytes

    def line(self, sid: int) -> bytes:
        queue = self.queue + b" " if self.queue else b""
        return b"SUB %b %b%d\r\n" % (self.subject, queue, sid)


class _LoginRefused(Exception):
    """The server refused the login."""


class NatsLink:
    """Not thread-safe: belongs to the event loop that ran `connect`."""

    def __init__(self, options: LinkOptions) -> None:
        self.options = options
        self.reader = NatsReader(
            message_bytes_max=limits.NATS_MESSAGE_BYTES_MAX, line_bytes_max=limits.NATS_LINE_BYTES_MAX
        )
        self.reader.on_fault = self._report
        self.stats = LinkStats()
        self.info: dict[str, Any] = {}
        """The server's last INFO."""
        self.server: NatsAddress | None = None
        self.on_state: Callable[[bool, str], None] = _ignore
        """Connected or not, and the server or the reason."""
        self.on_error: Callable[[str], None] = _ignore
        """An error that a server sent, or the reason why no connection was made."""
        self._on_read: Callable[[], object] = self.reader.touched
        self.on_room: Callable[[], None] = _ignore
        """The socket has taken output that had to wait."""
        self._servers = ServerList(options.servers)
        self._subscriptions: dict[int, _Subscription] = {}
        self._next_sid = 1
        self._connection: Connection | None = None
        self._pongs: deque[asyncio.Future[None] | None] = deque()
        self._is_paused = False
        self._is_closing = False
        self._refusals = 0
        self._maintainer: asyncio.Task[None] | None = None

    # ── state ──

    @property
    def on_read(self) -> Callable[[], object]:
        """Called after each read; has to call `reader.touched()`, which returns the sinks that got messages."""
        return self._on_read

    @on_read.setter
    def on_read(self, callback: Callable[[], object]) -> None:
        self._on_read = callback
        if self._connection is not None:
            self._connection.on_read = callback

    @property
    def connected(self) -> bool:
        return self.reader.connected

    @property
    def output(self) -> OutputBuffer:
        """Bytes to send. Write only while `connected`, then call `schedule_flush`."""
        return self.reader.output

    @property
    def unsent(self) -> int:
        """Bytes that the socket has not taken yet."""
        held = 0 if self._connection is None else self._connection.unsent
        return len(self.reader.output) + held

    @property
    def max_payload(self) -> int:
        return self.reader.max_payload

    @property
    def is_reading_paused(self) -> bool:
        return self._is_paused

    # ── connecting ──

    async def connect(self) -> None:
        """Connect to one of the servers, and from then on reconnect automatically. Raises Unavailable when none answers."""
        self.options.login.check()
        problem = ""
        for attempt in range(self.options.connect_attempts):
            if attempt:
                await asyncio.sleep(self._wait_seconds())
            problem = await self._try_servers()
            if not problem:
                break
        else:
            raise Unavailable(f"no NATS server can be used at {self._servers}: {problem}", hint=self._hint())
        self._maintainer = asyncio.create_task(self._maintain(), name="nats-link")

    def _hint(self) -> str:
        if self._refusals:
            return "correct `nats.user` and `nats.password`, `nats.token`, `nats.nkey.seed` or `nats.creds`"
        return "start nats-server, or correct `nats.servers`"

    async def _maintain(self) -> None:
        while not self._is_closing:
            assert self._connection is not None  # this task starts after the first connection
            await self._connection.lost.wait()
            while not self._is_closing:
                await asyncio.sleep(self._wait_seconds())
                problem = await self._try_servers()
                if not problem:
                    self.stats.reconnects += 1
                    break
                self._complain(problem)

    def _wait_seconds(self) -> float:
        wait = self.options.reconnect_wait_seconds
        if self._refusals:
            wait = min(wait * 2.0 ** min(self._refusals, 16), limits.NATS_REFUSED_WAIT_SECONDS_MAX)
        return wait + random.random() * wait

    async def _try_servers(self) -> str:
        """Try each server once. Return the reason of the last failure, empty when connected."""
        problem = ""
        refused = False
        for _ in range(len(self._servers)):
            address = self._servers.next()
            try:
                async with asyncio.timeout(self.options.connect_seconds_max):
                    await self._open(address)
            except TimeoutError:
                problem = f"{address} does not answer within {self.options.connect_seconds_max:g} s"
            except _LoginRefused as error:
                refused = True
                problem = f"{address} refuses the login: {error}"
            except BasculeError as error:
                problem = f"{address}: {error.message}"
            except Exception as error:
                # An unexpected error must not end the reconnecting.
                problem = f"{address}: {getattr(error, 'strerror', None) or error or type(error).__name__}"
            else:
                self._refusals = 0
                return ""
            self._drop(problem)
        self._refusals = self._refusals + 1 if refused else 0
        return problem

    async def _open(self, address: NatsAddress) -> None:
        loop = asyncio.get_running_loop()
        self.reader.reset()
        connection = Connection(self.reader, self._on_events, self._on_lost)
        connection.on_read = self._on_read
        connection.on_room = self._after_room
        self._connection = connection
        await loop.create_connection(lambda: connection, *address.place)
        info = await self._expect("INFO")
        if info.get("tls_required") or address.tls or self.options.tls is not None:
            if not info.get("tls_required") and not info.get("tls_available"):
                raise Unavailable("the server does not offer TLS")
            context = self.options.tls or client_tls()
            await connection.start_tls(context, address.tls_name or address.host)
        connection.write(self._connect_line(address, info) + b"PING\r\n")
        await self._expect("PONG")
        self._begin(address, connection)

    def _connect_line(self, address: NatsAddress, info: Mapping[str, Any]) -> bytes:
        nonce = info.get("nonce")
        fields: dict[str, Any] = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "echo": True,
            "protocol": 1,
            "lang": "bascule",
            "version": __version__,
            "name": self.options.name,
        }
        login = self.options.login
        if login.is_empty and address.user is not None:
            # As in other clients, a user without a password in a URL is a token.
            login = (
                Login(token=address.user)
                if address.password is None
                else Login(user=address.user, password=address.password)
            )
        fields |= login.answer(nonce if isinstance(nonce, str) else None)
        return b"CONNECT %b\r\n" % json.dumps(fields).encode()

    async def _expect(self, kind: str) -> dict[str, Any]:
        """Wait for a control line of the login."""
        assert self._connection is not None  # the caller logs in over it
        outcome = await self._connection.next_event()
        if outcome[0] == "-ERR":
            text = _quoted(outcome[1])
            if text.lower().startswith(REFUSALS):
                raise _LoginRefused(text)
            raise Unavailable(text)
        if outcome[0] != kind:
            raise Unavailable(f"the server says {outcome[0]} instead of {kind}")
        if kind == "INFO":
            self._take_info(outcome[1])
        return self.info

    def _begin(self, address: NatsAddress, connection: Connection) -> None:
        """After the login: subscribe again, then allow publishing."""
        connection.log_in()
        self.server = address
        self._learn(address)
        self._pongs.clear()
        lines = [subscription.line(sid) for sid, subscription in self._subscriptions.items()]
        self.reader.output.append(b"".join(lines))
        self.reader.connected = True
        connection.keep_alive(self.options.ping_seconds, self._ping)
        if self._is_paused:
            connection.pause_reading()
        connection.schedule_flush()
        self._tell(self.on_state, True, str(address))

    async def close(self) -> None:
        """Send waiting output, then disconnect. The link cannot connect again."""
        if self._is_closing:
            return
        self._is_closing = True
        if self.connected:
            with contextlib.suppress(Unavailable):
                await self.flush(timeout=1.0)
        if self._maintainer is not None:
            self._maintainer.cancel()
            await asyncio.gather(self._maintainer, return_exceptions=True)
        self._drop("closed")

    # ── subscribing and publishing ──

    def subscribe(self, subject: bytes, sink: MessageSink, queue: bytes = b"") -> int:
        """Send the messages of a subject to a sink, now and after each reconnect. Returns the id for `unsubscribe`."""
        _check_word("subject", subject)
        if queue:
            _check_word("queue group", queue)
        sid = self._next_sid
        self.reader.attach(sid, sink)
        self._next_sid += 1
        subscription = self._subscriptions[sid] = _Subscription(subject, queue)
        if self.connected:
            self.reader.output.append(subscription.line(sid))
            self.schedule_flush()
        return sid

    def unsubscribe(self, sid: int) -> None:
        if self._subscriptions.pop(sid, None) is None:
            return
        self.reader.detach(sid)
        if self.connected:
            self.reader.output.append(b"UNSUB %d\r\n" % sid)
            self.schedule_flush()

    def publish(
        self, subject: bytes, payload: bytes, reply: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> None:
        """Publish a message. Raises Unavailable while there is no connection. Kernels write to `output` directly."""
        if not self.connected:
            self.stats.publishes_refused += 1
            raise Unavailable("the connection to NATS is down")
        block = None if headers is None else encode_headers(headers)
        size = len(payload) + len(block or b"")
        if size > self.max_payload:
            raise CallerError(
                f"{size} bytes are more than the NATS server takes: {self.max_payload}",
                hint="raise `max_payload` in the configuration of nats-server",
            )
        try:
            publish(self.reader.output, subject, payload, reply, block)
        except ValueError as error:
            raise CallerError(str(error)) from None
        self.schedule_flush()

    def schedule_flush(self) -> None:
        """Send the output at the end of this loop turn."""
        if self._connection is not None:
            self._connection.schedule_flush()

    async def flush(self, timeout: float = 5.0) -> None:
        """Wait until the server has processed everything written so far. Raises Unavailable after the timeout."""
        if not self.connected:
            raise Unavailable("the connection to NATS is down")
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ping(answer)
        try:
            async with asyncio.timeout(timeout):
                await answer
        except TimeoutError:
            raise Unavailable(f"the NATS server does not answer within {timeout:g} s") from None

    def _ping(self, answer: asyncio.Future[None] | None = None) -> None:
        self._pongs.append(answer)
        self.reader.output.append(b"PING\r\n")
        self.schedule_flush()

    def pause_reading(self) -> None:
        """Stop reading: nats-server buffers then, and closes the connection when its buffer is full. The last resort."""
        if not self._is_paused:
            self._is_paused = True
            self.stats.pauses += 1
            if self.connected and self._connection is not None:
                self._connection.pause_reading()

    def resume_reading(self) -> None:
        self._is_paused = False
        if self.connected and self._connection is not None:
            self._connection.resume_reading()

    # ── callbacks of the connection ──

    def _after_room(self) -> None:
        self._tell(self.on_room)

    def _on_events(self, events: tuple[Event, ...]) -> None:
        for kind, detail in events:
            if kind == "PONG":
                answer = self._pongs.popleft() if self._pongs else None
                if answer is not None and not answer.done():
                    answer.set_result(None)
            elif kind == "-ERR":
                self._complain(_quoted(detail))
            elif kind == "INFO":
                try:
                    self._take_info(detail)
                except Unavailable as error:
                    self._drop(error.message)
                    return
                if self.server is not None:
                    self._learn(self.server)

    def _on_lost(self, reason: str) -> None:
        self._drop(reason)

    def _drop(self, reason: str) -> None:
        """The connection ended: discard its output and input, so that none of it reaches the next connection."""
        connection, was_connected = self._connection, self.connected
        if connection is not None:
            connection.abort(reason)
            if was_connected:
                self.stats.bytes_discarded += connection.bytes_discarded + len(self.output)
        self.reader.reset()
        pongs, self._pongs = self._pongs, deque()
        for answer in pongs:
            if answer is not None and not answer.done():
                answer.set_exception(Unavailable(f"the connection to NATS was lost: {reason}"))
        if was_connected:
            self._tell(self.on_state, False, reason)

    def _take_info(self, text: bytes) -> None:
        try:
            info = json.loads(text)
            payload_bytes = info.get("max_payload", 0)
            if not isinstance(payload_bytes, int) or not 0 <= payload_bytes < 1 << 62:
                raise ValueError("max_payload")
        except (ValueError, AttributeError, RecursionError):
            raise Unavailable("the server's INFO cannot be read") from None
        self.info = info
        self.reader.max_payload = payload_bytes

    def _learn(self, address: NatsAddress) -> None:
        urls = self.info.get("connect_urls")
        if isinstance(urls, list):
            self._servers.learn(urls, address)

    def _complain(self, text: str) -> None:
        self.stats.errors += 1
        self._tell(self.on_error, text)

    def _tell(self, listener: Callable[..., None], *news: object) -> None:
        """Call a callback; its exception is reported and does not end the connection."""
        try:
            listener(*news)
        except Exception as error:
            self._report(error)

    def _report(self, error: Exception) -> None:
        trouble = {"message": "a callback of the NATS link failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(trouble)


def encode_headers(headers: Mapping[str, str]) -> bytes:
    """Return the header block of a message. Raises CallerError for a name or value with a line break."""
    lines = ["NATS/1.0"]
    for name, value in headers.items():
        if not name or any(character in ":\r\n" for character in name) or "\r" in value or "\n" in value:
            raise CallerError(f"`{name}` and its value cannot be a header of NATS")
        lines.append(f"{name}: {value}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def _check_word(kind: str, word: bytes) -> None:
    if not 0 < len(word) <= SUBJECT_BYTES_MAX or any(byte <= 0x20 or byte == 0x7F for byte in word):
        raise CallerError(f"{word!r} is no {kind} of NATS: no spaces or control characters, not empty, not too long")


def _quoted(detail: bytes) -> str:
    """Return the text of an error without quotes."""
    return detail.decode(errors="replace").strip().strip("'")


def _ignore(*_: object) -> None:
    """Default callback."""
