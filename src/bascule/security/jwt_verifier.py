"""Verifies JSON Web Tokens (RFC 7519) of an OpenID provider: signature, issuer, audience and times."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from bascule import limits
from bascule.config.sections.security import Jwt
from bascule.errors import Unauthenticated
from bascule.security.identity import Identity, user_name_fault
from bascule.security.key_set import KeySet, require_jwt


class JwtVerifier:
    """Runs in a thread of its own: a signature costs up to a millisecond, a fetch of keys up to ten seconds."""

    def __init__(self, settings: Jwt, keys: KeySet, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._keys = keys
        self._clock = clock
        self._jwt = require_jwt()

    def verify(self, token: str) -> Identity:
        """Return the identity that the token states. Raises Unauthenticated, or Unavailable while there are no keys."""
        try:
            header = self._jwt.get_unverified_header(token)
        except self._jwt.PyJWTError:
            raise Unauthenticated("the token is not a JSON Web Token") from None
        key_id = header.get("kid")
        found = self._keys.key(key_id if isinstance(key_id, str) else None)
        if found is None:
            raise Unauthenticated("the token is signed with a key that is not known here")
        key, algorithms = found
        settings = self._settings
        try:
            claims: dict[str, Any] = self._jwt.decode(
                token,
                key,
                algorithms=list(algorithms),
                audience=settings.audience,
                issuer=settings.issuer,
                leeway=settings.leeway_ns / 1e9,
                options={"require": ["exp", "iss", "aud", settings.user_claim], "verify_sub": False},
            )
        except (self._jwt.PyJWTError, ValueError, TypeError) as error:
            raise Unauthenticated(f"the token is not valid: {_one_line(error)}") from None
        return self._identity(claims)

    def _identity(self, claims: dict[str, Any]) -> Identity:
        settings = self._settings
        name = claims[settings.user_claim]
        if not isinstance(name, str):
            raise Unauthenticated(f"the claim `{settings.user_claim}` of the token is not a text")
        name = (settings.user_prefix or "") + name
        roles = _roles(claims.get(settings.roles_claim)) if settings.roles_claim else ()
        for one in (name, *roles):
            fault = user_name_fault(one)
            if fault is not None:
                raise Unauthenticated(f"the token names a user or role that cannot be used: {fault}")
        return Identity(name, roles, float(claims["exp"]) + settings.leeway_ns / 1e9)


def _roles(value: Any) -> tuple[str, ...]:
    """Roles of a claim: a list of texts, or one text with spaces, as `scope` has it."""
    listed = value.split() if isinstance(value, str) else value
    if listed is None:
        return ()
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        raise Unauthenticated("the roles of the token are not a list of texts")
    if len(listed) > limits.USER_ROLES_MAX:
        raise Unauthenticated(f"the token has {len(listed)} roles; at most {limits.USER_ROLES_MAX} are accepted")
    return tuple(listed)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
