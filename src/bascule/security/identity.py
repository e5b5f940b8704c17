"""The identity of a client: the name that policies refer to, and the roles that its token grants."""

from __future__ import annotations

from dataclasses import dataclass

from bascule import limits
from bascule.security.policy.resources import ROLE_PREFIX


@dataclass(frozen=True, slots=True)
class Identity:
    name: str
    roles: tuple[str, ...] = ()
    """Without prefix. Policies name them `role:<name>`."""
    expires_at: float | None = None
    """Unix time after which the credentials are invalid; None without an end."""
    token_id: str | None = None
    """Id of the static token; None for other credentials."""


def user_name_fault(name: str) -> str | None:
    """Return why this cannot be the name of a user or a role, or None."""
    if not name:
        return "it is empty"
    if len(name.encode("utf-8", "replace")) > limits.USER_NAME_BYTES_MAX:
        return f"it is longer than {limits.USER_NAME_BYTES_MAX} bytes"
    if not name.isprintable() or any(char.isspace() or char == "," for char in name):
        return "it has spaces, commas or control characters"
    if name.startswith(ROLE_PREFIX):
        return f"it begins with `{ROLE_PREFIX}`, which is reserved for roles"
    return None
