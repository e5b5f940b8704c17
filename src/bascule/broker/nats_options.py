"""Options of the connections to NATS, from the configuration; all connections log in alike."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Final

from bascule.config.sections.nats import Nats
from bascule.net.nats.auth import Login, client_tls
from bascule.net.nats.link import LinkOptions
from bascule.net.nats.seal import SealKeys

BROKER_USER: Final = "bascule"
"""The user of brokers at an embedded nats-server; its password follows from the cluster secret."""


def nats_login(config: Nats, keys: SealKeys | None = None) -> Login:
    """The login of the configuration; that of brokers for the embedded nats-server of this broker or, with `nats.user: bascule` and no
    password, of another one."""
    is_own = config.runs_embedded and config.embedded_config is None and config.has_no_login
    if keys is not None and (is_own or (config.user == BROKER_USER and config.password is None)):
        return Login(user=BROKER_USER, password=keys.password())
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


def link_options(
    config: Nats, name: str, servers: Sequence[str] | None = None, keys: SealKeys | None = None
) -> LinkOptions:
    """`servers` replaces the configured ones, by the address of the embedded server."""
    return LinkOptions(
        servers=tuple(servers or config.servers), name=name, login=nats_login(config, keys), tls=nats_tls(config)
    )
