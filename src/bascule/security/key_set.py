"""The keys that sign JWTs: a JSON Web Key Set (RFC 7517) from a file or an https URL.

The set is fetched when it is older than `refresh`, and when a token names a key id that it does not have; at most once per
`limits.JWKS_COOLDOWN_SECONDS` for the latter. When a fetch fails, the previous set stays in use. Fetching blocks: the verifier's
own thread does it. Symmetric keys are ignored: with one, each reader of the set could sign tokens.
"""

from __future__ import annotations

import importlib
import json
import logging
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from bascule import limits
from bascule.errors import InvalidConfig, MissingExtra, Unavailable
from bascule.net.sockets import is_loopback

_logger = logging.getLogger(__name__)

ALGORITHMS: Final = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
}
"""Accepted algorithms by the type of key. `none` and the symmetric ones are not among them."""

Key = tuple[Any, tuple[str, ...]]
"""A public key, and the algorithms that it may verify."""


class KeySet:
    def __init__(
        self, source: str, ca: Path | None, refresh_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._source = source
        self._ca = ca
        self._refresh_seconds = refresh_seconds
        self._clock = clock
        self._keys: dict[str | None, Key] = {}
        self._tried_at: float | None = None
        self._loaded_at: float | None = None
        if "://" in source:
            _check_url(source)
        else:
            self._keys = self._load_file()
            self._loaded_at = self._tried_at = clock()

    def key(self, key_id: str | None) -> Key | None:
        """Return the key with this id, None when there is none. Raises Unavailable when no set could be fetched so far."""
        now = self._clock()
        is_cool = self._tried_at is None or now - self._tried_at >= limits.JWKS_COOLDOWN_SECONDS
        is_old = self._loaded_at is None or now - self._loaded_at >= self._refresh_seconds
        if is_cool and (is_old or self._find(key_id) is None):
            self._tried_at = now
            self.reload()
        if self._loaded_at is None:
            raise Unavailable("the keys of tokens could not be fetched", hint="see the broker's log")
        return self._find(key_id)

    def _find(self, key_id: str | None) -> Key | None:
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))  # RFC 7517 §4.5: the id is optional when there is one key
        return self._keys.get(key_id)

    def reload(self) -> bool:
        """Read the keys again. When they cannot be read, logs an error, keeps the present ones and returns False."""
        try:
            self._keys = self._fetch() if "://" in self._source else self._load_file()
        except (InvalidConfig, OSError, ValueError) as error:
            text = error.message if isinstance(error, InvalidConfig) else str(error)
            _logger.error("the keys of tokens at %s were not changed: %s", self._source, text)
            return False
        self._loaded_at = self._clock()
        return True

    def _load_file(self) -> dict[str | None, Key]:
        try:
            text = Path(self._source).expanduser().read_bytes()
        except OSError as error:
            raise InvalidConfig(f"`security.jwt.keys`, {self._source}, cannot be read: {error.strerror}") from None
        return parse_keys(text, self._source)

    def _fetch(self) -> dict[str | None, Key]:
        context = ssl.create_default_context(cafile=self._ca)
        opener = urllib.request.build_opener(_NoRedirect(), urllib.request.HTTPSHandler(context=context))
        request = urllib.request.Request(self._source, headers={"Accept": "application/json"})
        with opener.open(request, timeout=limits.JWKS_FETCH_SECONDS) as response:
            text = response.read(limits.JWKS_BYTES_MAX + 1)
        return parse_keys(text, self._source)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: it could lead to a host, or to plain HTTP, that the operator has not named."""

    def redirect_request(self, *_arguments: Any, **_options: Any) -> None:
        return None


def parse_keys(text: bytes, source: str) -> dict[str | None, Key]:
    """Return the public keys of a set by id. Raises InvalidConfig when it has none that can be used."""
    jwt = require_jwt()
    if len(text) > limits.JWKS_BYTES_MAX:
        raise InvalidConfig(f"the key set {source} has more than {limits.JWKS_BYTES_MAX} bytes")
    try:
        document = json.loads(text)
        listed = document["keys"]
        assert isinstance(listed, list)
    except (ValueError, KeyError, TypeError, AssertionError, RecursionError):
        raise InvalidConfig(
            f"{source} is not a JSON Web Key Set", hint="it must be a JSON object with a list `keys`, see RFC 7517"
        ) from None
    found: dict[str | None, Key] = {}
    for one in listed:
        allowed = ALGORITHMS.get(one.get("kty", "")) if isinstance(one, dict) else None
        if allowed is None or one.get("use", "sig") != "sig":
            continue
        named = one.get("alg")
        if named is not None and named not in allowed:
            continue
        try:
            key = jwt.PyJWK(one, algorithm=named or allowed[0]).key
        except (jwt.PyJWTError, ValueError, TypeError, KeyError) as error:
            _logger.warning("a key of %s cannot be used: %s", source, error)
            continue
        if hasattr(key, "private_bytes"):
            key = key.public_key()
        found[one.get("kid")] = (key, allowed if named is None else (named,))
    if not found:
        raise InvalidConfig(
            f"the key set {source} has no public key for signatures", hint="RSA, EC and OKP keys are used"
        )
    return found


def require_jwt() -> Any:
    try:
        return importlib.import_module("jwt")
    except ImportError:
        raise MissingExtra("PyJWT is not installed", hint='pip install "bascule[server]"') from None


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return
    if parts.scheme == "http" and is_loopback(parts.hostname or ""):
        return
    raise InvalidConfig(
        f"`security.jwt.keys` is {url!r}",
        hint="it must be a file or an https:// URL; http:// is for loopback addresses only",
    )
