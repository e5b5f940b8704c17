"""The listening socket of a server, taken before anything else: clients that reconnect during a restart wait instead of giving up.

go-liftbridge tries five times within a quarter of a second to open its PublishAsync call again; if the port refuses all of them, it
never tries again. A connection to a port that listens waits for its server. Therefore the port is open before the server imports its
parts; a lone server that stops keeps it open to the end; and a supervisor may keep it open between two runs (systemd: `LISTEN_FDS`).
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping
from typing import Final, Protocol

from bascule.errors import OperatorError
from bascule.net.sockets import listening_socket

FIRST_DESCRIPTOR: Final = 3
"""Of the sockets that a supervisor hands over: SD_LISTEN_FDS_START."""


class Place(Protocol):
    """An address; `bascule.config` has the class."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...


def take_listening_socket(wanted: Place, environ: MutableMapping[str, str] = os.environ) -> socket.socket:
    """Return the socket that the supervisor hands over, else one that listens on the wanted address. Raises OperatorError."""
    handed_over = _handed_over(environ)
    if handed_over is not None:
        return handed_over
    try:
        return listening_socket(wanted.host, wanted.port)
    except OSError as error:
        raise OperatorError(
            f"cannot listen on {wanted}: {os.strerror(error.errno or 0)}",
            hint="stop the program that uses the port, or set another port with `listen` or --port",
        ) from None


def _handed_over(environ: MutableMapping[str, str]) -> socket.socket | None:
    """The protocol of sd_listen_fds(3). The variables are removed, so that no child takes the sockets for its own."""
    process, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    environ.pop("LISTEN_FDNAMES", None)
    if process != str(os.getpid()) or not count.isdecimal() or count == "0":
        return None
    if count != "1":
        raise OperatorError(
            f"the supervisor hands over {count} sockets, and the server takes one, for gRPC",
            hint="have one `ListenStream=` in the socket unit",
        )
    try:
        found = socket.socket(fileno=FIRST_DESCRIPTOR)
        is_listening = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
    except OSError as error:
        raise OperatorError(f"descriptor {FIRST_DESCRIPTOR} of the supervisor is no socket: {error.strerror}") from None
    if not is_listening or found.type != socket.SOCK_STREAM or found.family not in (socket.AF_INET, socket.AF_INET6):
        raise OperatorError(
            f"descriptor {FIRST_DESCRIPTOR} of the supervisor is not a listening TCP socket",
            hint="set `ListenStream=` to an address such as 127.0.0.1:9292",
        )
    found.setblocking(False)
    found.set_inheritable(False)
    return found
