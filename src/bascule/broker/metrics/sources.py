"""The parts of a broker that metrics and readiness read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from bascule.broker.metrics.cursors import KnownCursors
    from bascule.log import LogStore
    from bascule.metadata.controller import Controller
    from bascule.net.grpc.server import GrpcServer
    from bascule.net.http.server import HttpServer
    from bascule.net.nats.bus import NatsBus
    from bascule.net.nats.link import NatsLink
    from bascule.net.nats.seal import SealedChannel
    from bascule.operations.members import Members
    from bascule.operations.server_life import ServerLife
    from bascule.partition.data_plane import DataPlane
    from bascule.security.audit.log import AuditLog
    from bascule.security.authorization import Authorizer


class TableLoad(Protocol):
    """Running calls of Arrow Flight, and the rows and bytes read since the start."""

    @property
    def calls(self) -> int: ...

    @property
    def rows(self) -> int: ...

    @property
    def bytes(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    data_directory: Path
    unsafe: tuple[str, ...]
    """Names of the settings that leave the server open."""
    life: ServerLife
    authorizer: Authorizer
    audit: AuditLog
    controller: Controller
    members: Members
    cursors: KnownCursors
    data_plane: DataPlane
    store: LogStore
    links: Mapping[str, NatsLink]
    """The connections to NATS by purpose: `streams`, `replication`, `control`."""
    channels: Mapping[str, SealedChannel]
    """The seals of the connections by purpose; empty without a cluster secret."""
    bus: NatsBus
    grpc: GrpcServer
    http: HttpServer | None
    """None when the HTTP port is off."""
    flight_load: Callable[[], TableLoad] | None
    """None when Arrow Flight is off."""
