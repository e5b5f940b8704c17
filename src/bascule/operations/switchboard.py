"""Calls between servers for operations: a method and a protobuf message in an envelope, answered concurrently.

A call to this server itself is answered without NATS. A handler's GrpcError reaches the caller as it was raised.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from google.protobuf.message import DecodeError

from bascule.errors import BasculeError, RejectedEnvelope, Unavailable
from bascule.metadata.requests import CallDeadline
from bascule.net.grpc.status import GrpcError, Status, status_of
from bascule.net.nats.envelope import MessageType, pack_message, unpack_message
from bascule.net.nats.subjects import ControlSubjects
from bascule.proto import extensions_pb2 as extensions
from bascule.proto.extensions_pb2 import ForwardedAnswer, ForwardedCall
from bascule.raft.transport import Bus, publish_quietly

Handler = Callable[[Any, CallDeadline], Awaitable[Any]]

METHODS: Final[dict[str, tuple[Any, Any]]] = {
    # calls to the controller
    "AddServers": (extensions.AddServersRequest, extensions.MovesResponse),
    "Rebalance": (extensions.RebalanceRequest, extensions.MovesResponse),
    "Reassign": (extensions.ReassignRequest, extensions.MovesResponse),
    "CancelReassignment": (extensions.CancelReassignmentRequest, extensions.MovesResponse),
    "RemoveServer": (extensions.RemoveServerRequest, extensions.RemoveServerResponse),
    # calls to one server
    "Drain": (extensions.DrainRequest, extensions.DrainResponse),
    "HandOver": (extensions.HandOverRequest, extensions.HandOverResponse),
    "Report": (extensions.ReportRequest, extensions.ReportResponse),
    "Cursors": (extensions.CursorsRequest, extensions.CursorsResponse),
    "ReplicaLog": (extensions.ReplicaLogRequest, extensions.ReplicaLog),
    "Keys": (extensions.KeysRequest, extensions.ServerKeys),
    "RotateKeys": (extensions.RotateKeysRequest, extensions.ServerKeys),
    "Counts": (extensions.CountsRequest, extensions.ServerCounts),
    "Logs": (extensions.LogsRequest, extensions.LogsResponse),
}
"""Method → request and response message."""

CALLS_MAX: Final = 64
"""Calls of other servers that run at the same time; further ones are refused with UNAVAILABLE."""

_logger = logging.getLogger(__name__)


def refusal(status: Status, message: str, hint: str = "") -> GrpcError:
    """An error of two lines: what is wrong, and what to do."""
    return GrpcError(status, f"{message}\n{hint}" if hint else message)


class Switchboard:
    def __init__(self, bus: Bus, subjects: ControlSubjects, server_id: str) -> None:
        self._bus = bus
        self._subjects = subjects
        self._server_id = server_id
        self._handlers: Mapping[str, Handler] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, handlers: Mapping[str, Handler]) -> None:
        """Answer calls with these handlers from now on. Handlers make calls themselves, so the switchboard exists before them."""
        self._handlers = handlers
        await self._bus.subscribe(self._subjects.operations(self._server_id), self._on_call)

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ── asking ───────────────────────────────────────────────────────────────────────────────────

    async def call(self, server: str, method: str, request: Any, *, timeout: float) -> Any:
        """The answer of that server. Raises GrpcError as its handler did, and Unavailable when it does not answer."""
        if server == self._server_id:
            return await self._here(method, request, timeout)
        call = ForwardedCall(method=method, request=request.SerializeToString(), timeout_ms=int(timeout * 1000))
        data = pack_message(MessageType.PROPAGATED_REQUEST, call)
        try:
            answer = await self._bus.request(self._subjects.operations(server), data, timeout)
            found = unpack_message(ForwardedAnswer, answer, MessageType.PROPAGATED_RESPONSE)
            if found.code == 0:
                return METHODS[method][1].FromString(found.response)
        except Unavailable:
            raise Unavailable(f"server `{server}` does not answer") from None
        except (RejectedEnvelope, DecodeError):
            raise Unavailable(f"the answer of server `{server}` cannot be decoded") from None
        raise GrpcError(found.code, found.text)

    async def _here(self, method: str, request: Any, timeout: float) -> Any:
        if method not in self._handlers:
            raise Unavailable("the server is starting", hint="try again in a moment")
        return await self._handlers[method](request, CallDeadline.after(timeout))

    # ── answering ────────────────────────────────────────────────────────────────────────────────

    async def _on_call(self, data: bytes, reply: str) -> None:
        try:
            call = unpack_message(ForwardedCall, data, MessageType.PROPAGATED_REQUEST)
        except RejectedEnvelope:
            return  # another program's bytes on our subject
        if reply:
            # Concurrently: a drain can take minutes.
            task = asyncio.create_task(self._reply(call, reply), name=f"operation {call.method}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _reply(self, call: ForwardedCall, reply: str) -> None:
        answer = await self._answer(call)
        data = pack_message(MessageType.PROPAGATED_RESPONSE, answer)
        await publish_quietly(self._bus, reply, data)

    async def _answer(self, call: ForwardedCall) -> ForwardedAnswer:
        handler = self._handlers.get(call.method)
        if handler is None:
            return ForwardedAnswer(
                code=Status.UNIMPLEMENTED, text=f"this server's version does not know `{call.method}`"
            )
        if len(self._tasks) > CALLS_MAX:
            return ForwardedAnswer(code=Status.UNAVAILABLE, text="too many operations at once")
        try:
            request = METHODS[call.method][0].FromString(call.request)
            async with asyncio.timeout(call.timeout_ms / 1000):
                response = await handler(request, CallDeadline.after(call.timeout_ms / 1000))
            return ForwardedAnswer(response=response.SerializeToString())
        except GrpcError as error:
            return ForwardedAnswer(code=error.status, text=error.text)
        except BasculeError as error:
            return ForwardedAnswer(code=status_of(error), text=text_of(error))
        except (DecodeError, TimeoutError) as error:
            return ForwardedAnswer(code=Status.UNAVAILABLE, text=f"{call.method} was not done in time ({error!r})")
        except Exception:
            _logger.exception("the operation %s failed", call.method)
            return ForwardedAnswer(code=Status.INTERNAL, text=f"{call.method} failed: see the log of {self._server_id}")


def text_of(error: BasculeError) -> str:
    return error.message if error.hint is None else f"{error.message}\n{error.hint}"
