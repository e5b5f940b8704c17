"""Addresses of NATS servers: the configured URLs, and those that servers announce."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Final
from urllib.parse import unquote, urlsplit

from bascule import limits
from bascule.errors import InvalidConfig
from bascule.net.sockets import bracketed

PORT: Final = 4222


@dataclass(frozen=True, slots=True)
class NatsAddress:
    """`tls_name` is the name that the server's certificate has to have."""

    host: str
    port: int = PORT
    tls: bool = False
    user: str | None = None
    password: str | None = None
    tls_name: str | None = None

    def __str__(self) -> str:
        return f"{'tls' if self.tls else 'nats'}://{bracketed(self.host)}:{self.port}"

    @property
    def place(self) -> tuple[str, int]:
        return self.host, self.port


def parse_address(text: str) -> NatsAddress:
    """A URL such as `nats://127.0.0.1:4222` or `tls://user:password@host`; without a scheme it is `nats`."""
    url = text if "://" in text else f"nats://{text}"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host:
        raise InvalidConfig(
            f"`{_hidden(text)}` is no address of a NATS server", hint="write it like `nats://127.0.0.1:4222`"
        )
    if parts.scheme not in ("nats", "tls"):
        raise InvalidConfig(f"`{_hidden(text)}` has a scheme that is not spoken here", hint="use `nats://` or `tls://`")
    user = None if parts.username is None else unquote(parts.username)
    password = None if parts.password is None else unquote(parts.password)
    return NatsAddress(host, port or PORT, parts.scheme == "tls", user, password, host)


def _hidden(url: str) -> str:
    """Return the URL without credentials, for logs."""
    head, at, tail = url.rpartition("@")
    return f"{head.partition('://')[0]}://***@{tail}" if at else url


class ServerList:
    """The servers in the order in which they are tried. Configured servers stay; an announced one goes when no server announces it."""

    def __init__(self, configured: Sequence[str]) -> None:
        self._configured = [parse_address(url) for url in configured]
        if not self._configured:
            raise InvalidConfig("no NATS server is configured", hint="set `nats.servers`")
        self._named: list[NatsAddress] = []
        self._next = 0

    def __len__(self) -> int:
        return len(self._configured) + len(self._named)

    def __str__(self) -> str:
        return ", ".join(map(str, self._configured))

    def next(self) -> NatsAddress:
        """Return the server to try next, in turn."""
        known = self._configured + self._named
        chosen = known[self._next % len(known)]
        self._next = (self._next + 1) % len(known)
        return chosen

    def learn(self, urls: Iterable[object], teller: NatsAddress) -> None:
        """Add the servers that a server announces. They are used with TLS and the login as the announcing server."""
        known = {address.place for address in self._configured}
        named: list[NatsAddress] = []
        for url in urls:
            address = _named_address(url, teller)
            if address is not None and address.place not in known and len(named) < limits.NATS_SERVERS_MAX:
                known.add(address.place)
                named.append(address)
        self._named = named


def _named_address(url: object, teller: NatsAddress) -> NatsAddress | None:
    if not isinstance(url, str):
        return None
    try:
        address = parse_address(url)
    except InvalidConfig:
        return None
    # Certificates name hosts: a server that is announced by IP address must have the name of the configured one.
    tls_name = teller.tls_name if _is_number(address.host) else address.host
    return replace(address, tls=teller.tls, user=teller.user, password=teller.password, tls_name=tls_name)


def _is_number(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
