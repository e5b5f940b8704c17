"""The HTTP port, which is open before the rest of the broker starts and after it stops, so that probes see both."""

from __future__ import annotations

import logging
import os
import socket

from bascule import limits
from bascule.broker.http.routes import dispatch, routes
from bascule.broker.metrics.scrape import Scrape
from bascule.config.sections.server import ServerConfig
from bascule.errors import OperatorError
from bascule.net.gate import Gate
from bascule.net.http.server import HttpServer
from bascule.net.reloadable_tls import ReloadableTls
from bascule.net.sockets import listening_socket
from bascule.security.certificates import port_tls
from bascule.security.identities import Identities

_logger = logging.getLogger(__name__)


class HttpService:
    def __init__(self, server: HttpServer, gate: Gate[Scrape], port: int, tls: ReloadableTls | None) -> None:
        self.server = server
        self.port = port
        self.tls = tls
        self._gate = gate

    @classmethod
    async def start(cls, config: ServerConfig, identities: Identities) -> HttpService | None:
        """Take the port and answer. None when the service is off."""
        if not config.http.enabled:
            return None
        tls = port_tls(config.tls, protocol="http/1.1")
        gate = Gate[Scrape]()
        server = HttpServer(dispatch(routes(gate, identities)), tls=tls)
        port = await server.start(sock=_bind(config))
        _logger.info("metrics and health are served on port %d", port)
        return cls(server, gate, port, tls)

    def serve(self, scrape: Scrape) -> None:
        """Serve metrics and readiness from now on."""
        self._gate.open(scrape)

    def judge_connections(self) -> int:
        """End the connections whose certificates were refused since they were made. Returns how many."""
        return self.server.judge_connections()

    async def begin_stop(self) -> None:
        """Answer "the server is stopping" from now on."""
        self._gate.close()

    async def stop(self) -> None:
        self._gate.close()
        await self.server.stop(limits.STOP_GRACE_SECONDS)


def _bind(config: ServerConfig) -> socket.socket:
    wanted = config.http.bind(config.listener.bind())
    try:
        return listening_socket(wanted.host, wanted.port)
    except OSError as error:
        if config.http.listen is None and wanted.port:
            _logger.info("port %d is in use: metrics and health are served on another port", wanted.port)
            return listening_socket(wanted.host, 0)
        raise OperatorError(
            f"cannot serve HTTP on {wanted}: {os.strerror(error.errno or 0)}",
            hint="stop the program that uses the port, or set another port with `http.listen`",
        ) from None
