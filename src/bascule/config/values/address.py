"""A `host:port` pair, and the two questions asked of it: where do we bind, and what do we tell clients?

    listen   host   bind                advertise
    ──────   ────   ─────────────────   ──────────────────────────────────────────
      –       –     127.0.0.1:port      localhost:port
      –      set    host:port           host:port
     set      –     listen              listen; the machine's name if listen is a wildcard
     set     set    listen              host:port, with the port of listen unless `port` is set

A client that is told `0.0.0.0` connects to itself, so a wildcard is never advertised. An advertised port 0 becomes the
port that the system gave us.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

from bascule import limits

PORT_MAX: Final = 65_535
PORT_DEFAULT: Final = 9_292
LOOPBACK: Final = "127.0.0.1"
ALL_INTERFACES: Final = "0.0.0.0"

_HOST: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")
_PORT: Final = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens or is reached."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

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
        raise ValueError("an IPv6 address stands in brackets")
    return Address(parse_host(host) if host else ALL_INTERFACES, int(port_text))


def parse_host(text: str) -> str:
    """A name or an IP address without a port. Raises ValueError for anything else."""
    if ":" in text:
        return str(ipaddress.IPv6Address(text))
    if len(text) > limits.HOST_NAME_CHARACTERS_MAX or _HOST.fullmatch(text) is None:
        raise ValueError("not a host name")
    return text


def is_wildcard(host: str) -> bool:
    """Whether this host stands for all interfaces: fit to bind to, meaningless to connect to."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return host in ("", "0")


def bind_address(listen: Address | None, host: str | None, port: int | None) -> Address:
    """Where the gRPC server binds."""
    if listen is not None:
        return listen
    return Address(LOOPBACK if host is None else host, PORT_DEFAULT if port is None else port)


def advertise_address(
    listen: Address | None, host: str | None, port: int | None, *, bound_port: int, machine_name: str
) -> Address:
    """What clients are told. `bound_port` is the port the server really got; `machine_name` stands in for a wildcard."""
    if host is not None:
        wanted = Address(host, bind_address(listen, host, port).port if port is None else port)
    elif listen is not None:
        wanted = Address(machine_name, listen.port) if listen.is_wildcard else listen
    else:
        wanted = Address("localhost", PORT_DEFAULT if port is None else port)
    return Address(wanted.host, wanted.port or bound_port)
