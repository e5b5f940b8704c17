"""Calls between servers on behalf of whoever runs the cluster: by method and protobuf message, in envelopes, answered side by side.

A call to this server itself is answered at once. What a handler refuses, its caller gets as the GrpcError that it raised there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from bascule.broker.api.calls import Deadline
from bascule.errors import BasculeError, RejectedEnvelope, Unavailable
from bascule.net.grpc.status import GrpcError, Status, status_of
from bascule.net.nats.envelope import MessageType, decode, encode
from bascule.net.nats.subjects import ControlSubjects
from bascule.proto.extensions_pb2 import ForwardedAnswer, ForwardedCall
from bascule.raft.transport import Bus, publish_quietly

if TYPE_CHECKING:
    from bascule.broker.services import Services

Handler = Callable[["Services", Any, Deadline], Awaitable[Any]]

CALLS_MAX: Final = 64
"""Calls of others that are answered at the same time; more are told to come back."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Method:
    request: Any
    response: Any
    handler: Handler


def refusal(status: Status, message: str, hint: str = "") -> GrpcError:
    """One line that says what is wrong, and one that says what to do."""
    return GrpcError(status, f"{message}\n{hint}" if hint else message)


class Switchboard:
    def __init__(self, bus: Bus, subjects: ControlSubjects, server_id: str, methods: dict[str, Method]) -> None:
        self._bus = bus
        self._subjects = subjects
        self._server_id = server_id
        self._methods = methods
        self._services: Services | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, services: Services) -> None:
        self._services = services
        await self._bus.subscribe(self._subjects.operations(self._server_id), self._on_call)

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ── asking ───────────────────────────────────────────────────────────────────────────────────

    async def call(self, server: str, method: str, request: Any, *, timeout: float) -> Any:
        """The answer of that server. Raises GrpcError as its handler did, Unavailable when it does not answer."""
        assert self._services is not None
        known = self._methods[method]
        if server == self._server_id:
            return await known.handler(self._services, request, Deadline.after(timeout))
        call = ForwardedCall(method=method, request=request.SerializeToString(), timeout_ms=int(timeout * 1000))
        data = encode(MessageType.PROPAGATED_REQUEST, call.SerializeToString())
        try:
            answer = await self._bus.request(self._subjects.operations(server), data, timeout)
            found = ForwardedAnswer.FromString(decode(answer, MessageType.PROPAGATED_RESPONSE))
            if found.code == 0:
                return known.response.FromString(found.response)
        except Unavailable:
            raise Unavailable(f"server `{server}` does not answer") from None
        except (RejectedEnvelope, DecodeError):
            raise Unavailable(f"server `{server}` answered with something that is no answer") from None
        raise GrpcError(found.code, found.text)

    # ── answering ────────────────────────────────────────────────────────────────────────────────

    async def _on_call(self, data: bytes, reply: str) -> None:
        try:
            call = ForwardedCall.FromString(decode(data, MessageType.PROPAGATED_REQUEST))
        except (RejectedEnvelope, DecodeError):
            return  # foreign bytes on our subject: not worth an answer
        if reply:
            # Not one after the other: a drain takes its time.
            task = asyncio.create_task(self._reply(call, reply), name=f"operation {call.method}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _reply(self, call: ForwardedCall, reply: str) -> None:
        answer = await self._answer(call)
        data = encode(MessageType.PROPAGATED_RESPONSE, answer.SerializeToString())
        await publish_quietly(self._bus, reply, data)

    async def _answer(self, call: ForwardedCall) -> ForwardedAnswer:
        assert self._services is not None
        method = self._methods.get(call.method)
        if method is None:
            return ForwardedAnswer(
                code=Status.UNIMPLEMENTED, text=f"this server's version does not know `{call.method}`"
            )
        if len(self._tasks) > CALLS_MAX:
            return ForwardedAnswer(code=Status.UNAVAILABLE, text="too many operations at once")
        try:
            request = method.request.FromString(call.request)
            async with asyncio.timeout(call.timeout_ms / 1000):
                response = await method.handler(self._services, request, Deadline.after(call.timeout_ms / 1000))
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
