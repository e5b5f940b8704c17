"""The HTTP port, which is open before the rest of the broker starts and after it stops, so that probes see both."""

from __future__ import annotations

import logging
import os
import socket
import ssl
from pathlib import Path

from bascule import limits
from bascule.broker.http.routes import dispatch, routes
from bascule.broker.metrics.scrape import Scrape
from bascule.broker.metrics.sources import Sources
from bascule.config.sections.server import ServerConfig
from bascule.errors import OperatorError
from bascule.net.gate import Gate
from bascule.net.http.server import HttpServer
from bascule.net.sockets import listening_socket
from bascule.net.tls import server_tls
from bascule.security.identities import Identities

_logger = logging.getLogger(__name__)


class HttpService:
    def __init__(self, server: HttpServer, gate: Gate[Scrape], port: int, context: ssl.SSLContext | None) -> None:
        self.server = server
        self.port = port
        self._gate = gate
        self._context = context

    @classmethod
    async def start(cls, config: ServerConfig, identities: Identities) -> HttpService | None:
        """Take the port and answer. None when the service is off."""
        if not config.http.enabled:
            return None
        tls, context = config.tls, None
        if tls.is_on:
            context = server_tls(
                tls.cert,
                tls.key,
                client_ca=tls.client_auth_ca,
                requires_client=tls.client_auth_enabled,
                allows_no_client=tls.client_auth_optional,
                protocol="http/1.1",
            )
        gate = Gate[Scrape]()
        server = HttpServer(dispatch(routes(gate, identities)), ssl_context=context)
        port = await server.start(sock=_bind(config))
        _logger.info("metrics and health are served on port %d", port)
        return cls(server, gate, port, context)

    def serve(self, sources: Sources) -> None:
        """Serve metrics and readiness from now on."""
        self._gate.open(Scrape(sources))

    def reload_certificate(self, certificate: Path, key: Path) -> None:
        """For new connections. The caller has checked the files."""
        if self._context is not None:
            self._context.load_cert_chain(certificate, key)

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
