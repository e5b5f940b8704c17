"""Authentication of calls by bearer tokens: static ones and JWTs. See docs/internals/identity.md.

Verifying costs about 60 ms, so it happens once for each token, in threads, and the result is cached under a keyed hash of the token.
The threads, what waits for them, the cache, and the failed attempts of each address are bounded.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from bascule import limits
from bascule.config.sections.server import ServerConfig
from bascule.errors import InvalidConfig, Unauthenticated, Unavailable
from bascule.security.attempts import FailedAttempts
from bascule.security.identity import Identity, user_name_fault
from bascule.security.jwt_verifier import JwtVerifier
from bascule.security.key_set import KeySet
from bascule.security.token_file import read_tokens, split_token

_logger = logging.getLogger(__name__)

SCHEME: Final = "bearer"
NO_TOKEN: Final = (
    "the call has no credentials: send `authorization: Bearer <token>`, or connect with a client certificate"
)
BAD_TOKEN: Final = "the token is unknown, revoked or wrong"
EXPIRED: Final = "the token has expired"
DIGEST_BYTES: Final = 32
FAILURE_REMEMBERED_SECONDS: Final = 60.0
"""How long a wrong token is known to be wrong."""


@dataclass(frozen=True, slots=True)
class _Verified:
    identity: Identity | None
    refusal: str
    until: float
    """Unix time after which the token is verified again."""


class Authenticator:
    """Used on the event loop, apart from the work in its threads."""

    def __init__(
        self, token_file: Path | None, jwt: JwtVerifier | None, keys: KeySet | None, jwt_seconds: float = 600.0
    ) -> None:
        """Raises InvalidConfig when the token file cannot be used."""
        self._token_file = token_file
        self._tokens = {} if token_file is None else read_tokens(token_file)
        self._jwt = jwt
        self._keys = keys
        self._jwt_seconds = jwt_seconds
        self._attempts = FailedAttempts()
        self._hash_key = os.urandom(DIGEST_BYTES)
        self._known: OrderedDict[bytes, _Verified] = OrderedDict()
        self._running: dict[bytes, asyncio.Task[Identity]] = {}
        # One thread each: scrypt cannot take more than one core, and a slow key server does not delay static tokens.
        self._hashing = ThreadPoolExecutor(1, "verify tokens")
        self._signatures = ThreadPoolExecutor(1, "verify jwts")
        self.generation = 0
        """Increases when the tokens are read again."""

    @classmethod
    def from_config(cls, config: ServerConfig) -> Authenticator | None:
        """Return None when no tokens are configured: calls then have the identity of their certificate, or none."""
        if not config.has_tokens:
            return None
        keys = verifier = None
        settings = config.jwt
        if settings.keys is not None:
            keys = KeySet(settings.keys, settings.ca, settings.refresh_ns / 1e9)
            verifier = JwtVerifier(settings, keys)
        return cls(config.security.tokens_file, verifier, keys, settings.refresh_ns / 1e9)

    def identify(
        self, address: str, certificate_name: str | None, authorization: str | None
    ) -> Identity | Coroutine[Any, Any, Identity]:
        """Return the identity of a call, or a coroutine that returns it, when the token has to be verified first.

        A token counts more than a certificate: it is the call's own, while a proxy's connection carries the calls of many clients.
        Raises Unauthenticated.
        """
        if authorization is None:
            if not certificate_name:
                raise Unauthenticated(NO_TOKEN)
            return _certified(certificate_name)
        token = _token_of(authorization)
        key = hashlib.blake2b(token.encode(), key=self._hash_key, digest_size=DIGEST_BYTES).digest()
        known = self._known.get(key)
        if known is not None and time.time() < known.until:
            if known.identity is None:
                raise Unauthenticated(known.refusal)
            return known.identity
        return self._identify(address, token, key)

    async def _identify(self, address: str, token: str, key: bytes) -> Identity:
        running = self._running.get(key)
        if running is None:
            self._must_be_allowed(address)
            running = asyncio.get_running_loop().create_task(self._verify(address, token, key))
            self._running[key] = running
            running.add_done_callback(lambda done: self._finished(key, done))
        return await asyncio.shield(running)  # other calls may wait for the same verification

    def _must_be_allowed(self, address: str) -> None:
        seconds = self._attempts.seconds_to_wait(address)
        if seconds:
            raise Unauthenticated(f"too many failed attempts from this address: retry in {seconds:.0f} s")
        if len(self._running) >= limits.TOKEN_VERIFICATIONS_WAITING_MAX:
            raise Unavailable("too many tokens are being verified: retry in a moment")

    def _finished(self, key: bytes, task: asyncio.Task[Identity]) -> None:
        self._running.pop(key, None)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: the calls that waited have it

    async def _verify(self, address: str, token: str, key: bytes) -> Identity:
        generation = self.generation
        try:
            identity = await self._look_up(token)
        except Unauthenticated as error:
            self._attempts.note(address)
            _logger.warning("a token from %s was refused: %s", address, error.message)
            if generation == self.generation:
                self._remember(key, _Verified(None, error.message, time.time() + FAILURE_REMEMBERED_SECONDS))
            raise
        until = float("inf") if identity.expires_at is None else identity.expires_at
        if split_token(token) is None:
            until = min(until, time.time() + self._jwt_seconds)  # its key may be withdrawn
        if generation == self.generation:
            self._remember(key, _Verified(identity, "", until))
        return identity

    async def _look_up(self, token: str) -> Identity:
        loop = asyncio.get_running_loop()
        parts = split_token(token)
        if parts is None:
            if self._jwt is None:
                raise Unauthenticated(BAD_TOKEN)
            return await loop.run_in_executor(self._signatures, self._jwt.verify, token)
        found = self._tokens.get(parts[0])
        if found is None or not await loop.run_in_executor(self._hashing, found.matches, parts[1]):
            raise Unauthenticated(BAD_TOKEN)
        expires_at = found.identity.expires_at
        if expires_at is not None and time.time() >= expires_at:
            raise Unauthenticated(EXPIRED)
        return replace(found.identity, token_id=found.id)

    def is_current(self, identity: Identity) -> bool:
        """Return whether the credentials of a call that began earlier are still valid: not expired, revoked or changed."""
        if identity.expires_at is not None and time.time() >= identity.expires_at:
            return False
        if identity.token_id is None:
            return True
        found = self._tokens.get(identity.token_id)
        return found is not None and replace(found.identity, token_id=found.id) == identity

    def _remember(self, key: bytes, verified: _Verified) -> None:
        self._known[key] = verified
        self._known.move_to_end(key)
        if len(self._known) > limits.TOKENS_REMEMBERED_MAX:
            self._known.popitem(last=False)

    def reload(self) -> bool:
        """Read the token file and the keys again. A file that cannot be read changes nothing: logs an error, returns False."""
        fine = True
        if self._token_file is not None:
            try:
                self._tokens = read_tokens(self._token_file)
            except InvalidConfig as error:
                _logger.error("the tokens were not changed: %s (%s)", error.message, error.hint)
                fine = False
            else:
                _logger.info("the token file was read again: it has %d tokens", len(self._tokens))
        if self._keys is not None:
            self._signatures.submit(self._keys.reload)
        self._known.clear()
        self.generation += 1
        return fine

    def close(self) -> None:
        for executor in (self._hashing, self._signatures):
            executor.shutdown(wait=False, cancel_futures=True)


def _certified(name: str) -> Identity:
    fault = user_name_fault(name) if name.startswith("role:") else None
    if fault is not None:
        raise Unauthenticated(f"the common name of the certificate cannot be used: {fault}")
    return Identity(name)


def _token_of(authorization: str) -> str:
    """Return the token of an `authorization` header. Raises Unauthenticated for another scheme."""
    scheme, _, token = authorization.strip().partition(" ")
    token = token.strip()
    if scheme.lower() != SCHEME or not token or not token.isascii() or not token.isprintable():
        raise Unauthenticated("the `authorization` of a call must be `Bearer <token>`")
    if len(token) > limits.TOKEN_CHARACTERS_MAX:
        raise Unauthenticated(f"the token is longer than {limits.TOKEN_CHARACTERS_MAX} characters")
    return token
