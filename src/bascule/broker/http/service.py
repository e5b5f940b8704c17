"""The HTTP port in the life of a broker: open from the first moment to the last, so that probes see a start and a stop, too."""

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
from bascule.config.values.address import Address
from bascule.errors import OperatorError, Unavailable
from bascule.net.http.server import HttpServer
from bascule.net.tls import server_tls

_logger = logging.getLogger(__name__)


class Gate:
    """What can be looked at now."""

    def __init__(self) -> None:
        self._sources: Sources | None = None
        self._scrape: Scrape | None = None
        self.why_closed: str | None = "the server is starting"

    def open(self, sources: Sources) -> None:
        self._sources, self._scrape = sources, Scrape(sources)
        self.why_closed = None

    def close(self) -> None:
        self.why_closed = "the server is stopping"

    def sources(self) -> Sources:
        if self.why_closed is not None or self._sources is None:
            raise Unavailable(self.why_closed or "")
        return self._sources

    @property
    def scrape(self) -> Scrape:
        self.sources()
        assert self._scrape is not None
        return self._scrape


class HttpService:
    def __init__(self, server: HttpServer, gate: Gate, port: int, context: ssl.SSLContext | None) -> None:
        self.server = server
        self.port = port
        self._gate = gate
        self._context = context

    @classmethod
    async def start(cls, config: ServerConfig) -> HttpService | None:
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
                protocol="http/1.1",
            )
        gate = Gate()
        server = HttpServer(dispatch(routes(gate)), ssl_context=context)
        port = await server.start(sock=_bind(config))
        _logger.info("metrics and health are served on port %d", port)
        return cls(server, gate, port, context)

    def serve(self, sources: Sources) -> None:
        """The broker is complete: from here on it can be looked at."""
        self._gate.open(sources)

    def reload_certificate(self, certificate: Path, key: Path) -> None:
        """New connections see it. The files are known to be good."""
        if self._context is not None:
            self._context.load_cert_chain(certificate, key)

    async def begin_stop(self) -> None:
        """Whoever asks is told that the server stops."""
        self._gate.close()

    async def stop(self) -> None:
        self._gate.close()
        await self.server.stop(limits.STOP_GRACE_SECONDS)


def _bind(config: ServerConfig) -> socket.socket:
    wanted = config.http.bind(config.listener.bind())
    try:
        return _listening(wanted)
    except OSError as error:
        if config.http.listen is None and wanted.port:
            _logger.info("port %d is taken: metrics and health are served on another one", wanted.port)
            return _listening(Address(wanted.host, 0))
        raise OperatorError(
            f"cannot serve HTTP on {wanted}: {os.strerror(error.errno or 0)}",
            hint="stop whatever uses the port, or set another one with `http.listen`",
        ) from None


def _listening(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address.host, address.port))
        listening.listen(limits.LISTEN_BACKLOG)
    except OSError:
        listening.close()
        raise
    listening.setblocking(False)
    return listening
