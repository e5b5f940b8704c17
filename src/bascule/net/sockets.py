"""Listening sockets, loopback addresses, and IPv6 addresses in text."""

from __future__ import annotations

import ipaddress
import socket

from bascule import limits


def bracketed(host: str) -> str:
    """The host as it stands before `:port`: an IPv6 address in brackets, anything else as it is."""
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to this host. A name other than `localhost` may have any address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listening_socket(host: str, port: int) -> socket.socket:
    """A non-blocking TCP socket that listens on this address. Raises OSError when the address cannot be used."""
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(limits.LISTEN_BACKLOG)
    except OSError:
        made.close()
        raise
    made.setblocking(False)
    return made
