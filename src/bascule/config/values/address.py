"""`host:port` pairs: the address that a server binds to, and the one that it advertises to clients.

    listen   host   bind                advertise
    ──────   ────   ─────────────────   ──────────────────────────────────────────
      –       –     127.0.0.1:port      localhost:port
      –      set    host:port           host:port
     set      –     listen              listen; the machine's name if listen is a wildcard
     set     set    listen              host:port, with the port of listen unless `port` is set

A wildcard, also as `host`, is never advertised, because a client that connects to `0.0.0.0` reaches its own machine. An advertised port
0 becomes the port that the server is bound to.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

from bascule import limits
from bascule.net.sockets import bracketed

PORT_MAX: Final = 65_535
PORT_DEFAULT: Final = 9_292
LOOPBACK: Final = "127.0.0.1"
ALL_INTERFACES: Final = "0.0.0.0"

_HOST: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")
_PORT: Final = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class Address:
    """An address to bind to or to connect to."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{bracketed(self.host)}:{self.port}"

    @property
    def is_wildcard(self) -> bool:
        return is_wildcard(self.host)


def parse_address(text: str) -> Address:
    """`host:port`, `[v6]:port`, or `:port` for all interfaces. Raises ValueError for anything else."""
    host, colon, port_text = text.rpartition(":")
    if not colon or _PORT.fullmatch(port_text) is None or int(port_text) > PORT_MAX:
        raise ValueError("no port from 0 to 65535 at the end")
    if host.startswith("[") and host.endswith("]"):
        return Address(str(ipaddress.IPv6Address(host[1:-1])), int(port_text))
    if ":" in host:
        raise ValueError("an IPv6 address needs brackets")
    return Address(parse_host(host) if host else ALL_INTERFACES, int(port_text))


def parse_host(text: str) -> str:
    """A name or an IP address without a port. Raises ValueError for anything else."""
    if ":" in text:
        return str(ipaddress.IPv6Address(text))
    if len(text) > limits.HOST_NAME_CHARACTERS_MAX or _HOST.fullmatch(text) is None:
        raise ValueError("not a host name")
    return text


def is_wildcard(host: str) -> bool:
    """Return whether this host means all interfaces, which a server can bind to and a client cannot connect to."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return host in ("", "0")


def bind_address(listen: Address | None, host: str | None, port: int | None) -> Address:
    """Return the address that the gRPC server binds to."""
    if listen is not None:
        return listen
    return Address(LOOPBACK if host is None else host, PORT_DEFAULT if port is None else port)


def advertise_address(
    listen: Address | None, host: str | None, port: int | None, *, bound_port: int, machine_name: str
) -> Address:
    """Return the address to advertise. `bound_port` replaces a port of 0, `machine_name` replaces a wildcard."""
    if host is not None:
        wanted = Address(
            machine_name if is_wildcard(host) else host, bind_address(listen, host, port).port if port is None else port
        )
    elif listen is not None:
        wanted = Address(machine_name, listen.port) if listen.is_wildcard else listen
    else:
        wanted = Address("localhost", PORT_DEFAULT if port is None else port)
    return Address(wanted.host, wanted.port or bound_port)
