"""Options of the connections to NATS, from the configuration; all connections log in alike."""

from __future__ import annotations

import ssl
from collections.abc import Sequence

from bascule.config.sections.nats import Nats
from bascule.net.nats.auth import Login, client_tls
from bascule.net.nats.link import LinkOptions


def nats_login(config: Nats) -> Login:
    return Login(
        user=config.user,
        password=config.password,
        token=config.token,
        nkey_seed=config.nkey_seed,
        creds=config.creds,
    )


def nats_tls(config: Nats) -> ssl.SSLContext | None:
    """A TLS context when a certificate or an authority is configured. A nats-server that requires TLS gets it in any case."""
    if config.tls_cert is None and config.tls_ca is None:
        return None
    return client_tls(config.tls_cert, config.tls_key, config.tls_ca)


def link_options(config: Nats, name: str, servers: Sequence[str] | None = None) -> LinkOptions:
    """`servers` replaces the configured ones, by the address of the embedded server."""
    return LinkOptions(
        servers=tuple(servers or config.servers), name=name, login=nats_login(config), tls=nats_tls(config)
    )
