"""From the status of a call, or the code of a publish error, to our errors."""

from __future__ import annotations

from typing import Final

from bascule.errors import (
    BasculeError,
    CallerError,
    DiskFull,
    IncorrectOffset,
    OperatorError,
    OutcomeUnknown,
    OutOfSequence,
    PartitionReadonly,
    PermissionDenied,
    ProducerFenced,
    RecordTooLarge,
    StreamNotFound,
    Unavailable,
)
from bascule.net.grpc.channel import GrpcStatusError
from bascule.net.grpc.status import Status, error_class, status_name

NO_METADATA_LEADER: Final = "no known metadata leader"
"""Text of a broker's INTERNAL status while its cluster elects a leader."""

NOT_STORED: Final = "was not stored, publish it again"
"""Text of a broker's UNAVAILABLE status when the message reached a leader that had handed over."""

LOOK_FIRST: Final = "check whether it took effect before you repeat it"


def is_passing(status: int, text: str) -> bool:
    """Whether the same call may succeed after a moment."""
    return status == Status.UNAVAILABLE or (status == Status.INTERNAL and NO_METADATA_LEADER in text)


def error_of(status: int, text: str) -> BasculeError:
    """The error of a call that may be repeated."""
    if is_passing(status, text):
        return Unavailable(text or "the broker is not available")
    return error_class(status)(text or f"the broker answered {status_name(status)}")


def unknown_outcome(what: str, reason: str) -> OutcomeUnknown:
    return OutcomeUnknown(f"{what}, and no answer came: {reason}", hint=LOOK_FIRST)


# ── publishing ───────────────────────────────────────────────────────────────────────────────────

# Codes of PublishAsyncError.
UNKNOWN, BAD_REQUEST, NOT_FOUND, INTERNAL, READONLY, INCORRECT_OFFSET, ENCRYPTION_FAILED, PERMISSION_DENIED = range(8)
PRODUCER_FENCED, OUT_OF_SEQUENCE, DISK_FULL = 1000, 1001, 1002

_TOO_LARGE_TEXT: Final = "exceeds max"
_FENCED_TEXT: Final = "incorrect expected offset"
_PRODUCER_TEXT: Final = "newer epoch of this producer"
_SEQUENCE_TEXT: Final = "before this one is missing"
_FULL_TEXT: Final = "is full: the message was not stored"


def publish_failure(code: int, text: str) -> BasculeError:
    """The error for a PublishAsyncError."""
    if code == UNKNOWN:
        return OutcomeUnknown(text or "it is unknown whether the message is stored", hint=LOOK_FIRST)
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
        DISK_FULL: DiskFull,
    }
    return kinds.get(code, OperatorError)(text or f"the broker answered with error {code}")


def call_failure(error: GrpcStatusError) -> BasculeError:
    """The error for the status of a Publish call."""
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
    if status == Status.RESOURCE_EXHAUSTED and _FULL_TEXT in text:
        return DiskFull(text)
    if status == Status.FAILED_PRECONDITION and "readonly" in text.lower():
        return PartitionReadonly(text)
    if status == Status.FAILED_PRECONDITION and _PRODUCER_TEXT in text:
        return ProducerFenced(text)
    if status == Status.ABORTED and _SEQUENCE_TEXT in text:
        return OutOfSequence(text)
    return error_of(status, text)
