"""The configuration of a server: its own settings, and those that are equal in the whole cluster."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from bascule.config.sections.cluster import ClusterConfig
from bascule.config.sections.encryption import Encryption
from bascule.config.sections.flight import Flight
from bascule.config.sections.http import Http
from bascule.config.sections.listener import Listener, Tls
from bascule.config.sections.nats import Nats
from bascule.config.sections.node import Batching, Logging, MetadataCache, ServerIdentity, Shutdown, Storage, Telemetry
from bascule.config.sections.security import Jwt, Security
from bascule.config.values.address import Address
from bascule.config.values.key import Key, keys_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """All settings of a server. Those under `cluster` must be equal on all servers; the others may differ."""

    listener: Listener = field(default_factory=Listener)
    storage: Storage = field(default_factory=Storage)
    logging: Logging = field(default_factory=Logging)
    metadata: MetadataCache = field(default_factory=MetadataCache)
    batch: Batching = field(default_factory=Batching)
    tls: Tls = field(default_factory=Tls)
    security: Security = field(default_factory=Security)
    jwt: Jwt = field(default_factory=Jwt)
    flight: Flight = field(default_factory=Flight)
    http: Http = field(default_factory=Http)
    nats: Nats = field(default_factory=Nats)
    encryption: Encryption = field(default_factory=Encryption)
    node: ServerIdentity = field(default_factory=ServerIdentity)
    shutdown: Shutdown = field(default_factory=Shutdown)
    telemetry: Telemetry = field(default_factory=Telemetry)

    cluster: ClusterConfig = field(default_factory=ClusterConfig)

    @property
    def has_tokens(self) -> bool:
        """Whether calls are authenticated by tokens."""
        return self.security.tokens_file is not None or self.jwt.keys is not None

    @property
    def binds(self) -> tuple[Address, ...]:
        """Return the addresses of all ports for clients."""
        listen = self.listener.bind()
        http = (self.http.bind(listen),) if self.http.enabled else ()
        flight = () if self.flight.enabled is False else (self.flight.bind(listen),)
        return (listen, *http, *flight)

    @property
    def data_dir(self) -> Path:
        """Return the data directory; the default survives a reboot and does not depend on the working directory."""
        if self.storage.dir is not None:
            return self.storage.dir
        chosen = os.environ.get("XDG_DATA_HOME")
        # The XDG specification says to ignore a relative path.
        root = Path(chosen) if chosen and Path(chosen).is_absolute() else Path.home() / ".local" / "share"
        return root / "bascule" / self.cluster.replication.namespace


KEYS: dict[str, Key] = {declared.name: declared for declared in keys_of(ServerConfig)}
"""Every key by its dotted name."""
