"""All calls that the gRPC port answers, by path."""

from __future__ import annotations

from collections.abc import Callable

from bascule.broker.api import publish
from bascule.broker.api.cluster import ClusterApi
from bascule.broker.api.cursors import CursorApi
from bascule.broker.api.groups import GroupApi
from bascule.broker.api.metadata import MetadataApi
from bascule.broker.api.policies import PolicyCalls
from bascule.broker.api.stream_calls import StreamCalls
from bascule.broker.api.streams import StreamApi
from bascule.broker.api.subscribe import SubscribeApi
from bascule.config.sections.server import ServerConfig
from bascule.metadata.controller import Controller
from bascule.metadata.server_directory import ServerDirectory
from bascule.net.grpc.health import HealthState, health_routes
from bascule.net.grpc.reflection import reflection_routes
from bascule.net.grpc.server import Route
from bascule.operations.administration import Administration
from bascule.partition.data_plane import DataPlane
from bascule.proto import api_pb2, extensions_pb2
from bascule.readers.cursors import CursorStore
from bascule.readers.groups import GroupCoordinator
from bascule.security.audit.log import AuditLog
from bascule.security.authorization import Authorizer
from bascule.security.running_calls import RunningCalls


def all_routes(
    config: ServerConfig,
    authorizer: Authorizer,
    running: RunningCalls,
    controller: Controller,
    directory: ServerDirectory,
    plane: DataPlane,
    cursors: CursorStore,
    groups: GroupCoordinator,
    administration: Administration,
    put_policies_in_force: Callable[[], None] | None,
    health: HealthState,
    require_keys: Callable[[], object],
    audit: AuditLog,
) -> dict[bytes, Route]:
    cluster = config.cluster

    policies = PolicyCalls(administration.members, config.security.policies_admins, put_policies_in_force)

    def is_cut_off() -> bool:
        return plane.is_cut_off

    return {
        **StreamApi(controller, directory, plane.starts, authorizer, cluster, require_keys, audit).routes(),
        **MetadataApi(
            controller,
            directory,
            plane.partitions,
            authorizer,
            cluster,
            is_cut_off,
            config.metadata.cache_max_age_ns,
            uses_tls=config.tls.is_on,
        ).routes(),
        **CursorApi(cursors, authorizer).routes(),
        **GroupApi(controller, directory, groups, authorizer, cluster.groups).routes(),
        **publish.routes(plane.gate),
        **SubscribeApi(
            controller, plane.partitions, plane.in_flight, plane.starts, authorizer, running, is_cut_off
        ).routes(),
        **ClusterApi(administration, policies, authorizer, audit).routes(),
        **StreamCalls(controller, administration.switchboard, plane.starts, authorizer, cluster, audit).routes(),
        **health_routes(health),
        **reflection_routes([api_pb2.DESCRIPTOR, extensions_pb2.DESCRIPTOR]),
    }
