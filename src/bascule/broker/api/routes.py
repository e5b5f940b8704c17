"""All calls that the broker answers, by path."""

from __future__ import annotations

from bascule.broker.api import cluster, cursors, groups, metadata, publish, streams, subscribe
from bascule.broker.services import Services
from bascule.kernels.calls.publish import PublishGate
from bascule.net.grpc.health import HealthState, health_routes
from bascule.net.grpc.reflection import reflection_routes
from bascule.net.grpc.server import Route
from bascule.proto import api_pb2, extensions_pb2


def all_routes(services: Services, gate: PublishGate, health: HealthState) -> dict[bytes, Route]:
    return {
        **streams.routes(services),
        **metadata.routes(services),
        **cursors.routes(services),
        **groups.routes(services),
        **publish.routes(gate),
        **subscribe.routes(services),
        **cluster.routes(services),
        **health_routes(health),
        **reflection_routes([api_pb2.DESCRIPTOR, extensions_pb2.DESCRIPTOR]),
    }
