"""The seventeen statuses of gRPC, and the error that carries one to a client."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from bascule import errors
from bascule.errors import BasculeError, grpc_status


class Status(IntEnum):
    """How a call has ended. Names and numbers are gRPC's."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class GrpcError(Exception):
    """Ends a call with this status and text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = Status(status)
        self.text = text


_ERRORS: Final[dict[int, type[BasculeError]]] = {
    Status.INVALID_ARGUMENT: errors.CallerError,
    Status.OUT_OF_RANGE: errors.CallerError,
    Status.NOT_FOUND: errors.StreamNotFound,
    Status.ALREADY_EXISTS: errors.StreamExists,
    Status.PERMISSION_DENIED: errors.PermissionDenied,
    Status.UNAUTHENTICATED: errors.Unauthenticated,
    Status.FAILED_PRECONDITION: errors.StateError,
    Status.ABORTED: errors.Conflict,
    Status.RESOURCE_EXHAUSTED: errors.StateError,
    Status.UNAVAILABLE: errors.Unavailable,
    Status.CANCELLED: errors.Unavailable,
    Status.DEADLINE_EXCEEDED: errors.DeadlineExceeded,
}


def error_class(status: int) -> type[BasculeError]:
    """The error that a client raises for a status; the inverse of `status_of` as far as there is one."""
    return _ERRORS.get(status, errors.OperatorError)


def status_name(status: int) -> str:
    return Status(status).name if status in Status._value2member_map_ else f"status {status}"


def status_of(error: BasculeError) -> Status:
    """The status a client sees for one of our errors."""
    return Status[grpc_status(error)]
