"""From the status of a call to the error that says who has to act."""

from __future__ import annotations

from typing import Final

from bascule.errors import (
    BasculeError,
    CallerError,
    Conflict,
    DeadlineExceeded,
    IncorrectOffset,
    OperatorError,
    OutcomeUnknown,
    OutOfSequence,
    PartitionReadonly,
    PermissionDenied,
    ProducerFenced,
    RecordTooLarge,
    StateError,
    StreamExists,
    StreamNotFound,
    Unavailable,
)
from bascule.net.grpc.channel import GrpcStatusError
from bascule.net.grpc.status import Status

NO_METADATA_LEADER: Final = "no known metadata leader"
"""What a broker says, with INTERNAL, while its cluster elects a leader."""

NOT_STORED: Final = "was not stored, publish it again"
"""What a broker says, with UNAVAILABLE, when a message met a leader that had handed over."""

LOOK_FIRST: Final = "look whether it happened before you do it again"

_KINDS: Final[dict[int, type[BasculeError]]] = {
    Status.INVALID_ARGUMENT: CallerError,
    Status.OUT_OF_RANGE: CallerError,
    Status.NOT_FOUND: StreamNotFound,
    Status.ALREADY_EXISTS: StreamExists,
    Status.PERMISSION_DENIED: PermissionDenied,
    Status.UNAUTHENTICATED: PermissionDenied,
    Status.FAILED_PRECONDITION: StateError,
    Status.ABORTED: Conflict,
    Status.RESOURCE_EXHAUSTED: StateError,
    Status.UNAVAILABLE: Unavailable,
    Status.CANCELLED: Unavailable,
    Status.DEADLINE_EXCEEDED: DeadlineExceeded,
}


def is_passing(status: int, text: str) -> bool:
    """Whether the same call may well succeed in a moment."""
    return status == Status.UNAVAILABLE or (status == Status.INTERNAL and NO_METADATA_LEADER in text)


def error_of(status: int, text: str) -> BasculeError:
    """For a call that may be made again."""
    if is_passing(status, text):
        return Unavailable(text or "the broker is not available")
    return _KINDS.get(status, OperatorError)(text or f"the broker answered {status_name(status)}")


def unknown_outcome(what: str, reason: str) -> OutcomeUnknown:
    return OutcomeUnknown(f"{what}, and no answer came: {reason}", hint=LOOK_FIRST)


def status_name(status: int) -> str:
    try:
        return Status(status).name
    except ValueError:
        return f"status {status}"


# ── publishing ───────────────────────────────────────────────────────────────────────────────────

# Codes of PublishAsyncError, and of Ack.ackError.
UNKNOWN, BAD_REQUEST, NOT_FOUND, INTERNAL, READONLY, INCORRECT_OFFSET, ENCRYPTION_FAILED, PERMISSION_DENIED = range(8)
PRODUCER_FENCED, OUT_OF_SEQUENCE = 1000, 1001
ACK_OK, ACK_UNKNOWN, ACK_INCORRECT_OFFSET, ACK_TOO_LARGE, ACK_ENCRYPTION = range(5)

_TOO_LARGE_TEXT: Final = "exceeds max"
_FENCED_TEXT: Final = "incorrect expected offset"
_PRODUCER_TEXT: Final = "newer epoch of this producer"
_SEQUENCE_TEXT: Final = "before this one is missing"


def publish_failure(code: int, text: str) -> BasculeError:
    """For an error that PublishAsync answered."""
    if code == UNKNOWN:
        return OutcomeUnknown(text or "the broker cannot say whether the message is stored", hint=LOOK_FIRST)
    if code == BAD_REQUEST and _TOO_LARGE_TEXT in text:
        return RecordTooLarge(text)
    kinds: dict[int, type[BasculeError]] = {
        BAD_REQUEST: CallerError,
        NOT_FOUND: StreamNotFound,
        INTERNAL: Unavailable,
        READONLY: PartitionReadonly,
        INCORRECT_OFFSET: IncorrectOffset,
        PERMISSION_DENIED: PermissionDenied,
        ENCRYPTION_FAILED: OperatorError,
        PRODUCER_FENCED: ProducerFenced,
        OUT_OF_SEQUENCE: OutOfSequence,
    }
    return kinds.get(code, OperatorError)(text or f"the broker answered with error {code}")


def call_failure(error: GrpcStatusError) -> BasculeError:
    """For the status of a Publish call."""
    status, text = error.status, error.text
    if error.unprocessed:
        return error_of(status, text)
    if status == Status.UNAVAILABLE and NOT_STORED not in text:
        return unknown_outcome("the message was sent", text)
    if status == Status.UNKNOWN and _FENCED_TEXT in text:
        return IncorrectOffset(text)
    if status == Status.UNKNOWN and "NATS" in text:
        return Unavailable(text)
    if status in (Status.UNKNOWN, Status.DEADLINE_EXCEEDED, Status.CANCELLED):
        return OutcomeUnknown(text or "no ack came in time", hint=LOOK_FIRST)
    if status in (Status.INVALID_ARGUMENT, Status.RESOURCE_EXHAUSTED) and ("exceeds" in text or "larger" in text):
        return RecordTooLarge(text)
    if status == Status.FAILED_PRECONDITION and "readonly" in text.lower():
        return PartitionReadonly(text)
    if status == Status.FAILED_PRECONDITION and _PRODUCER_TEXT in text:
        return ProducerFenced(text)
    if status == Status.ABORTED and _SEQUENCE_TEXT in text:
        return OutOfSequence(text)
    return error_of(status, text)


def ack_failure(code: int) -> BasculeError | None:
    """For the error inside an ack; None when the message was stored."""
    match code:
        case 0:
            return None
        case 2:
            return IncorrectOffset("incorrect expected offset")
        case 3:
            return RecordTooLarge("the message is larger than `clustering.replication.max.bytes` of the brokers")
        case 4:
            return OperatorError("the broker could not encrypt the message")
        case 1000:
            return Unavailable("the partition's leader changes just now: the message was not stored, publish it again")
        case 1001:
            return CallerError("the producer headers are malformed")
        case 1002:
            return ProducerFenced("a newer epoch of this producer has published")
        case 1003:
            return OutOfSequence("a message before this one is missing")
        case _:
            return OutcomeUnknown(
                "the broker could not store the message, or does not know whether it did", hint=LOOK_FIRST
            )
