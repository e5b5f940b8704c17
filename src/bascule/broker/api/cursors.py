"""SetCursor and FetchCursor. Any offset is taken, for streams and partitions that exist or do not: they are the client's notes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bascule.broker.api.calls import Deadline, routes_of
from bascule.net.grpc.server import Call, Route
from bascule.net.grpc.status import GrpcError, Status
from bascule.proto import api_pb2 as api

if TYPE_CHECKING:
    from bascule.broker.services import Services


def routes(services: Services) -> dict[bytes, Route]:
    return routes_of(
        services,
        {"SetCursor": (api.SetCursorRequest, set_cursor), "FetchCursor": (api.FetchCursorRequest, fetch_cursor)},
    )


async def set_cursor(services: Services, request: api.SetCursorRequest, call: Call) -> api.SetCursorResponse:
    _check(request)
    services.authorizer.require(call.peer, request.stream, "SetCursor")
    place = request.stream, request.partition, request.cursorId
    timeout = Deadline.of(call).left()
    if request.HasField("expected"):
        await services.cursors.replace(*place, request.expected.value, request.offset, timeout=timeout)
    else:
        await services.cursors.set(*place, request.offset, timeout=timeout)
    return api.SetCursorResponse()


async def fetch_cursor(services: Services, request: api.FetchCursorRequest, call: Call) -> api.FetchCursorResponse:
    _check(request)
    services.authorizer.require(call.peer, request.stream, "FetchCursor")
    timeout = Deadline.of(call).left()
    offset = await services.cursors.fetch(request.stream, request.partition, request.cursorId, timeout=timeout)
    return api.FetchCursorResponse(offset=offset)


def _check(request: api.SetCursorRequest | api.FetchCursorRequest) -> None:
    if not request.stream:
        raise GrpcError(Status.INVALID_ARGUMENT, "no stream provided")
    if not request.cursorId:
        raise GrpcError(Status.INVALID_ARGUMENT, "no cursorId provided")
