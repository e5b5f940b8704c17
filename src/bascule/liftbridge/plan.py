"""What an import copies: which streams, and each partition from which directory. Reads, and writes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from bascule.config.stream import StreamOverrides
from bascule.errors import BasculeError, InvalidOption, OperatorError
from bascule.liftbridge.directory import LiftbridgeDirectory
from bascule.liftbridge.encryption import ValueDecryption
from bascule.liftbridge.raft_state import LiftbridgeStream, LiftbridgeStreams, read_streams
from bascule.liftbridge.segments import LiftbridgeMessage, SegmentEnd, read_segments
from bascule.log.disk.master_keys import MasterKeys
from bascule.names import reserved_subject_fault, stream_name_fault, stream_subject_fault

CURSORS: Final = "__cursors"
INTERNAL: Final = "__"
"""Start of the names of internal streams. Cursors are imported by content; the activity of another cluster is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    sources: tuple[Path, ...]
    namespace: str
    """Of the new cluster: no stream may use its subjects."""
    streams: frozenset[str] = frozenset()
    """Empty: all."""
    subjects: Mapping[str, str] = field(default_factory=dict)
    """Replace the subjects of streams."""
    encrypted: frozenset[str] = frozenset()
    """Streams whose values are encrypted by the setting of the server, which the metadata does not have."""
    without_metadata: bool = False
    keys: MasterKeys | None = None
    """With which Liftbridge encrypted."""


@dataclass(frozen=True, slots=True)
class PartitionSource:
    """The messages of one partition in the directory that has most of them."""

    stream: str
    partition: int
    segments: tuple[Path, ...]
    decrypt: ValueDecryption | None = None

    @property
    def base_offset(self) -> int:
        """The first offset of the last segment: where an empty partition continues."""
        return int(self.segments[-1].stem) if self.segments else 0

    def messages(self, end: SegmentEnd) -> Iterator[LiftbridgeMessage]:
        """Raises OperatorError, which names the stream, the partition and the offset."""
        for message in read_segments(list(self.segments), end):
            yield message if self.decrypt is None else self._decrypted(message, self.decrypt)

    def _decrypted(self, message: LiftbridgeMessage, decrypt: ValueDecryption) -> LiftbridgeMessage:
        try:
            return replace(message, value=decrypt(message.value))
        except BasculeError as error:
            raise OperatorError(
                f"offset {message.offset} of partition {self.partition} of stream '{self.stream}': {error.message}",
                hint=error.hint,
            ) from None


@dataclass(frozen=True, slots=True)
class StreamSource:
    stream: LiftbridgeStream
    partitions: tuple[PartitionSource, ...]


@dataclass(frozen=True, slots=True)
class ImportPlan:
    streams: tuple[StreamSource, ...]
    cursors: tuple[PartitionSource, ...]
    left_out: Mapping[str, str]
    """Streams that are not imported, and why."""


def make_plan(options: ImportOptions) -> ImportPlan:
    """Raises OperatorError, StateError or InvalidOption if the import is not possible."""
    sources = [LiftbridgeDirectory.open(path) for path in options.sources]
    known = _without_metadata(sources) if options.without_metadata else _latest(sources)
    _check_names(options, known)
    wanted = {
        name: _adapted(stream, options)
        for name, stream in known.items()
        if not name.startswith(INTERNAL) and (not options.streams or name in options.streams)
    }
    left_out = {name: "not named by --stream" for name in known if name not in wanted and not name.startswith(INTERNAL)}
    for source in sources:
        for name in source.streams():
            if name not in known and not name.startswith(INTERNAL):
                left_out[name] = "deleted: it is not in the metadata"
    streams = tuple(_stream_source(stream, sources, options) for stream in wanted.values())
    cursors = known.get(CURSORS)
    numbers = range(cursors.partitions) if cursors is not None else ()
    return ImportPlan(streams, tuple(_partition_source(CURSORS, number, sources) for number in numbers), left_out)


def _latest(sources: list[LiftbridgeDirectory]) -> dict[str, LiftbridgeStream]:
    found: list[LiftbridgeStreams] = []
    problem: OperatorError | None = None
    for source in sources:
        try:
            found.append(read_streams(source))
        except OperatorError as error:
            problem = error
    if not found:
        assert problem is not None
        raise problem
    return max(found, key=lambda one: one.index).streams


def _without_metadata(sources: list[LiftbridgeDirectory]) -> dict[str, LiftbridgeStream]:
    counts: dict[str, int] = {}
    for source in sources:
        for name, numbers in source.streams().items():
            counts[name] = max(counts.get(name, 0), numbers[-1] + 1)
    return {name: LiftbridgeStream(name, name, partitions) for name, partitions in counts.items()}


def _check_names(options: ImportOptions, known: Mapping[str, LiftbridgeStream]) -> None:
    for option, names in (
        ("--stream", options.streams),
        ("--subject", options.subjects),
        ("--encrypted", options.encrypted),
    ):
        unknown = sorted(set(names) - set(known))
        if unknown:
            raise InvalidOption(
                f"{option} names the stream `{unknown[0]}`, which is not there",
                hint="the streams are: " + (", ".join(sorted(known)) or "none"),
            )


def _adapted(stream: LiftbridgeStream, options: ImportOptions) -> LiftbridgeStream:
    """The stream as the new cluster has it. Raises OperatorError if the cluster cannot have it."""
    subject = options.subjects.get(stream.name, stream.subject)
    fault = stream_name_fault(stream.name)
    if fault is not None:
        raise OperatorError(
            f"the name of stream '{stream.name}' cannot be used: {fault}", hint="leave it out: --stream"
        )
    fault = stream_subject_fault(subject, stream.partitions) or reserved_subject_fault(
        subject, options.namespace, stream.partitions
    )
    if fault is not None:
        raise OperatorError(
            f"the subject `{subject}` of stream '{stream.name}' cannot be used: {fault}",
            hint=f"choose another one: --subject {stream.name}=SUBJECT",
        )
    overrides = stream.overrides
    if stream.name in options.encrypted:
        overrides = replace(overrides, encryption=True)
    return replace(stream, subject=subject, overrides=_for_one_server(overrides))


def _for_one_server(overrides: StreamOverrides) -> StreamOverrides:
    """A stream of one replica with a higher minimum of in-sync replicas would commit nothing."""
    return replace(overrides, min_insync_replicas=1)


def _stream_source(
    stream: LiftbridgeStream, sources: list[LiftbridgeDirectory], options: ImportOptions
) -> StreamSource:
    decrypt = None
    if stream.overrides.encryption:
        if options.keys is None:
            raise OperatorError(
                f"the values of stream '{stream.name}' are encrypted, and there is no key",
                hint="set LIFTBRIDGE_ENCRYPTION_KEY to the key of the Liftbridge servers",
            )
        decrypt = ValueDecryption(options.keys)
    for number in range(stream.partitions):
        _must_be_stored(stream, number, sources)
    found = (_partition_source(stream.name, number, sources) for number in range(stream.partitions))
    return StreamSource(stream, tuple(replace(one, decrypt=decrypt) for one in found))


def _must_be_stored(stream: LiftbridgeStream, number: int, sources: list[LiftbridgeDirectory]) -> None:
    """Every Liftbridge server has a directory for each partition, empty if the server does not store it."""
    replicas = stream.replicas.get(number, ())
    if replicas and all(source.server_id and source.server_id not in replicas for source in sources):
        raise OperatorError(
            f"partition {number} of stream '{stream.name}' is stored on {', '.join(replicas)}, and not on "
            f"{', '.join(source.server_id for source in sources)}",
            hint="give the data directories of these servers as well, or leave the stream out with --stream",
        )


def _partition_source(stream: str, number: int, sources: list[LiftbridgeDirectory]) -> PartitionSource:
    """The copy with the latest leader epoch and, in it, the highest offset, as an election would choose."""
    copies = [source.segments(stream, number) for source in sources]
    best = max(copies, key=_end) if len(copies) > 1 else copies[0]
    return PartitionSource(stream, number, tuple(best))


def _end(segments: list[Path]) -> tuple[int, int]:
    """Leader epoch and offset of the last message, −1 without one."""
    for path in reversed(segments):
        last = None
        for message in read_segments([path]):
            last = message
        if last is not None:
            return last.leader_epoch, last.offset
    return -1, int(segments[-1].stem) - 1 if segments else -1
