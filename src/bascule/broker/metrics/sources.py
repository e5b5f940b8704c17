"""The parts of a broker that can be looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bascule.broker.data_plane import DataPlane
    from bascule.broker.flight.service import FlightService
    from bascule.broker.services import Services
    from bascule.log import LogStore
    from bascule.net.grpc_server import GrpcServer
    from bascule.net.http_server import HttpServer
    from bascule.net.nats_bus import NatsBus
    from bascule.net.nats_link import NatsLink


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    services: Services
    data_plane: DataPlane
    store: LogStore
    links: Mapping[str, NatsLink]
    """The connections to NATS by what they are for: `streams`, `replication`, `control`."""
    bus: NatsBus
    grpc: GrpcServer
    http: HttpServer
    flight: FlightService | None
