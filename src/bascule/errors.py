"""Every error Bascule raises: one tree, split by the party that has to act.

    BasculeError
    ├── CallerError      the request is wrong: change it
    ├── StateError       the request is valid, but not in the present state of the stream, the log or the client
    ├── OperatorError    the machine, the disk, a file or the configuration needs an operator
    ├── Unavailable      temporary: retry
    └── OutcomeUnknown   the request may or may not have taken effect: check before you retry

Each class has a `code` (stable, for scripts and logs) and may carry a `hint`: the next step, on its own line.
`GRPC_STATUS` is the only table of the gRPC statuses that clients see.
"""

from __future__ import annotations

import errno
import re
from typing import ClassVar, Final

NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of the operating system that mean DiskFull: of a disk, of a quota, and of a file."""


class BasculeError(Exception):
    """Base class of all errors. `message` says what is wrong, `hint` what to do about it."""

    code: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\nhint: {self.hint}"


class CallerError(BasculeError):
    """The request itself is wrong and was refused; nothing changed."""

    code = "INVALID_ARGUMENT"


class StateError(BasculeError):
    """The request is well formed but does not fit the present state; nothing changed."""

    code = "FAILED_PRECONDITION"


class OperatorError(BasculeError):
    """Something outside the request is broken: a disk, a file, a key, a setting."""

    code = "OPERATOR"


class Unavailable(BasculeError):
    """The request cannot be served now; the same request may succeed later."""

    code = "UNAVAILABLE"


class OutcomeUnknown(BasculeError):
    """The request was sent and no answer came: it may or may not have taken effect."""

    code = "OUTCOME_UNKNOWN"


# ── invalid requests ─────────────────────────────────────────────────────────────────────────────


class InvalidConfig(CallerError):
    """A configuration key, value or file is invalid. The message names the key, the value and the valid values."""

    code = "INVALID_CONFIG"


class OffsetOutOfRange(CallerError):
    """The offset is negative, or beyond the end of the log."""

    code = "OFFSET_OUT_OF_RANGE"


class OffsetBelowStart(OffsetOutOfRange):
    """Retention has deleted the records at this offset; the log begins at `log_start_offset`."""

    code = "OFFSET_BELOW_START"
    log_start_offset: int = -1


class TimestampOutOfRange(CallerError):
    """No record has the requested timestamp or an earlier one."""

    code = "TIMESTAMP_OUT_OF_RANGE"


class RecordTooLarge(CallerError):
    """A key, a value, the headers or the whole record is larger than its limit."""

    code = "RECORD_TOO_LARGE"


class InvalidRecord(CallerError):
    """The record cannot be stored: too many headers, a batch without records, …"""

    code = "INVALID_RECORD"


class RejectedBatch(CallerError):
    """The bytes given as record batches are damaged or malformed, or do not continue the log."""

    code = "REJECTED_BATCH"


class RejectedEnvelope(CallerError):
    """The bytes are not an envelope of the expected type: foreign, damaged, or of another version."""

    code = "REJECTED_ENVELOPE"


class PermissionDenied(CallerError):
    """No line of the authorization policy grants the client this request."""

    code = "PERMISSION_DENIED"


class Unauthenticated(PermissionDenied):
    """The call has no valid credentials: no token, an unknown or expired one, or too many failed attempts."""

    code = "UNAUTHENTICATED"


class InvalidOption(CallerError):
    """An argument of the client library is invalid. The message names the option, the value and the valid values."""

    code = "INVALID_OPTION"


class InvalidSchema(CallerError):
    """A table was requested with columns, or column types, that a stream does not have."""

    code = "INVALID_SCHEMA"


class InvalidQuery(CallerError):
    """An SQL query or a pipeline expression is invalid. The message names the part and the valid names."""

    code = "INVALID_QUERY"


# ── invalid in this state ────────────────────────────────────────────────────────────────────────


class LogReadonly(StateError):
    """The log is readonly: it refuses messages of publishers, and takes batches from replication."""

    code = "LOG_READONLY"


class LogClosed(StateError):
    """The log is closed."""

    code = "LOG_CLOSED"


class LogDeleted(LogClosed):
    """The log was deleted together with its data."""

    code = "LOG_DELETED"


class LogEmpty(StateError):
    """The operation needs at least one record."""

    code = "LOG_EMPTY"


class EndOfReadonlyLog(StateError):
    """A reader reached the end of a readonly log."""

    code = "END_OF_READONLY_LOG"


class ReaderCancelled(StateError):
    """A blocked reader was cancelled by its owner."""

    code = "READER_CANCELLED"


class EpochFenced(StateError):
    """The leader epoch is older than the latest one in the log: the sender is no longer leader."""

    code = "EPOCH_FENCED"


class DirectoryInUse(StateError):
    """Another process holds the data directory."""

    code = "DIRECTORY_IN_USE"


class StreamNotFound(StateError):
    """The stream does not exist, or has no partition of this number."""

    code = "STREAM_NOT_FOUND"


class StreamDeleted(StreamNotFound):
    """The stream was deleted while it was being read."""

    code = "STREAM_DELETED"


class StreamExists(StateError):
    """A stream of this name already exists."""

    code = "STREAM_EXISTS"


class PartitionPaused(StateError):
    """The partition is paused; it cannot be read until it is resumed."""

    code = "PARTITION_PAUSED"


class PartitionReadonly(StateError):
    """The partition is readonly: it refuses new messages, and its messages can be read."""

    code = "PARTITION_READONLY"


class EndOfPartition(StateError):
    """A subscriber reached the end of a readonly partition: no more messages will follow."""

    code = "END_OF_PARTITION"


class Conflict(StateError):
    """A concurrent request has changed the same object first."""

    code = "ABORTED"


class IncorrectOffset(StateError):
    """The message was not stored: another message came first and has the offset that its publisher expected."""

    code = "INCORRECT_OFFSET"


class ProducerFenced(StateError):
    """The message was not stored: another producer with the same id has begun a newer epoch."""

    code = "PRODUCER_FENCED"


class OutOfSequence(StateError):
    """The message was not stored: an earlier message of its producer is missing, or the epoch did not begin with sequence 0."""

    code = "OUT_OF_SEQUENCE"


class NotGroupMember(StateError):
    """The consumer is no longer a member of its group, or the group no longer exists."""

    code = "NOT_GROUP_MEMBER"


class DataLost(StateError):
    """Records were removed before they were read. The message names the stream, the partition, the offsets and the cause."""

    code = "DATA_LOST"


class StreamRecreated(StateError):
    """The stream was deleted and created again: offsets of the deleted stream are not valid in the new one."""

    code = "STREAM_RECREATED"


class MalformedValue(StateError):
    """A message's value does not have the declared format. The message names the stream, the partition and the offset."""

    code = "MALFORMED_VALUE"


class CheckpointMismatch(StateError):
    """A reader's saved offsets are malformed or do not belong to the stream; with them, records would be skipped or repeated."""

    code = "CHECKPOINT_MISMATCH"


class ArchiveConflict(StateError):
    """Another process is writing the archive. This one changed nothing."""

    code = "ARCHIVE_CONFLICT"


class RowsChanged(StateError):
    """Spark repeated a batch with other rows, or in another order, so it cannot be written exactly once."""

    code = "ROWS_CHANGED"


class ExpectationBroken(StateError):
    """Rows violate a rule with the action `fail`. Their batch was not written. The message names the rule and some of the rows."""

    code = "EXPECTATION_BROKEN"


class ClientClosed(StateError):
    """The client, or the subscription, consumer or publisher that was used, is closed."""

    code = "CLIENT_CLOSED"


# ── temporary ────────────────────────────────────────────────────────────────────────────────────


class NotLeader(Unavailable):
    """Another server leads the partition: `leader`, with its Flight endpoint at `location`."""

    code = "NOT_LEADER"
    leader: str = ""
    location: str | None = None


class NotEnoughReplicas(Unavailable):
    """A partition has fewer in-sync replicas than `min.insync.replicas`: it stores messages, and neither commits nor delivers them."""

    code = "NOT_ENOUGH_REPLICAS"


class IncompleteRead(Unavailable):
    """A read ended early and without a reason; its result is incomplete and must not be used as if it were complete."""

    code = "INCOMPLETE_READ"


class DeadlineExceeded(Unavailable):
    """No answer came before the deadline. The request can be retried safely."""

    code = "DEADLINE_EXCEEDED"


# ── the operator has to act ─────────────────────────────────────────────────────────────────────


class StorageError(OperatorError):
    """An operation on the disk failed."""

    code = "STORAGE"


class DiskFull(StorageError):
    """The disk has no space for a log or an archive. Nothing of the request was kept; it succeeds once there is space."""

    code = "DISK_FULL"


class CorruptBatch(StorageError):
    """Stored bytes fail their checksum or their format. The fields say which bytes; all other records stay readable.

    `next_offset` is the first readable offset after the damage, or None if there is none.
    """

    code = "CORRUPT_BATCH"

    def __init__(
        self,
        message: str,
        *,
        file: str,
        position: int,
        bytes_damaged: int,
        first_offset: int,
        next_offset: int | None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.file = file
        self.position = position
        self.bytes_damaged = bytes_damaged
        self.first_offset = first_offset
        self.next_offset = next_offset


class NotALog(OperatorError):
    """The directory does not hold a partition log."""

    code = "NOT_A_LOG"


class FormatTooNew(OperatorError):
    """The file was written by a newer version of Bascule."""

    code = "FORMAT_TOO_NEW"


class EncryptionKeyError(OperatorError):
    """The master key is missing, has the wrong size, or differs from the key that encrypted the data."""

    code = "ENCRYPTION_KEY"


class ArchiveDamaged(OperatorError):
    """Files of an archive are missing or differ from what was written. The message names them."""

    code = "ARCHIVE_DAMAGED"


class ArchiveUnreachable(OperatorError):
    """The folder of an archive does not exist on a machine that has to read it. The message names both."""

    code = "ARCHIVE_UNREACHABLE"


class MissingExtra(OperatorError):
    """The feature needs an optional package that is not installed. The message names the extra to install."""

    code = "MISSING_EXTRA"


class JavaNotFound(OperatorError):
    """Spark needs Java, and no suitable version was found."""

    code = "JAVA_NOT_FOUND"


class PipelineFailed(OperatorError):
    """A Spark query ended with an error from Spark or user code. A restarted pipeline continues where it stopped."""

    code = "PIPELINE_FAILED"


# ── codes and gRPC statuses ──────────────────────────────────────────────────────────────────────

GRPC_STATUS: dict[str, str] = {
    "INTERNAL": "INTERNAL",
    "INVALID_ARGUMENT": "INVALID_ARGUMENT",
    "INVALID_CONFIG": "INVALID_ARGUMENT",
    "OFFSET_OUT_OF_RANGE": "OUT_OF_RANGE",
    "OFFSET_BELOW_START": "OUT_OF_RANGE",
    "TIMESTAMP_OUT_OF_RANGE": "INTERNAL",
    "RECORD_TOO_LARGE": "INVALID_ARGUMENT",
    "INVALID_RECORD": "INVALID_ARGUMENT",
    "REJECTED_BATCH": "DATA_LOSS",
    "REJECTED_ENVELOPE": "INVALID_ARGUMENT",
    "PERMISSION_DENIED": "PERMISSION_DENIED",
    "UNAUTHENTICATED": "UNAUTHENTICATED",
    "INVALID_OPTION": "INVALID_ARGUMENT",
    "INVALID_SCHEMA": "INVALID_ARGUMENT",
    "INVALID_QUERY": "INVALID_ARGUMENT",
    "FAILED_PRECONDITION": "FAILED_PRECONDITION",
    "ABORTED": "ABORTED",
    "LOG_READONLY": "FAILED_PRECONDITION",
    "LOG_CLOSED": "INTERNAL",
    "LOG_DELETED": "NOT_FOUND",
    "LOG_EMPTY": "FAILED_PRECONDITION",
    "END_OF_READONLY_LOG": "RESOURCE_EXHAUSTED",
    "READER_CANCELLED": "CANCELLED",
    "EPOCH_FENCED": "FAILED_PRECONDITION",
    "DIRECTORY_IN_USE": "FAILED_PRECONDITION",
    "STREAM_NOT_FOUND": "NOT_FOUND",
    "STREAM_DELETED": "NOT_FOUND",
    "STREAM_EXISTS": "ALREADY_EXISTS",
    "PARTITION_PAUSED": "FAILED_PRECONDITION",
    "PARTITION_READONLY": "FAILED_PRECONDITION",
    "END_OF_PARTITION": "RESOURCE_EXHAUSTED",
    "INCORRECT_OFFSET": "UNKNOWN",
    "PRODUCER_FENCED": "FAILED_PRECONDITION",
    "OUT_OF_SEQUENCE": "ABORTED",
    "NOT_GROUP_MEMBER": "FAILED_PRECONDITION",
    "DATA_LOST": "DATA_LOSS",
    "STREAM_RECREATED": "FAILED_PRECONDITION",
    "MALFORMED_VALUE": "FAILED_PRECONDITION",
    "CHECKPOINT_MISMATCH": "FAILED_PRECONDITION",
    "ARCHIVE_CONFLICT": "FAILED_PRECONDITION",
    "ROWS_CHANGED": "FAILED_PRECONDITION",
    "EXPECTATION_BROKEN": "FAILED_PRECONDITION",
    "CLIENT_CLOSED": "CANCELLED",
    "OPERATOR": "INTERNAL",
    "STORAGE": "INTERNAL",
    "DISK_FULL": "RESOURCE_EXHAUSTED",
    "CORRUPT_BATCH": "DATA_LOSS",
    "NOT_A_LOG": "INTERNAL",
    "FORMAT_TOO_NEW": "FAILED_PRECONDITION",
    "ENCRYPTION_KEY": "FAILED_PRECONDITION",
    "ARCHIVE_DAMAGED": "DATA_LOSS",
    "ARCHIVE_UNREACHABLE": "FAILED_PRECONDITION",
    "MISSING_EXTRA": "FAILED_PRECONDITION",
    "JAVA_NOT_FOUND": "FAILED_PRECONDITION",
    "PIPELINE_FAILED": "INTERNAL",
    "UNAVAILABLE": "UNAVAILABLE",
    "NOT_LEADER": "UNAVAILABLE",
    "NOT_ENOUGH_REPLICAS": "UNAVAILABLE",
    "INCOMPLETE_READ": "DATA_LOSS",
    "DEADLINE_EXCEEDED": "DEADLINE_EXCEEDED",
    "OUTCOME_UNKNOWN": "UNKNOWN",
}


_PATH: Final = re.compile(r"""(?<![\w:./])/(?:[^\s/:'"`,;()]+/)+([^\s/:'"`,;()]+)""")


def without_paths(text: str) -> str:
    """The text with the last part of each absolute path only: clients need not know the directories of a server."""
    return _PATH.sub(r"\1", text)


def grpc_status(error: BasculeError) -> str:
    """Return the name of the gRPC status that a client sees for this error."""
    return GRPC_STATUS[error.code]
