"""Every error Bascule raises: one tree, split by who has to act.

    BasculeError
    ├── CallerError      the request is wrong: change it
    ├── StateError       the request is fine, the thing is not in the state for it
    ├── OperatorError    the machine, the disk, a file or the configuration needs somebody
    ├── Unavailable      nothing is wrong, try again
    └── OutcomeUnknown   it may or may not have happened: look before you retry

Each class has a `code` (stable, for scripts and logs) and may carry a `hint`: the next step, on its own line.
`GRPC_STATUS` maps every code to the status that clients see; it is the only such table.
"""

from __future__ import annotations

from typing import ClassVar


class BasculeError(Exception):
    """Root of all errors. `message` says what is wrong, `hint` says what to do about it."""

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
    """Not now; the same request may succeed later."""

    code = "UNAVAILABLE"


class OutcomeUnknown(BasculeError):
    """The request was sent and no answer came: it may have taken effect."""

    code = "OUTCOME_UNKNOWN"


# ── the caller's faults ──────────────────────────────────────────────────────────────────────────


class InvalidConfig(CallerError):
    """A configuration key, value or file is wrong. Names the key, the value and what would be right."""

    code = "INVALID_CONFIG"


class OffsetOutOfRange(CallerError):
    """An offset that is negative, or beyond the end of the log."""

    code = "OFFSET_OUT_OF_RANGE"


class OffsetBelowStart(OffsetOutOfRange):
    """What was asked for is no longer there: retention has deleted it, and the log begins at `log_start_offset`."""

    code = "OFFSET_BELOW_START"
    log_start_offset: int = -1


class TimestampOutOfRange(CallerError):
    """No record is as old as the timestamp asked for."""

    code = "TIMESTAMP_OUT_OF_RANGE"


class RecordTooLarge(CallerError):
    """A key, value, header or whole record is larger than its limit."""

    code = "RECORD_TOO_LARGE"


class InvalidRecord(CallerError):
    """A record that cannot be stored as it is: too many headers, a batch without records, …"""

    code = "INVALID_RECORD"


class RejectedBatch(CallerError):
    """Bytes offered as record batches are damaged, malformed or do not continue the log."""

    code = "REJECTED_BATCH"


class RejectedEnvelope(CallerError):
    """Bytes that are no envelope, or one of another type: foreign, damaged, or of another version."""

    code = "REJECTED_ENVELOPE"


class PermissionDenied(CallerError):
    """The client may not do this: no line of the policy grants it."""

    code = "PERMISSION_DENIED"


class InvalidOption(CallerError):
    """An argument given to the client is wrong. Names the option, the value and what would be right."""

    code = "INVALID_OPTION"


class InvalidSchema(CallerError):
    """A table was asked for with columns, or types of columns, that a stream does not have."""

    code = "INVALID_SCHEMA"


class InvalidQuery(CallerError):
    """A query in SQL, or an expression of a pipeline, is not right. Says what, and what there is."""

    code = "INVALID_QUERY"


# ── the state does not fit ───────────────────────────────────────────────────────────────────────


class LogReadonly(StateError):
    """The partition takes no appends from publishers; replication still may write."""

    code = "LOG_READONLY"


class LogClosed(StateError):
    """The log was closed."""

    code = "LOG_CLOSED"


class LogDeleted(LogClosed):
    """The log was deleted together with its data."""

    code = "LOG_DELETED"


class LogEmpty(StateError):
    """The operation needs at least one record."""

    code = "LOG_EMPTY"


class EndOfReadonlyLog(StateError):
    """A reader reached the end of a log that takes no more records."""

    code = "END_OF_READONLY_LOG"


class ReaderCancelled(StateError):
    """A blocked reader was cancelled by its owner."""

    code = "READER_CANCELLED"


class EpochFenced(StateError):
    """A leader epoch older than one the log has seen: the sender has been deposed."""

    code = "EPOCH_FENCED"


class DirectoryInUse(StateError):
    """Another process holds the data directory."""

    code = "DIRECTORY_IN_USE"


class StreamNotFound(StateError):
    """There is no stream of this name, or it has no partition of this number."""

    code = "STREAM_NOT_FOUND"


class StreamDeleted(StreamNotFound):
    """The stream was deleted while somebody read it."""

    code = "STREAM_DELETED"


class StreamExists(StateError):
    """A stream of this name is there already."""

    code = "STREAM_EXISTS"


class PartitionPaused(StateError):
    """The partition is paused: nobody reads it until it is resumed."""

    code = "PARTITION_PAUSED"


class PartitionReadonly(StateError):
    """The partition takes no messages; what it holds can be read."""

    code = "PARTITION_READONLY"


class EndOfPartition(StateError):
    """A subscriber has read everything of a partition that is readonly: nothing more will come."""

    code = "END_OF_PARTITION"


class Conflict(StateError):
    """What the request was made for has changed meanwhile: somebody was faster."""

    code = "ABORTED"


class IncorrectOffset(StateError):
    """The message would not have got the offset its publisher expected, and was not stored: somebody was faster."""

    code = "INCORRECT_OFFSET"


class ProducerFenced(StateError):
    """Somebody with the same producer id has begun a newer epoch; the message was not stored."""

    code = "PRODUCER_FENCED"


class OutOfSequence(StateError):
    """A message of the idempotent producer before this one is missing, or its epoch did not begin with 0; it was not stored."""

    code = "OUT_OF_SEQUENCE"


class NotGroupMember(StateError):
    """The consumer does not belong to its group any more, or the group is gone."""

    code = "NOT_GROUP_MEMBER"


class DataLost(StateError):
    """Records that a reader had still to read are gone. Names the stream, the partition, the offsets and what removed them."""

    code = "DATA_LOST"


class StreamRecreated(StateError):
    """The stream was deleted and created again: offsets of the former one mean nothing in it."""

    code = "STREAM_RECREATED"


class MalformedValue(StateError):
    """A message's value is not what its readers were told it is. Names the stream, the partition and the offset."""

    code = "MALFORMED_VALUE"


class CheckpointMismatch(StateError):
    """Offsets that a reader kept do not fit the stream, or are no offsets: going on would skip or repeat records."""

    code = "CHECKPOINT_MISMATCH"


class ArchiveConflict(StateError):
    """Somebody else writes the archive. Nothing was changed."""

    code = "ARCHIVE_CONFLICT"


class RowsChanged(StateError):
    """A batch of Spark that was written before came again with other rows, or in another order: it cannot be written once."""

    code = "ROWS_CHANGED"


class ExpectationBroken(StateError):
    """Rows broke a rule that a pipeline fails for; nothing of their batch was written. Names the rule and some of the rows."""

    code = "EXPECTATION_BROKEN"


class ClientClosed(StateError):
    """The client, or the part of it that was used, has been closed."""

    code = "CLIENT_CLOSED"


# ── not now ──────────────────────────────────────────────────────────────────────────────────────


class NotLeader(Unavailable):
    """Another server leads the partition now: `leader`, whose tables are served at `location`."""

    code = "NOT_LEADER"
    leader: str = ""
    location: str | None = None


class IncompleteRead(Unavailable):
    """A reader got less than it asked for, and nobody said why: what it has must not pass for all of it."""

    code = "INCOMPLETE_READ"


class DeadlineExceeded(Unavailable):
    """No answer came in time to a request that can safely be made again."""

    code = "DEADLINE_EXCEEDED"


# ── somebody has to look at the machine ──────────────────────────────────────────────────────────


class StorageError(OperatorError):
    """The disk refused an operation."""

    code = "STORAGE"


class DiskFull(StorageError):
    """No room for what was to be written, to a log or to an archive. Nothing of it was kept; it succeeds once there is room."""

    code = "DISK_FULL"


class CorruptBatch(StorageError):
    """Stored bytes fail their check. Says exactly which; everything else stays readable.

    `next_offset` is where reading can go on behind the damage, or None when nothing readable follows.
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
    """The directory holds something else than a partition log."""

    code = "NOT_A_LOG"


class FormatTooNew(OperatorError):
    """Written by a newer version of Bascule."""

    code = "FORMAT_TOO_NEW"


class EncryptionKeyError(OperatorError):
    """The master key is missing, has the wrong size, or is not the one the data was written with."""

    code = "ENCRYPTION_KEY"


class ArchiveDamaged(OperatorError):
    """Files of an archive are missing or are not what was written. Names them."""

    code = "ARCHIVE_DAMAGED"


class ArchiveUnreachable(OperatorError):
    """The folder of an archive is not there on a machine that has to read it. Names both."""

    code = "ARCHIVE_UNREACHABLE"


class MissingExtra(OperatorError):
    """Something was used that an optional package brings, and it is not installed. Names the extra."""

    code = "MISSING_EXTRA"


class JavaNotFound(OperatorError):
    """Spark needs a Java, and there is none that fits."""

    code = "JAVA_NOT_FOUND"


class PipelineFailed(OperatorError):
    """A query of Spark has ended with an error that is none of ours. Run again, a pipeline goes on where it was."""

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
    "INCOMPLETE_READ": "DATA_LOSS",
    "DEADLINE_EXCEEDED": "DEADLINE_EXCEEDED",
    "OUTCOME_UNKNOWN": "UNKNOWN",
}


def grpc_status(error: BasculeError) -> str:
    """The name of the gRPC status a client sees for this error."""
    return GRPC_STATUS[error.code]
