"""CreateStream, DeleteStream, PauseStream, SetStreamReadonly.

The state machine decides whether an op fits the present state, when it applies the op. These handlers check what the state does not
know: the syntax of the request, the client's rights, and whether this server has an encryption key.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from bascule.broker.api.audited import audited
from bascule.broker.api.calls import Handler, deadline_of, routes_of
from bascule.config.sections.cluster import ClusterConfig
from bascule.config.stream import StreamConfig, StreamOverrides, resolve
from bascule.errors import EncryptionKeyError, InvalidConfig
from bascule.metadata.controller import Controller
from bascule.metadata.core.model.ops import (
    BrokerPlace,
    CreateStream,
    DeleteStream,
    PauseStream,
    SetStreamReadonly,
)
from bascule.metadata.partition_starts import PartitionStarts
from bascule.metadata.requests import CallDeadline, leader_known, reachable, submit
from bascule.metadata.server_directory import ServerDirectory
from bascule.metadata.stream_options import RESERVED_STREAMS, stored_config
from bascule.names import (
    reserved_subject_fault,
    stream_name_fault,
    stream_subject_fault,
    streams_overlap,
    subject_fault,
)
from bascule.net.grpc.server import Call, Route
from bascule.net.grpc.status import GrpcError, Status
from bascule.proto import api_pb2 as api
from bascule.security.audit.log import AuditLog
from bascule.security.authorization import Authorizer


class StreamApi:
    def __init__(
        self,
        controller: Controller,
        directory: ServerDirectory,
        starts: PartitionStarts,
        authorizer: Authorizer,
        defaults: ClusterConfig,
        require_keys: Callable[[], object],
        audit: AuditLog,
    ) -> None:
        """`require_keys` raises EncryptionKeyError if this server has no master key."""
        self._audit = audit
        self._controller = controller
        self._directory = directory
        self._starts = starts
        self._authorizer = authorizer
        self._defaults = defaults
        self._creating = 0
        """Partitions of streams that calls to this server are creating."""
        self._require_keys = require_keys

    def routes(self) -> dict[bytes, Route]:
        handlers: dict[str, tuple[Any, Handler]] = {
            "CreateStream": (api.CreateStreamRequest, self.create_stream),
            "DeleteStream": (api.DeleteStreamRequest, self.delete_stream),
            "PauseStream": (api.PauseStreamRequest, self.pause_stream),
            "SetStreamReadonly": (api.SetStreamReadonlyRequest, self.set_stream_readonly),
        }
        return routes_of(audited(handlers, self._audit))

    def _check_master_key(self) -> None:
        try:
            self._require_keys()
        except EncryptionKeyError as error:
            raise GrpcError(Status.FAILED_PRECONDITION, f"{error.message}: {error.hint}") from None

    async def create_stream(self, request: api.CreateStreamRequest, call: Call) -> api.CreateStreamResponse:
        deadline = deadline_of(call)
        partitions = request.partitions or 1
        _check_request(request, partitions, self._defaults)
        self._authorizer.require(call.peer, request.name, "CreateStream")
        self._require_subject(call, request.subject, partitions)
        config = self._resolved(request)
        if config.encryption:
            self._check_master_key()
        if request.name not in self._controller.metadata.streams:
            self._check_count(partitions)
        self._creating += partitions
        try:
            await self._create(request, partitions, config, deadline)
        finally:
            self._creating -= partitions
        await self._starts.check_started(request.name, range(partitions), deadline)
        return api.CreateStreamResponse()

    async def _create(
        self, request: api.CreateStreamRequest, partitions: int, config: StreamConfig, deadline: CallDeadline
    ) -> None:
        members = len(self._controller.members)
        factor = request.replicationFactor or default_replication_factor(config.min_insync_replicas, members)
        _check_replication_factor(factor, members)
        _check_min_insync_replicas(factor, config.min_insync_replicas, members)
        await leader_known(self._controller, deadline)
        # On members that answer: one that does not would leave a partition without a leader.
        brokers = tuple(
            BrokerPlace(server.id, server.rack)
            for server in await reachable(self._controller, self._directory, deadline)
        )
        _must_fit(
            brokers,
            factor,
            [name for name in self._controller.members if name not in self._controller.metadata.leaving],
        )
        op = CreateStream(
            name=request.name,
            subject=request.subject,
            partitions=partitions,
            replication_factor=factor,
            brokers=brokers,
            created_ns=time.time_ns(),
            group=request.group,
            config=stored_config(config),
        )
        await submit(self._controller, op, deadline)

    def _check_count(self, partitions: int) -> None:
        """The cluster may have so many more partitions, with those that calls to this server are creating."""
        most = self._defaults.replication.partitions_max
        found = sum(len(stream.partitions) for stream in self._controller.metadata.streams.values()) + self._creating
        if found + partitions > most:
            text = (
                f"partitions is {partitions}, but the cluster has {found} of at most {most} partitions: use {max(0, most - found)} or "
                "less, delete streams, or raise `clustering.partitions.max`"
            )
            raise GrpcError(Status.RESOURCE_EXHAUSTED, text)

    def _require_subject(self, call: Call, subject: str, partitions: int) -> None:
        """The client may attach a stream to this subject: the rules of docs/guides/authorization.md, section "Subjects"."""
        authorizer, peer = self._authorizer, call.peer
        if authorizer.allows_subject(peer, subject, "CreateStream"):
            return
        sharing = [
            stream
            for stream in self._controller.metadata.streams.values()
            if streams_overlap(subject, partitions, stream.subject, len(stream.partitions))
        ]
        is_own = not authorizer.names_subjects or any(stream.subject == subject for stream in sharing)
        if not (is_own or all(authorizer.allows(peer, name, "CreateStream") for name in _names_like(subject))):
            authorizer.require_subject(peer, subject, "CreateStream")
        for stream in sharing:
            if not all(authorizer.allows(peer, stream.name, action) for action in ("Publish", "Subscribe")):
                authorizer.require_subject(peer, subject, "CreateStream")

    def _resolved(self, request: api.CreateStreamRequest) -> StreamConfig:
        try:
            return resolve(self._defaults, overrides_of(request))
        except InvalidConfig as error:
            raise GrpcError(Status.INVALID_ARGUMENT, f"{error.message}: {error.hint}") from None

    async def delete_stream(self, request: api.DeleteStreamRequest, call: Call) -> api.DeleteStreamResponse:
        deadline = deadline_of(call)
        self._authorizer.require(call.peer, request.name, "DeleteStream")
        if request.name in RESERVED_STREAMS:
            raise GrpcError(Status.INVALID_ARGUMENT, "Stream is reserved")
        await submit(self._controller, DeleteStream(request.name), deadline)
        await self._starts.settled(deadline)
        return api.DeleteStreamResponse()

    async def pause_stream(self, request: api.PauseStreamRequest, call: Call) -> api.PauseStreamResponse:
        deadline = deadline_of(call)
        self._authorizer.require(call.peer, request.name, "PauseStream")
        op = PauseStream(request.name, time.time_ns(), tuple(request.partitions), request.resumeAll)
        await submit(self._controller, op, deadline)
        await self._starts.settled(deadline)
        return api.PauseStreamResponse()

    async def set_stream_readonly(
        self, request: api.SetStreamReadonlyRequest, call: Call
    ) -> api.SetStreamReadonlyResponse:
        deadline = deadline_of(call)
        self._authorizer.require(call.peer, request.name, "SetStreamReadonly")
        op = SetStreamReadonly(request.name, time.time_ns(), request.readonly, tuple(request.partitions))
        await submit(self._controller, op, deadline)
        await self._starts.settled(deadline)
        return api.SetStreamReadonlyResponse()


def _names_like(subject: str) -> tuple[str, ...]:
    """The subject as a stream's name, and two names that its wildcards cover."""
    tokens = subject.split(".")
    if {"*", ">"}.isdisjoint(tokens):
        return (subject,)
    return (subject, *(".".join({"*": "0", ">": rest}.get(token, token) for token in tokens) for rest in ("0", "0.0")))


def _check_request(request: api.CreateStreamRequest, partitions: int, cluster: ClusterConfig) -> None:
    """Raises for the first fault, in the order that clients rely on."""
    namespace = cluster.replication.namespace
    if not request.name:
        raise GrpcError(Status.INVALID_ARGUMENT, "Name cannot be empty")
    fault = stream_subject_fault(request.subject, partitions)
    if fault is None:
        fault = reserved_subject_fault(request.subject, namespace, partitions)
    if fault is not None:
        raise GrpcError(Status.INVALID_ARGUMENT, f"Subject is invalid: {fault}")
    if request.name in RESERVED_STREAMS:
        raise GrpcError(Status.INVALID_ARGUMENT, "Stream is reserved")
    if (fault := stream_name_fault(request.name)) is not None:
        raise GrpcError(Status.INVALID_ARGUMENT, f"Name is invalid: {fault}")
    if request.group and (fault := subject_fault(request.group)) is not None:
        raise GrpcError(Status.INVALID_ARGUMENT, f"Group is invalid: {fault}")
    if not 1 <= partitions <= cluster.stream_bounds.partitions_max:
        text = f"partitions is {partitions}, it must be from 1 to {cluster.stream_bounds.partitions_max} (`streams.partitions.max`)"
        raise GrpcError(Status.INVALID_ARGUMENT, text)


def default_replication_factor(min_insync_replicas: int, members: int) -> int:
    """The replicas of a stream whose creator leaves their number to the cluster: 1, as in Liftbridge, unless messages need more in-sync
    replicas. Then one more than these, so that the loss of one server does not stop the stream; fewer in a smaller cluster."""
    return 1 if min_insync_replicas == 1 else max(1, min(min_insync_replicas + 1, members))


def _check_min_insync_replicas(factor: int, minimum: int, members: int) -> None:
    """With fewer replicas than have to be in sync, the stream would store messages and never deliver one."""
    replicas = members if factor == -1 else factor
    if replicas >= minimum:
        return
    required = f"minIsr is {minimum} (`clustering.min.insync.replicas` unless the request sets it)"
    if members < minimum:
        text = (
            f"{required}, but the cluster has {members} server{'' if members == 1 else 's'}: no message could be committed or read; "
            f"start {minimum} servers, or use minIsr {members}"
        )
        raise GrpcError(Status.FAILED_PRECONDITION, text)
    text = (
        f"replicationFactor is {factor}, but {required}: no message could be committed or read; use replicationFactor {minimum} to "
        f"{members}, 0 for the cluster's default, or minIsr {replicas}"
    )
    raise GrpcError(Status.INVALID_ARGUMENT, text)


def _check_replication_factor(factor: int, members: int) -> None:
    """Counts all members; those that do not answer now may be back in a moment."""
    if factor < -1 or factor > members:
        text = f"Invalid replicationFactor {factor}, cluster size {members}: use 1 to {members}, or -1 for all"
        raise GrpcError(Status.INVALID_ARGUMENT, text)


def _must_fit(brokers: tuple[BrokerPlace, ...], factor: int, staying: list[str]) -> None:
    """-1 means a replica on every server of the cluster, so that all of them have to answer; never silently fewer."""
    if factor > len(brokers):
        text = f"replicationFactor is {factor}, but only {len(brokers)} servers answer: start the others, or use less"
        raise GrpcError(Status.UNAVAILABLE, text)
    silent = sorted(set(staying) - {broker.id for broker in brokers})
    if factor == -1 and silent:
        text = (
            f"replicationFactor is -1, a replica on each of {len(staying)} servers, but {', '.join(silent)} "
            f"{'does' if len(silent) == 1 else 'do'} not answer: retry, start the server, or use {len(staying) - len(silent)}"
        )
        raise GrpcError(Status.UNAVAILABLE, text)


def overrides_of(request: api.CreateStreamRequest) -> StreamOverrides:
    """The settings that the request has: a field that is present with 0 or false counts, an absent one does not."""
    names = {item.name: item.metadata["wire_name"] for item in fields(StreamOverrides)}
    given = {name: getattr(request, wire).value for name, wire in names.items() if request.HasField(wire)}
    return StreamOverrides(**given)
