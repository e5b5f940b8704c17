"""What all unary RPCs share: decoding, deadlines, and ops for the controller."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from google.protobuf.message import DecodeError

from bascule.errors import OutcomeUnknown, Unavailable
from bascule.metadata.core.model.ops import Op
from bascule.metadata.core.model.refusal import Refusal
from bascule.net.grpc.server import Call, Route, unary
from bascule.net.grpc.status import GrpcError, Status

if TYPE_CHECKING:
    from bascule.broker.services import Services
    from bascule.metadata.controller import Controller
    from bascule.metadata.server_directory import ServerInfo

SECONDS_DEFAULT: Final = 5.0
"""How long a call without a deadline may take."""

LEADER_POLL_SECONDS: Final = 0.01
SURVEY_SECONDS: Final = 3.0
PLACEMENT_SURVEY_SECONDS: Final = 1.0
PLACEMENT_AGE_SECONDS_MAX: Final = 2.0
"""A server that has not been heard of for so long is asked before anything is put on it."""

MARGIN: Final = 0.1
MARGIN_SECONDS_MAX: Final = 0.1
"""What is left of a client's deadline for the answer to reach it: a tenth, at most this."""

NO_LEADER: Final = "no known metadata leader"
"""Clients compare this text."""


class Encodes(Protocol):
    def SerializeToString(self) -> bytes: ...  # noqa: N802 - protobuf's name


Handler = Callable[["Services", Any, Call], Awaitable[Encodes]]


class Decodes(Protocol):
    def FromString(self, data: bytes, /) -> Any: ...  # noqa: N802 - protobuf's name


@dataclass(frozen=True, slots=True)
class Deadline:
    """How long a call may still take."""

    at: float | None
    """On the monotonic clock; None when the client set none."""

    @classmethod
    def after(cls, seconds: float | None) -> Deadline:
        if seconds is None:
            return cls(None)
        return cls(time.monotonic() + seconds - min(MARGIN * seconds, MARGIN_SECONDS_MAX))

    @classmethod
    def of(cls, call: Call) -> Deadline:
        return cls.after(call.timeout)

    def left(self, default: float = SECONDS_DEFAULT) -> float:
        """Seconds; `default` when the client set no deadline."""
        return default if self.at is None else max(0.0, self.at - time.monotonic())


def routes_of(
    services: Services, handlers: Mapping[str, tuple[Decodes, Handler]], service: str = "proto.API"
) -> dict[bytes, Route]:
    """RPC name → request class and handler, as the gRPC server wants them."""
    return {
        f"/{service}/{name}".encode(): unary(_decoding(services, request, handler))
        for name, (request, handler) in handlers.items()
    }


def _decoding(services: Services, kind: Decodes, handler: Handler) -> Callable[[bytes, Call], Awaitable[bytes]]:
    async def answer(data: bytes, call: Call) -> bytes:
        try:
            request = kind.FromString(data)
        except DecodeError:
            raise GrpcError(Status.INTERNAL, "the request is not valid protobuf") from None
        return (await handler(services, request, call)).SerializeToString()

    return answer


def refused(refusal: Refusal) -> GrpcError:
    return GrpcError(Status[refusal.code], refusal.text)


async def submit(controller: Controller, op: Op, deadline: Deadline) -> None:
    """Have the op done. Raises GrpcError with why it was not, in the words and codes that clients know."""
    await leader_known(controller, deadline)
    try:
        refusal = await controller.submit(op, timeout=deadline.left())
    except (Unavailable, OutcomeUnknown) as error:
        raise GrpcError(Status.INTERNAL, error.message) from None
    if refusal is not None:
        raise refused(refusal)


async def leader_known(controller: Controller, deadline: Deadline) -> None:
    """With a deadline there is time to wait for an election; without one the client is told at once."""
    while controller.leader is None:
        if deadline.at is None or deadline.left() == 0:
            raise GrpcError(Status.INTERNAL, NO_LEADER)
        await asyncio.sleep(LEADER_POLL_SECONDS)


async def reachable(services: Services, deadline: Deadline) -> list[ServerInfo]:
    """Members that answer now: where something can be put. Asks for at most half of the time there is: the rest is for doing it."""
    timeout = min(PLACEMENT_SURVEY_SECONDS, deadline.left() / 2)
    members = services.controller.members
    return await services.directory.servers(members, timeout=timeout, age_max_seconds=PLACEMENT_AGE_SECONDS_MAX)
