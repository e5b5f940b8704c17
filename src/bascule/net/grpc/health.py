"""grpc.health.v1: whether services are serving, asked once or watched."""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from bascule.kernels.grpc.server import CallStream
from bascule.net.grpc.descriptors import add_file, enum, field, map_entry, message, message_class, method, service
from bascule.net.grpc.server import Call, Route, unary
from bascule.net.grpc.status import GrpcError, Status

SERVING: Final = 1
NOT_SERVING: Final = 2
SERVICE_UNKNOWN: Final = 3
"""Numbers of HealthCheckResponse.ServingStatus; the last one is for watchers only."""

_REQUEST: Final = ".grpc.health.v1.HealthCheckRequest"
_RESPONSE: Final = ".grpc.health.v1.HealthCheckResponse"

HEALTH_FILE: Final = FileDescriptorProto(
    name="grpc/health/v1/health.proto",
    package="grpc.health.v1",
    syntax="proto3",
    message_type=[
        message("HealthCheckRequest", field("service", 1, "string")),
        message(
            "HealthCheckResponse",
            field("status", 1, _RESPONSE + ".ServingStatus", enum=True),
            enums=[enum("ServingStatus", {"UNKNOWN": 0, "SERVING": 1, "NOT_SERVING": 2, "SERVICE_UNKNOWN": 3})],
        ),
        message("HealthListRequest"),
        message(
            "HealthListResponse",
            field("statuses", 1, ".grpc.health.v1.HealthListResponse.StatusesEntry", repeated=True),
            nested=[map_entry("StatusesEntry", _RESPONSE)],
        ),
    ],
    service=[
        service(
            "Health",
            method("Check", _REQUEST, _RESPONSE),
            method("List", ".grpc.health.v1.HealthListRequest", ".grpc.health.v1.HealthListResponse"),
            method("Watch", _REQUEST, _RESPONSE, server_streaming=True),
        )
    ],
)

_pool = DescriptorPool()
add_file(_pool, HEALTH_FILE)
_Request = message_class(_pool, _REQUEST[1:])
_Response = message_class(_pool, _RESPONSE[1:])
_ListResponse = message_class(_pool, "grpc.health.v1.HealthListResponse")


class HealthState:
    """What is serving, by service. The server itself, the empty name, is serving as long as it can say so."""

    def __init__(self) -> None:
        self.services: dict[str, bool] = {}
        self._watchers: set[_Watch] = set()

    def set(self, name: str, serving: bool) -> None:
        self.services[name] = serving
        for watcher in list(self._watchers):
            watcher.tell()

    def status(self, name: str) -> int:
        if name not in self.services:
            return SERVICE_UNKNOWN if name else SERVING
        return SERVING if self.services[name] else NOT_SERVING

    def add(self, watcher: _Watch) -> None:
        self._watchers.add(watcher)

    def discard(self, watcher: _Watch) -> None:
        self._watchers.discard(watcher)


class _Watch(CallStream):
    """The status at once and then whenever it has changed."""

    def __init__(self, state: HealthState) -> None:
        self.lasting = True
        self._state = state
        self._service: str | None = None
        self._told = -1

    def received(self, message: bytes) -> None:
        if self._service is None:
            self._service = _parse(message).service
            self._state.add(self)
            self.tell()

    def client_finished(self) -> None:
        if self._service is None:
            self.finish(Status.INTERNAL, "which service is to be watched was not said")

    def tell(self) -> None:
        status = self._state.status(self._service or "")
        if status != self._told:
            self._told = status
            self.send(_Response(status=status).SerializeToString())

    def ended(self) -> None:
        self._state.discard(self)


def health_routes(state: HealthState) -> dict[bytes, Route]:
    async def check(request: bytes, _: Call) -> bytes:
        name = _parse(request).service
        status = state.status(name)
        if status == SERVICE_UNKNOWN:
            raise GrpcError(Status.NOT_FOUND, f"unknown service {name}")
        return bytes(_Response(status=status).SerializeToString())

    async def list_all(_: bytes, __: Call) -> bytes:
        names = ["", *state.services]
        return bytes(
            _ListResponse(statuses={name: _Response(status=state.status(name)) for name in names}).SerializeToString()
        )

    return {
        b"/grpc.health.v1.Health/Check": unary(check),
        b"/grpc.health.v1.Health/List": unary(list_all),
        b"/grpc.health.v1.Health/Watch": lambda: _Watch(state),
    }


def _parse(request: bytes) -> Any:
    try:
        return _Request.FromString(request)
    except DecodeError:
        raise GrpcError(Status.INTERNAL, "the request is not valid protobuf") from None
