"""NATS for the control plane: a few messages a second, so a library will do. The data plane has a link of its own.

Publishing while the connection is down fails at once instead of being buffered: a Raft message that arrives minutes late helps nobody.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError

from bascule.errors import Unavailable
from bascule.net.nats_auth import Login

RECONNECT_WAIT_SECONDS: Final = 0.25
CONNECT_SECONDS_MAX: Final = 2.0

Handler = Callable[[bytes, str], Awaitable[None]]
"""Takes the data of a message and the subject to answer to, empty when no answer is wanted."""


class _Client(Client):
    """Logs in the way the data plane does, so that there is one place that knows about keys and credentials files."""

    def __init__(self, login: Login) -> None:
        super().__init__()
        self._login = login

    def _connect_command(self) -> bytes:
        command = super()._connect_command()
        if self._login.is_empty:
            return command
        fields = json.loads(command.removeprefix(b"CONNECT "))
        nonce = self._server_info.get("nonce")
        fields |= self._login.answer(nonce if isinstance(nonce, str) else None)
        return b"CONNECT %b\r\n" % json.dumps(fields).encode()


class NatsBus:
    def __init__(self, client: Client) -> None:
        self._client = client

    @classmethod
    async def connect(
        cls,
        servers: Sequence[str],
        name: str,
        login: Login | None = None,
        tls: ssl.SSLContext | None = None,
        **options: Any,
    ) -> NatsBus:
        """Connect to one of the servers, and from then on reconnect for ever. Raises Unavailable when none answers."""
        client = _Client(login or Login())
        # Seconds with a fraction are fine with the library, whatever its annotations say.
        options |= {"connect_timeout": CONNECT_SECONDS_MAX, "reconnect_time_wait": RECONNECT_WAIT_SECONDS}
        if tls is not None:
            options["tls"] = tls
        try:
            await client.connect(
                list(servers),
                name=name,
                allow_reconnect=True,
                max_reconnect_attempts=-1,
                pending_size=-1,
                error_cb=_ignore,
                **options,
            )
        except (TimeoutError, NatsError, OSError) as error:
            raise Unavailable(
                f"no NATS server answers at {', '.join(servers)}: {error or type(error).__name__}",
                hint="start nats-server, or correct `nats.servers`",
            ) from None
        return cls(client)

    @property
    def is_connected(self) -> bool:
        return self._client.is_connected

    async def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        """Send and forget. Raises Unavailable while the connection is down."""
        if not self._client.is_connected:
            raise Unavailable("the connection to NATS is down")
        try:
            await self._client.publish(subject, data, reply=reply)
        except NatsError as error:
            raise Unavailable(f"cannot publish to {subject}: {error}") from None

    async def request(self, subject: str, data: bytes, timeout: float) -> bytes:
        """Send and wait for one answer. Raises Unavailable when there is nobody, or no answer in time."""
        try:
            answer: Msg = await self._client.request(subject, data, timeout=timeout)
        except NoRespondersError:
            raise Unavailable(f"nobody listens on {subject}") from None
        except (TimeoutError, NatsTimeoutError):
            raise Unavailable(f"no answer on {subject} within {timeout:g} s") from None
        except NatsError as error:
            raise Unavailable(f"cannot ask {subject}: {error}") from None
        return answer.data

    async def subscribe(self, subject: str, handler: Handler) -> None:
        async def on_message(message: Msg) -> None:
            await handler(message.data, message.reply)

        await self._client.subscribe(subject, cb=on_message)

    async def close(self) -> None:
        await self._client.close()


async def _ignore(_error: Exception) -> None:
    """Lost connections are found by whoever publishes; the library would print them."""
