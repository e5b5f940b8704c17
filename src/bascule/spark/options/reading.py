"""The options of a read. The reference page is generated from these declarations; the sink shares some of the sections.

Names and defaults are those of Kafka's Spark connector wherever the meaning is the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar, Final

from bascule import limits
from bascule.client.connection.options import TlsOptions, addresses
from bascule.config.values.duration import MINUTE_NS
from bascule.config.values.key import setting
from bascule.config.values.kinds import (
    INT64_MAX,
    Boolean,
    Choice,
    Duration,
    Integer,
    Kind,
    Size,
    Text,
    Unfit,
)
from bascule.errors import BasculeError, InvalidOption
from bascule.lake.delta.place import LakePlace
from bascule.spark.options.declaration import BATCH, STREAMING, Pattern, Section, Words, read_options, read_section
from bascule.spark.options.positions import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    AssignKind,
    AtOffsets,
    Earliest,
    Latest,
    OffsetsKind,
    Position,
    TimestampKind,
    TimestampsKind,
)
from bascule.spark.options.value_options import ValueFormat, ValueFraming, ValueOptions

GATHERED_OFFSETS_DEFAULT: Final = 10_000
"""Offsets up to which one task reads several partitions. Reading them takes less time than the 100 ms that Spark needs for a task."""


class OnDataLoss(StrEnum):
    FAIL = "fail"
    SKIP = "skip"
    ARCHIVE = "archive"


class TimestampStrategy(StrEnum):
    ERROR = "error"
    LATEST = "latest"


class Servers(Kind[str]):
    """Addresses of brokers, separated by commas."""

    name = "list of host:port"

    def parse(self, text: str) -> str:
        try:
            addresses(text)
        except BasculeError:
            raise Unfit("addresses such as `127.0.0.1:9292`, separated by commas") from None
        return text


class Unlimited(Kind[int]):
    """A size, or `unlimited`."""

    name = "size in bytes, or `unlimited`"

    def parse(self, text: str) -> int:
        return 0 if text.lower() == "unlimited" else Size(minimum=1).parse(text)

    def show(self, value: int) -> str:
        return Size().show(value)


class SubjectPattern(Kind[str]):
    """A NATS subject with wildcards."""

    name = "subject with wildcards"

    def parse(self, text: str) -> str:
        tokens = text.split(".")
        if not all(tokens) or ">" in tokens[:-1] or any(char.isspace() for char in text):
            raise Unfit("a subject such as `orders.*.created` or `orders.>`")
        return text


class ArchiveFolder(Kind[str]):
    """A folder as an absolute path, because driver and executors have different working directories."""

    name = "folder, or path in an object store"

    def parse(self, text: str) -> str:
        try:
            return LakePlace.of(text).absolute.uri
        except InvalidOption as error:
            raise Unfit(
                f"a folder that all executors reach, or `s3://bucket/orders`; {error.hint or error.message}"
            ) from None


class StorageOptions(Kind[Mapping[str, str]]):
    """Options of an object store as JSON. Never shown."""

    name = "JSON of options"

    def parse(self, text: str) -> Mapping[str, str]:
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
            raise Unfit('JSON such as `{"AWS_REGION": "eu-central-1"}`')
        return found

    def show(self, value: Mapping[str, str]) -> str:
        return ", ".join(f"{name}=***" for name in sorted(value))


@dataclass(frozen=True, slots=True)
class ConnectionOptions(Section):
    """Connection to the brokers"""

    servers: str = setting(
        "servers",
        Servers(),
        "127.0.0.1:9292",
        meaning="Addresses of brokers, separated by commas. One reachable broker is enough: it names the others.",
        consequence="Executors must reach these addresses too, and the Arrow Flight port of every broker.",
    )
    tls: bool = setting(
        "tls",
        Boolean(),
        False,
        meaning="Connect with TLS and trust the system's certificate authorities.",
    )
    tls_ca: str | None = setting(
        "tlsCa",
        Text(),
        None,
        meaning="PEM file of certificate authorities to trust instead of the system's. Implies `tls`.",
    )
    tls_cert: str | None = setting(
        "tlsCert",
        Text(),
        None,
        meaning="PEM file of the client certificate, for brokers that require one. Every executor must have the file.",
    )
    tls_key: str | None = setting("tlsKey", Text(), None, meaning="PEM file of the private key of `tlsCert`.")
    token: str | None = setting(
        "token", Text(), None, meaning="Sent with every call as `authorization: Bearer …`.", is_secret=True
    )

    @property
    def credentials(self) -> dict[str, Any]:
        """Arguments `tls` and `token` of a client."""
        tls: bool | TlsOptions | None = self.tls or None
        if self.tls_ca is not None or self.tls_cert is not None:
            tls = TlsOptions(ca=self.tls_ca, cert=self.tls_cert, key=self.tls_key)
        return {"tls": tls, "token": self.token}


@dataclass(frozen=True, slots=True)
class SourceConnection(ConnectionOptions):
    """Connection to the brokers"""

    patience_ns: int = setting(
        "patience",
        Duration(minimum_ns=1),
        MINUTE_NS,
        meaning="How long a read retries when no broker answers or a partition has no leader, before the query ends with an error.",
        consequence="A pipeline is restarted after such an error.",
    )


@dataclass(frozen=True, slots=True)
class StreamOptions(Section):
    """Which streams"""

    stream: str | None = setting(
        "stream", Text(), None, meaning='One stream, all its partitions. `load("orders")` is the same.'
    )
    path: str | None = setting("path", Text(), None, meaning='What `load("orders")` sets: one stream.')
    subscribe: tuple[str, ...] | None = setting("subscribe", Words(), None, meaning="Streams, separated by commas.")
    subscribe_pattern: str | None = setting(
        "subscribePattern",
        Pattern(),
        None,
        meaning="A regular expression that must match the whole name of a stream.",
        consequence="A stream that is created while a query runs is read from its first message.",
    )
    subject_pattern: str | None = setting(
        "subjectPattern",
        SubjectPattern(),
        None,
        meaning="A NATS subject with wildcards, such as `orders.*.created`: reads all streams whose subject it covers.",
        consequence="A stream that is created while a query runs is read from its first message.",
    )
    assign: Mapping[str, tuple[int, ...]] | None = setting(
        "assign", AssignKind(), None, meaning='Single partitions as JSON: `{"orders": [0, 1], "returns": [0]}`.'
    )


@dataclass(frozen=True, slots=True)
class StartingOptions(Section):
    """Where a read starts"""

    starting_offsets: Position | None = setting(
        "startingOffsets",
        OffsetsKind({"earliest": Earliest(), "latest": Latest()}, has_cursor=True),
        None,
        default_text="`earliest` in batch, `latest` in streaming",
        meaning="`earliest`, `latest` (streaming only), `cursor:<id>` to start after the records of a cursor, or JSON with an "
        'offset for every partition: `{"orders": {"0": 23, "1": -2}}`; -2 is the earliest, -1 the latest.',
        consequence="A query with a checkpoint continues from the checkpoint and ignores this option.",
    )
    starting_timestamp: Position | None = setting(
        "startingTimestamp",
        TimestampKind(),
        None,
        meaning="Start at the first record of each partition at or after this time: milliseconds since 1970, or "
        "ISO-8601 (UTC unless it "
        "names a zone).",
    )
    starting_offsets_by_timestamp: Position | None = setting(
        "startingOffsetsByTimestamp",
        TimestampsKind(),
        None,
        meaning='The same with a time for every partition: `{"orders": {"0": 1763200000000, "1": "2026-11-15T09:30:00Z"}}`.',
    )
    strategy: TimestampStrategy = setting(
        "startingOffsetsByTimestampStrategy",
        Choice(TimestampStrategy),
        TimestampStrategy.ERROR,
        meaning="For a partition without a record at or after the starting time: `error` fails, `latest` starts after "
        "its newest record.",
    )


@dataclass(frozen=True, slots=True)
class EndOptions(Section):
    """Where a batch read ends"""

    reads: ClassVar[frozenset[str]] = frozenset({BATCH})

    ending_offsets: Position | None = setting(
        "endingOffsets",
        OffsetsKind({"latest": Latest()}),
        None,
        default_text="`latest`",
        meaning="`latest`, or JSON with the offset before which the read of each partition ends; -1 is the latest.",
    )
    ending_timestamp: Position | None = setting(
        "endingTimestamp",
        TimestampKind(),
        None,
        meaning="End before the first record of each partition at or after this time.",
    )
    ending_offsets_by_timestamp: Position | None = setting(
        "endingOffsetsByTimestamp", TimestampsKind(), None, meaning="The same with a time for every partition."
    )


@dataclass(frozen=True, slots=True)
class UntilOptions(Section):
    """Where a streaming read ends"""

    reads: ClassVar[frozenset[str]] = frozenset({STREAMING})

    until_timestamp: Position | None = setting(
        "untilTimestamp",
        TimestampKind(),
        None,
        meaning="End before the first record of each partition at or after this time: for a range of the past, with `availableNow`.",
    )


@dataclass(frozen=True, slots=True)
class AmountOptions(Section):
    """How much a trigger reads"""

    reads: ClassVar[frozenset[str]] = frozenset({STREAMING})

    offsets_max: int | None = setting(
        "maxOffsetsPerTrigger",
        Integer(minimum=1, maximum=INT64_MAX),
        None,
        meaning="Offsets of all partitions together; every partition with a backlog advances by at least one.",
    )
    bytes_max: int = setting(
        "maxBytesPerTrigger",
        Unlimited(),
        limits.SPARK_TRIGGER_BYTES_DEFAULT,
        meaning="Bytes of all partitions together, estimated from their average on disk; `unlimited` for no limit.",
        consequence="The first batch of a query that starts at the earliest offset does not read the whole stream at once.",
    )
    offsets_min: int | None = setting(
        "minOffsetsPerTrigger",
        Integer(minimum=1, maximum=INT64_MAX),
        None,
        meaning="Wait until at least this many offsets can be read, but not longer than `maxTriggerDelay`.",
        consequence="No effect with AvailableNow, which reads what is there.",
    )
    delay_max_ns: int = setting(
        "maxTriggerDelay",
        Duration(minimum_ns=1),
        15 * MINUTE_NS,
        meaning="The longest time that `minOffsetsPerTrigger` may delay a batch.",
    )


@dataclass(frozen=True, slots=True)
class ParallelismOptions(Section):
    """How many tasks"""

    partitions_min: int | None = setting(
        "minPartitions",
        Integer(minimum=1, maximum=limits.SPARK_TASKS_MAX),
        None,
        meaning="Minimum number of tasks: the largest ranges are split. Without it, one task reads one partition, or several "
        "small ones.",
    )
    gathered_offsets_max: int = setting(
        "gatherRecordsPerTask",
        Integer(minimum=1, maximum=INT64_MAX),
        GATHERED_OFFSETS_DEFAULT,
        meaning="Offsets up to which one task reads several partitions; 1 for a task of its own for each partition.",
        consequence="Spark needs about 100 ms for a task, however little it reads. `minPartitions`, `maxRecordsPerPartition` and "
        "`maxBytesPerPartition` still hold.",
    )
    records_max: int | None = setting(
        "maxRecordsPerPartition",
        Integer(minimum=1, maximum=INT64_MAX),
        None,
        meaning="Maximum offsets of one task.",
    )
    bytes_max: int | None = setting(
        "maxBytesPerPartition",
        Size(minimum=1),
        None,
        meaning="Maximum bytes of one task, estimated from the average on disk.",
    )


@dataclass(frozen=True, slots=True)
class HistoryOptions(Section):
    """Archive and log as one stream"""

    path: str | None = setting(
        "history",
        ArchiveFolder(),
        None,
        meaning="The folder of an archive that `bascule pipeline archive` writes. Streams are read from the archive up "
        "to its last offset, "
        "and from their logs after it: `earliest`, offsets and timestamps reach back to the start of the archive.",
        consequence="The driver and all executors must have the folder at this path. Streams that the archive does not have are read "
        "from their logs alone.",
    )
    storage: Mapping[str, str] | None = setting(
        "storageOptions",
        StorageOptions(),
        None,
        meaning='Options of the object store of `history`, as JSON: `{"AWS_REGION": "eu-central-1"}`. Without them the environment '
        "of the driver and of the executors says how it is reached.",
        is_secret=True,
    )

    @property
    def place(self) -> LakePlace:
        assert self.path is not None  # asked for only then
        return LakePlace.of(self.path, self.storage)


@dataclass(frozen=True, slots=True)
class LossOptions(Section):
    """When records are gone"""

    on_data_loss: OnDataLoss | None = setting(
        "onDataLoss",
        Choice(OnDataLoss),
        None,
        default_text="`fail`",
        meaning="When unread records were removed, or a stream was deleted or created again: `fail` ends the query with an error that "
        "names them, `skip` continues with the next record, `archive` reads them from the archive of `history`, even when they are "
        "removed while a task reads, and fails if the archive does not have them; a deleted stream then ends where its archive ends. "
        "Gaps that compaction leaves are not loss.",
    )
    fail_on_data_loss: bool | None = setting(
        "failOnDataLoss",
        Boolean(),
        None,
        default_text="`true`",
        meaning="The name in Kafka's connector: `false` is `onDataLoss=skip`.",
    )


@dataclass(frozen=True, slots=True)
class ProgressOptions(Section):
    """Progress"""

    reads: ClassVar[frozenset[str]] = frozenset({STREAMING})

    cursor: str | None = setting(
        "cursor",
        Text(),
        None,
        meaning="Also keep the query's progress in the brokers, as a cursor with this name, for tools and for "
        "`startingOffsets=cursor:<id>`.",
        consequence="The cursor lags by one batch and may miss the last batch of a query. Only the checkpoint is exact.",
    )


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """All of a read's options. Pickled with the reader: plain values only."""

    connection: SourceConnection = field(default_factory=SourceConnection)
    streams: StreamOptions = field(default_factory=StreamOptions)
    start: StartingOptions = field(default_factory=StartingOptions)
    end: EndOptions = field(default_factory=EndOptions)
    until: UntilOptions = field(default_factory=UntilOptions)
    amount: AmountOptions = field(default_factory=AmountOptions)
    parallelism: ParallelismOptions = field(default_factory=ParallelismOptions)
    history: HistoryOptions = field(default_factory=HistoryOptions)
    loss: LossOptions = field(default_factory=LossOptions)
    progress: ProgressOptions = field(default_factory=ProgressOptions)
    value: ValueOptions = field(default_factory=ValueOptions)
    mode: str = BATCH

    @property
    def starting(self) -> Position:
        """Where the read begins."""
        default: Position = Earliest() if self.mode == BATCH else Latest()
        given = (self.start.starting_offsets, self.start.starting_timestamp, self.start.starting_offsets_by_timestamp)
        return next((position for position in given if position is not None), default)

    @property
    def ending(self) -> Position:
        """Where a batch read ends."""
        given = (self.end.ending_offsets, self.end.ending_timestamp, self.end.ending_offsets_by_timestamp)
        return next((position for position in given if position is not None), Latest())

    @property
    def skips_lost(self) -> bool:
        return self.loss.on_data_loss is OnDataLoss.SKIP or self.loss.fail_on_data_loss is False

    @property
    def falls_back(self) -> bool:
        """Whether records that the log no longer has are read from the archive."""
        return self.loss.on_data_loss is OnDataLoss.ARCHIVE


FOREIGN: Final[Mapping[str, str]] = {
    "kafka.bootstrap.servers": "write `servers`",
    "includeheaders": "leave it out: the column `headers` is always there",
    "topic": "write `stream`",
    "topics": "write `subscribe`",
    "groupidprefix": "leave it out: reading needs no consumer group",
    "kafka.group.id": "leave it out: reading needs no consumer group",
    "kafkaconsumer.polltimeoutms": "leave it out",
    "startingoffset": "write `startingOffsets`",
    "checkpointlocation": "give it to `writeStream`",
}
"""Options of Kafka's connector, and others that people try, by their names in lower case."""


def source_options(given: Mapping[str, str], mode: str) -> SourceOptions:
    """The checked options of a read. `mode` is BATCH or STREAMING."""
    read = read_options(SourceOptions, given, mode, FOREIGN)
    _one_of(
        "which streams to read",
        given,
        ("stream", "path", "subscribe", "subscribePattern", "subjectPattern", "assign"),
        least=1,
    )
    _one_of("where to begin", given, ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"))
    _one_of("where to end", given, ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"))
    _one_of("what to do about lost records", given, ("onDataLoss", "failOnDataLoss"))
    options = replace(read, mode=mode)
    _check(options)
    return options


def value_options(given: Mapping[str, str]) -> ValueOptions:
    """The checked options of values. Spark asks for the columns, which depend on them, before it says whether it reads or writes."""
    value = read_section(ValueOptions, given)
    _check_value(value)
    return value


def _one_of(what: str, given: Mapping[str, Any], names: tuple[str, ...], *, least: int = 0) -> None:
    lowered = {name.lower() for name in given}
    found = [name for name in names if name.lower() in lowered]
    listed = ", ".join(f"`{name}`" for name in names if name != "path")
    if len(found) > 1:
        both = " and ".join(f"`{name}`" for name in found)
        raise InvalidOption(f"options {both} both say {what}", hint=f"keep one of {listed}")
    if len(found) < least:
        hint = f"set one of {listed}"
        if not given:  # Spark does not hand over the options of a table in SQL
            hint += (
                "; options of `CREATE TABLE` get lost in Spark, those of `CREATE TEMPORARY VIEW … USING bascule` do not"
            )
        raise InvalidOption(f"no option says {what}", hint=hint)


def _check(options: SourceOptions) -> None:
    """Rules about more than one option."""
    amount = options.amount
    if amount.offsets_min is not None and amount.offsets_max is not None and amount.offsets_min > amount.offsets_max:
        raise InvalidOption(
            f"option `minOffsetsPerTrigger` is `{amount.offsets_min}`, above `maxOffsetsPerTrigger`, which is `{amount.offsets_max}`",
            hint="lower the one or raise the other",
        )
    if (options.connection.tls_cert is None) != (options.connection.tls_key is None):
        raise InvalidOption(
            "one of options `tlsCert` and `tlsKey` is missing", hint="they belong together: give both or none"
        )
    if options.falls_back and options.history.path is None:
        raise InvalidOption(
            "option `onDataLoss` is `archive`, but `history` is missing",
            hint="set `history` to the folder of the archive",
        )
    _check_value(options.value)
    if options.mode == BATCH:
        _check_batch_bounds(options)


def _check_value(value: ValueOptions) -> None:
    wanted = {None: (False, False), ValueFormat.PROTOBUF: (True, True)}.get(value.format, (True, False))
    for name, given, is_wanted in zip(
        ("valueSchema", "valueMessage"), (value.schema, value.message), wanted, strict=True
    ):
        if is_wanted and given is None:
            raise InvalidOption(
                f"option `valueFormat` is `{value.format}`, but `{name}` is missing", hint=f"set `{name}` too"
            )
        if given is not None and not is_wanted:
            written = "not set" if value.format is None else f"`{value.format}`"
            raise InvalidOption(
                f"option `{name}` is set, but `valueFormat` is {written}", hint="leave the one out, or set the other"
            )
    _check_framing(value)


def _check_framing(value: ValueOptions) -> None:
    if value.framing is ValueFraming.NONE:
        if value.schema_ids is not None:
            raise InvalidOption(
                "option `valueSchemaIds` is set, but `valueFraming` is `none`", hint="set it to `confluent` too"
            )
        return
    if value.format not in (ValueFormat.AVRO, ValueFormat.JSON):
        written = "not set" if value.format is None else f"`{value.format}`"
        raise InvalidOption(
            f"option `valueFraming` is `{value.framing}`, but `valueFormat` is {written}",
            hint="framed values are `avro` or `json`",
        )
    if value.format is ValueFormat.AVRO and value.schema_ids is None:
        raise InvalidOption(
            f"option `valueFraming` is `{value.framing}`, but `valueSchemaIds` is missing",
            hint="set it to the ids under which the registry has `valueSchema`, such as `17,21`",
        )


def _check_batch_bounds(options: SourceOptions) -> None:
    """A batch read that starts at the latest offset, or ends at the earliest, would be empty."""
    if options.starting == Latest() or _holds(options.starting, LATEST_OFFSET):
        raise InvalidOption(
            "option `startingOffsets` is the latest offset, but this is a batch read", hint="it must be before the end"
        )
    if _holds(options.ending, EARLIEST_OFFSET):
        raise InvalidOption(
            "option `endingOffsets` holds -2, the earliest offset", hint="it must be an offset, or -1 for the latest"
        )


def _holds(position: Position, offset: int) -> bool:
    return isinstance(position, AtOffsets) and any(offset in entries.values() for entries in position.offsets.values())
