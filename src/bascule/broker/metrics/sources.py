"""The parts of a broker that can be looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bascule.broker.flight.service import FlightService
    from bascule.broker.services import Services
    from bascule.log import LogStore
    from bascule.net.grpc.server import GrpcServer
    from bascule.net.http.server import HttpServer
    from bascule.net.nats.bus import NatsBus
    from bascule.net.nats.link import NatsLink
    from bascule.partition.data_plane import DataPlane


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
