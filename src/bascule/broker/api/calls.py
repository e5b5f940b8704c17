"""Unary RPCs: decoding of requests, encoding of answers, and the client's deadline."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from google.protobuf.message import DecodeError

from bascule.metadata.requests import CallDeadline
from bascule.net.grpc.server import Call, Route, unary
from bascule.net.grpc.status import GrpcError, Status


class Encodes(Protocol):
    def SerializeToString(self) -> bytes: ...  # noqa: N802 - protobuf's name


Handler = Callable[[Any, Call], Awaitable[Encodes]]


class Decodes(Protocol):
    def FromString(self, data: bytes, /) -> Any: ...  # noqa: N802 - protobuf's name


def deadline_of(call: Call) -> CallDeadline:
    return CallDeadline.after(call.timeout)


def check_texts(**faults: str | None) -> None:
    """Raises INVALID_ARGUMENT for the first field with a fault."""
    for field, fault in faults.items():
        if fault is not None:
            raise GrpcError(Status.INVALID_ARGUMENT, f"{field} is invalid: {fault}")


def routes_of(handlers: Mapping[str, tuple[Decodes, Handler]], service: str = "proto.API") -> dict[bytes, Route]:
    """Routes for the gRPC server, from RPC name → request message and handler."""
    return {
        f"/{service}/{name}".encode(): unary(_decoding(request, handler))
        for name, (request, handler) in handlers.items()
    }


def _decoding(kind: Decodes, handler: Handler) -> Callable[[bytes, Call], Awaitable[bytes]]:
    async def answer(data: bytes, call: Call) -> bytes:
        try:
            request = kind.FromString(data)
        except DecodeError:
            raise GrpcError(Status.INTERNAL, "the request is not valid protobuf") from None
        return (await handler(request, call)).SerializeToString()

    return answer
