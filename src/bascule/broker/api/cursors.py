"""SetCursor and FetchCursor. Clients store any offset under any stream and partition, whether these exist or not."""

from __future__ import annotations

from bascule import limits
from bascule.broker.api.calls import check_texts, deadline_of, routes_of
from bascule.names import cursor_id_fault, stream_name_fault
from bascule.net.grpc.server import Call, Route
from bascule.net.grpc.status import GrpcError, Status
from bascule.proto import api_pb2 as api
from bascule.readers.cursors import CursorStore
from bascule.readers.stored_cursors import cursor_key
from bascule.security.authorization import Authorizer


class CursorApi:
    def __init__(self, cursors: CursorStore, authorizer: Authorizer) -> None:
        self._cursors = cursors
        self._authorizer = authorizer

    def routes(self) -> dict[bytes, Route]:
        return routes_of(
            {
                "SetCursor": (api.SetCursorRequest, self.set_cursor),
                "FetchCursor": (api.FetchCursorRequest, self.fetch_cursor),
            }
        )

    async def set_cursor(self, request: api.SetCursorRequest, call: Call) -> api.SetCursorResponse:
        if not request.delete:  # servers before this version stored any text
            check_texts(cursorId=cursor_id_fault(request.cursorId), stream=stream_name_fault(request.stream))
        _check(request)
        self._authorizer.require(call.peer, request.stream, "SetCursor")
        place = request.stream, request.partition, request.cursorId
        timeout = deadline_of(call).left()
        identity = request.streamId
        if request.HasField("expected"):
            if request.delete:
                raise GrpcError(Status.INVALID_ARGUMENT, "delete is set: a cursor is deleted without expected")
            expected = request.expected.value
            await self._cursors.replace(*place, expected, request.offset, timeout=timeout, stream_id=identity)
        else:
            await self._cursors.set(*place, request.offset, timeout=timeout, stream_id=identity, delete=request.delete)
        return api.SetCursorResponse()

    async def fetch_cursor(self, request: api.FetchCursorRequest, call: Call) -> api.FetchCursorResponse:
        _check(request)
        self._authorizer.require(call.peer, request.stream, "FetchCursor")
        timeout = deadline_of(call).left()
        found = await self._cursors.fetch(request.stream, request.partition, request.cursorId, timeout=timeout)
        return api.FetchCursorResponse(offset=found.offset, streamId=found.stream_id)


def _check(request: api.SetCursorRequest | api.FetchCursorRequest) -> None:
    if not request.stream:
        raise GrpcError(Status.INVALID_ARGUMENT, "no stream provided")
    if not request.cursorId:
        raise GrpcError(Status.INVALID_ARGUMENT, "no cursorId provided")
    size = len(cursor_key(request.cursorId, request.stream, request.partition))
    if size > limits.RECORD_KEY_BYTES_MAX:
        # Such a cursor was never stored. Shorter ones may be, by older servers, and are found.
        raise GrpcError(Status.INVALID_ARGUMENT, f"cursorId and stream have {size} bytes: a cursor has less")
