"""Decides which servers get the client's token: those whose certificate and name TLS has verified."""

from __future__ import annotations

import ssl

from bascule.errors import InvalidOption
from bascule.net.sockets import is_loopback


class LoopbackToken(str):
    """A token that is also sent without TLS, to loopback addresses alone: for tests on one machine.

    A broker accepts it there with `security.tokens.plaintext: true`.
    """

    __slots__ = ()


def check_token(token: object) -> str:
    """Return the token. Raises InvalidOption for what cannot be sent."""
    if not isinstance(token, str) or not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidOption("`token` is no token", hint="it must be a text of printable characters without spaces")
    return token


def verifies(tls: ssl.SSLContext | None) -> bool:
    """Return whether TLS with this context proves the server's name."""
    return tls is not None and tls.verify_mode == ssl.CERT_REQUIRED and tls.check_hostname


def must_be_safe(token: str, host: str, *, is_verified: bool) -> None:
    """Raise InvalidOption when this token may not be sent to this server."""
    if is_verified or (isinstance(token, LoopbackToken) and is_loopback(host)):
        return
    raise InvalidOption(
        f"`token` is not sent to {host}: its certificate is not verified",
        hint="set `tls` to True or TlsOptions(ca=…); a context of your own must have CERT_REQUIRED and check_hostname. "
        "A LoopbackToken is sent without TLS to 127.0.0.1",
    )
