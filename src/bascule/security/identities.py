"""The client of each call, alike on the gRPC, HTTP and Flight ports: from its token, else from its certificate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, TypeAlias

from bascule.errors import Unauthenticated
from bascule.kernels.grpc.server import GrpcStream
from bascule.net.grpc.server import Identify, Peer
from bascule.security.authentication import Authenticator
from bascule.security.identity import Identity

OPEN_PATHS: Final = b"/grpc.health.v1.Health/"
"""Calls that need no credentials: probes have none, and the answer names nothing."""


OnUnauthenticated: TypeAlias = Callable[[Peer, str, str], None]
"""Gets the client, the action and the reason of a refused call."""


class Identities:
    def __init__(self, authenticator: Authenticator | None, on_refused: OnUnauthenticated | None = None) -> None:
        """Without an authenticator every call has the client of its connection. `on_refused` is called for each refused call."""
        self._authenticator = authenticator
        self._on_refused = on_refused

    @property
    def are_required(self) -> bool:
        """Whether a call without credentials is refused."""
        return self._authenticator is not None

    @property
    def of_calls(self) -> Identify | None:
        """Return the function that the gRPC server asks for the client of each call; None when that is the connection's."""
        return None if self._authenticator is None else self._of_call

    def _of_call(self, peer: Peer, stream: GrpcStream) -> Peer | Coroutine[Any, Any, Peer]:
        if stream.path.startswith(OPEN_PATHS):
            return peer
        action = stream.path.rpartition(b"/")[2].decode("utf-8", "replace")
        return self._identify(peer, _authorization(stream.metadata), action)

    async def of_request(self, peer: Peer, authorization: str | None, action: str = "HTTP") -> Peer:
        """Return the client of an HTTP request. Raises Unauthenticated."""
        found = self._identify(peer, authorization, action)
        return found if isinstance(found, Peer) else await found

    def of_thread(self, loop: asyncio.AbstractEventLoop, peer: Peer, authorization: str | None) -> Peer:
        """Return the client of a call that a thread of its own serves. Raises Unauthenticated."""
        if self._authenticator is None:
            return peer
        return asyncio.run_coroutine_threadsafe(self.of_request(peer, authorization, "Flight"), loop).result()

    def _identify(self, peer: Peer, authorization: str | None, action: str) -> Peer | Coroutine[Any, Any, Peer]:
        if self._authenticator is None:
            return peer
        with self._reporting(peer, action):
            found = self._authenticator.identify(peer.address, peer.common_name, authorization)
        return _named(peer, found) if isinstance(found, Identity) else self._later(peer, found, action)

    async def _later(self, peer: Peer, identity: Coroutine[Any, Any, Identity], action: str) -> Peer:
        with self._reporting(peer, action):
            return _named(peer, await identity)

    @contextmanager
    def _reporting(self, peer: Peer, action: str) -> Iterator[None]:
        """Report a refusal to the audit log."""
        try:
            yield
        except Unauthenticated as error:
            if self._on_refused is not None:
                self._on_refused(peer, action, error.message)
            raise

    def is_current(self, peer: object) -> bool:
        """Return whether the token of a call that began earlier is still valid. A certificate is, as long as its connection is open."""
        identity = getattr(peer, "credentials", None)
        return self._authenticator is None or identity is None or self._authenticator.is_current(identity)

    def reload(self) -> bool:
        """Read tokens and keys again. Returns False if the tokens could not be read."""
        return self._authenticator is None or self._authenticator.reload()

    async def close(self) -> None:
        if self._authenticator is not None:
            self._authenticator.close()


def _named(peer: Peer, identity: Identity) -> Peer:
    return replace(peer, common_name=identity.name, roles=identity.roles, credentials=identity)


def _authorization(metadata: Iterable[tuple[bytes, bytes]]) -> str | None:
    return next((value.decode("latin-1") for name, value in metadata if name == b"authorization"), None)
