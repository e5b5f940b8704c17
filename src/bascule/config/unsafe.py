"""Settings that leave a server open: listed in one place for the check at start, the log and the metrics."""

from __future__ import annotations

from dataclasses import dataclass

from bascule.config.sections.server import ServerConfig
from bascule.net.sockets import is_loopback


@dataclass(frozen=True, slots=True)
class UnsafeSetting:
    name: str
    """A word for metrics."""
    problem: str
    next_step: str


def unsafe_settings(config: ServerConfig) -> list[UnsafeSetting]:
    """Return what makes this server unsafe; nothing for a server that only this machine can reach."""
    found = []
    outside = ", ".join(str(address) for address in config.binds if not is_loopback(address.host))
    if outside and not config.tls.is_on:
        found.append(
            UnsafeSetting(
                "no_tls",
                f"the server listens on {outside} without TLS: messages and credentials can be read and changed on the way",
                "set `tls.cert` and `tls.key`, or bind to 127.0.0.1",
            )
        )
    if outside and not config.tls.client_auth_enabled and not config.has_tokens:
        found.append(
            UnsafeSetting(
                "no_authentication",
                f"the server listens on {outside} without authentication: every client that reaches it may read, write and delete",
                "set `security.tokens.file`, `security.jwt.keys` or `tls.client.auth.enabled`, or bind to 127.0.0.1",
            )
        )
    if config.has_tokens and not config.tls.is_on:
        found.append(
            UnsafeSetting(
                "plaintext_tokens",
                "tokens are accepted without TLS, from this machine",
                "set `tls.cert` and `tls.key`, and remove `security.tokens.plaintext`",
            )
        )
    return found
