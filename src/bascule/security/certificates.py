"""The certificates of a server's ports and of its clients, and what happens when their files change."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from bascule.config.sections.listener import Tls
from bascule.errors import InvalidConfig
from bascule.net.reloadable_tls import ReloadableTls
from bascule.net.tls import server_tls

_logger = logging.getLogger(__name__)


def port_tls(config: Tls, *, protocol: str = "h2") -> ReloadableTls | None:
    """TLS for one port, None without. Raises InvalidConfig when a file cannot be used."""
    if not config.is_on:
        return None
    return ReloadableTls(
        lambda: server_tls(
            config.cert,
            config.key,
            client_ca=config.client_auth_ca,
            client_crl=config.client_crl,
            requires_client=config.client_auth_enabled,
            allows_no_client=config.client_auth_optional,
            protocol=protocol,
        ),
        config.client_auth_ca if config.client_auth_enabled else None,
        config.client_crl if config.client_auth_enabled else None,
    )


class TlsPort(Protocol):
    """A port that may have TLS."""

    @property
    def tls(self) -> ReloadableTls | None: ...

    def judge_connections(self) -> int: ...


class Certificates:
    """Those of all ports."""

    def __init__(self, ports: Sequence[TlsPort]) -> None:
        self._ports = [(port, port.tls) for port in ports if port.tls is not None]

    def reload(self) -> bool:
        """Read all files again. New connections see them; connections with refused certificates end. If a file cannot be used, nothing
        changes, and False is returned."""
        if not self._ports:
            return True
        try:
            files = [tls.read() for _, tls in self._ports]
        except InvalidConfig as error:
            _logger.error("the certificates were not changed: %s (%s)", error.message, error.hint)
            return False
        for (_, tls), read in zip(self._ports, files, strict=True):
            tls.use(read)
        ended = sum(port.judge_connections() for port, _ in self._ports)
        _logger.info("the certificate was read again: new connections see it")
        if ended:
            _logger.info("%d connections ended: their certificates do not count any more", ended)
        return True
