"""grpc.health.v1: whether the server's services can be called."""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError

from bascule.kernels.grpc.server import CallStream
from bascule.net.grpc.server import Call, Route, unary
from bascule.net.grpc.status import GrpcError, Status
from bascule.proto.health_pb2 import HealthCheckRequest, HealthCheckResponse, HealthListResponse

SERVING: Final = HealthCheckResponse.SERVING
NOT_SERVING: Final = HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN: Final = HealthCheckResponse.SERVICE_UNKNOWN


class HealthState:
    """The status of each service. The server itself, whose name is empty, is always serving."""

    def __init__(self) -> None:
        self.services: dict[str, bool] = {}
        self._watchers: set[_Watch] = set()

    def set(self, name: str, serving: bool) -> None:
        self.services[name] = serving
        for watcher in list(self._watchers):
            watcher.send_status()

    def status(self, name: str) -> HealthCheckResponse.ServingStatus:
        if name not in self.services:
            return SERVICE_UNKNOWN if name else SERVING
        return SERVING if self.services[name] else NOT_SERVING

    def add(self, watcher: _Watch) -> None:
        self._watchers.add(watcher)

    def discard(self, watcher: _Watch) -> None:
        self._watchers.discard(watcher)


class _Watch(CallStream):
    """One Watch call: sends the status at once and after each change."""

    def __init__(self, state: HealthState) -> None:
        self.lasting = True
        self._state = state
        self._service: str | None = None
        self._sent: int | None = None

    def received(self, message: bytes) -> None:
        if self._service is None:
            self._service = _parse(message).service
            self._state.add(self)
            self.send_status()

    def client_finished(self) -> None:
        if self._service is None:
            self.finish(Status.INTERNAL, "the call ended without a request; send a HealthCheckRequest")

    def send_status(self) -> None:
        status = self._state.status(self._service or "")
        if status != self._sent:
            self._sent = status
            self.send(HealthCheckResponse(status=status).SerializeToString())

    def ended(self) -> None:
        self._state.discard(self)


def health_routes(state: HealthState) -> dict[bytes, Route]:
    async def check(request: bytes, _: Call) -> bytes:
        name = _parse(request).service
        status = state.status(name)
        if status == SERVICE_UNKNOWN:
            raise GrpcError(Status.NOT_FOUND, f"unknown service {name}")
        return HealthCheckResponse(status=status).SerializeToString()

    async def list_all(_: bytes, __: Call) -> bytes:
        statuses = {name: HealthCheckResponse(status=state.status(name)) for name in ("", *state.services)}
        return HealthListResponse(statuses=statuses).SerializeToString()

    return {
        b"/grpc.health.v1.Health/Check": unary(check),
        b"/grpc.health.v1.Health/List": unary(list_all),
        b"/grpc.health.v1.Health/Watch": lambda: _Watch(state),
    }


def _parse(request: bytes) -> HealthCheckRequest:
    try:
        return HealthCheckRequest.FromString(request)
    except DecodeError:
        raise GrpcError(Status.INTERNAL, "the request is not valid protobuf") from None
