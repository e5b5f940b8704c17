"""What can be said of a read. The reference page is made from these declarations; sections that the sink shares say so.

Names and defaults are those of Kafka's Spark connector wherever the meaning is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Final

from bascule import limits
from bascule.client.connection.options import addresses
from bascule.config.values.duration import MINUTE_NS
from bascule.config.values.key import setting
from bascule.config.values.kinds import INT64_MAX, Boolean, Choice, Duration, Integer, Kind, Size, Text, Unfit
from bascule.errors import BasculeError, InvalidOption
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


class OnDataLoss(StrEnum):
    FAIL = "fail"
    SKIP = "skip"
    ARCHIVE = "archive"


class TimestampStrategy(StrEnum):
    ERROR = "error"
    LATEST = "latest"


class ValueFormat(StrEnum):
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class SourceValueMode(StrEnum):
    PERMISSIVE = "permissive"
    FAILFAST = "failfast"


class Servers(Kind[str]):
    """Addresses of brokers with commas in between."""

    name = "list of host:port"

    def parse(self, text: str) -> str:
        try:
            addresses(text)
        except BasculeError:
            raise Unfit("addresses such as `127.0.0.1:9292`, with commas in between") from None
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
    """A folder of the file system, as an absolute path: driver and executors work in different ones."""

    name = "folder"

    def parse(self, text: str) -> str:
        path = text.removeprefix("file://")
        if not path or "://" in path:
            raise Unfit("a folder that the driver and all executors reach, such as `/lake/orders`")
        return str(Path(path).absolute())


@dataclass(frozen=True, slots=True)
class ConnectionOptions(Section):
    """How the brokers are reached"""

    servers: str = setting(
        "servers",
        Servers(),
        "127.0.0.1:9292",
        meaning="Addresses of brokers, with commas in between; the others of the cluster are found by themselves.",
        consequence="Executors have to reach them too, and the Arrow Flight port of every broker.",
    )
    tls: bool = setting(
        "tls",
        Boolean(),
        False,
        meaning="Whether brokers are spoken to through TLS; the system's authorities are trusted.",
    )
    tls_ca: str | None = setting(
        "tlsCa", Text(), None, meaning="File in PEM: whom to trust instead of the system's authorities. Implies `tls`."
    )
    tls_cert: str | None = setting(
        "tlsCert",
        Text(),
        None,
        meaning="File in PEM: who we are, for brokers that ask. It has to be there on every executor.",
    )
    tls_key: str | None = setting("tlsKey", Text(), None, meaning="File in PEM: the key of `tlsCert`.")
    token: str | None = setting(
        "token", Text(), None, meaning="Sent with every call as `authorization: Bearer …`.", is_secret=True
    )

    @property
    def is_tls(self) -> bool:
        return self.tls or self.tls_ca is not None or self.tls_cert is not None


@dataclass(frozen=True, slots=True)
class StreamOptions(Section):
    """Which streams"""

    stream: str | None = setting(
        "stream", Text(), None, meaning='One stream, all its partitions. `load("orders")` says the same.'
    )
    path: str | None = setting("path", Text(), None, meaning='What `load("orders")` sets: one stream.')
    subscribe: tuple[str, ...] | None = setting("subscribe", Words(), None, meaning="Streams, with commas in between.")
    subscribe_pattern: str | None = setting(
        "subscribePattern",
        Pattern(),
        None,
        meaning="A regular expression that the whole name of a stream has to match.",
        consequence="Streams that are created while a query runs are read from their beginning.",
    )
    subject_pattern: str | None = setting(
        "subjectPattern",
        SubjectPattern(),
        None,
        meaning="A NATS subject with wildcards, such as `orders.*.created`: all streams whose subject it covers.",
        consequence="Streams that are created while a query runs are read from their beginning.",
    )
    assign: Mapping[str, tuple[int, ...]] | None = setting(
        "assign", AssignKind(), None, meaning='Single partitions, in JSON: `{"orders": [0, 1], "returns": [0]}`.'
    )


@dataclass(frozen=True, slots=True)
class StartingOptions(Section):
    """Where from"""

    starting_offsets: Position | None = setting(
        "startingOffsets",
        OffsetsKind({"earliest": Earliest(), "latest": Latest()}, has_cursor=True),
        None,
        default_text="`earliest` in batch, `latest` in streaming",
        meaning="`earliest`, `latest` (streaming only), `cursor:<id>` for what follows the records a cursor names, or JSON with an "
        'offset for every partition: `{"orders": {"0": 23, "1": -2}}`, -2 being the earliest and -1 the latest.',
        consequence="A query that has a checkpoint goes on from there, whatever stands here.",
    )
    starting_timestamp: Position | None = setting(
        "startingTimestamp",
        TimestampKind(),
        None,
        meaning="The first records that are not older: milliseconds since 1970, or ISO-8601 (UTC unless it names a zone).",
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
        meaning="What to do with a partition that has no record so young: `error`, or begin behind its newest with `latest`.",
    )


@dataclass(frozen=True, slots=True)
class EndOptions(Section):
    """Where to"""

    reads: ClassVar[frozenset[str]] = frozenset({BATCH})

    ending_offsets: Position | None = setting(
        "endingOffsets",
        OffsetsKind({"latest": Latest()}),
        None,
        default_text="`latest`",
        meaning="`latest`, or JSON with the offset that each partition is read up to, itself not included; -1 is the latest.",
    )
    ending_timestamp: Position | None = setting(
        "endingTimestamp",
        TimestampKind(),
        None,
        meaning="Up to the first records that are not older, themselves not included.",
    )
    ending_offsets_by_timestamp: Position | None = setting(
        "endingOffsetsByTimestamp", TimestampsKind(), None, meaning="The same with a time for every partition."
    )


@dataclass(frozen=True, slots=True)
class AmountOptions(Section):
    """How much a trigger reads"""

    reads: ClassVar[frozenset[str]] = frozenset({STREAMING})

    offsets_max: int | None = setting(
        "maxOffsetsPerTrigger",
        Integer(minimum=1, maximum=INT64_MAX),
        None,
        meaning="Offsets of all partitions together; every partition with a backlog advances by one at least.",
    )
    bytes_max: int = setting(
        "maxBytesPerTrigger",
        Unlimited(),
        limits.SPARK_TRIGGER_BYTES_DEFAULT,
        meaning="Bytes of all partitions together, estimated from their average on disk; `unlimited` lifts it.",
        consequence="The first batch of a query that begins at the earliest offset is not the whole stream.",
    )
    offsets_min: int | None = setting(
        "minOffsetsPerTrigger",
        Integer(minimum=1, maximum=INT64_MAX),
        None,
        meaning="Wait until so many offsets are there, but not longer than `maxTriggerDelay`.",
        consequence="Has no effect with AvailableNow, which reads what is there.",
    )
    delay_max_ns: int = setting(
        "maxTriggerDelay",
        Duration(minimum_ns=1),
        15 * MINUTE_NS,
        meaning="How long `minOffsetsPerTrigger` may hold up a batch.",
    )


@dataclass(frozen=True, slots=True)
class ParallelismOptions(Section):
    """How many tasks"""

    partitions_min: int | None = setting(
        "minPartitions",
        Integer(minimum=1, maximum=limits.SPARK_TASKS_MAX),
        None,
        meaning="At least so many tasks, by cutting the largest ranges. Without it a task reads a partition.",
    )
    records_max: int | None = setting(
        "maxRecordsPerPartition",
        Integer(minimum=1, maximum=INT64_MAX),
        None,
        meaning="Offsets that one task reads at most.",
    )
    bytes_max: int | None = setting(
        "maxBytesPerPartition",
        Size(minimum=1),
        None,
        meaning="Bytes that one task reads at most, estimated from the average on disk.",
    )


@dataclass(frozen=True, slots=True)
class HistoryOptions(Section):
    """Archive and log as one stream"""

    path: str | None = setting(
        "history",
        ArchiveFolder(),
        None,
        meaning="The folder of an archive that `bascule pipeline archive` writes. Up to its last offset the streams are read from it, "
        "from the next one on from their logs: `earliest`, offsets and timestamps reach back to the archive's beginning.",
        consequence="Driver and executors read the folder, so all of them must have it under this path. Streams that the archive does "
        "not have are read from their logs alone.",
    )


@dataclass(frozen=True, slots=True)
class LossOptions(Section):
    """When records are gone"""

    on_data_loss: OnDataLoss | None = setting(
        "onDataLoss",
        Choice(OnDataLoss),
        None,
        default_text="`fail`",
        meaning="What to do when records that had still to be read were removed, or a stream was deleted or created again: `fail` "
        "names them, `skip` goes on with what is there, `archive` reads from the archive that `history` names what the log does not "
        "have any more, even if it was removed under a task that reads it, and fails if the archive does not have it either; a deleted "
        "stream then ends where its archive ends. Gaps that compaction leaves are no loss.",
    )
    fail_on_data_loss: bool | None = setting(
        "failOnDataLoss",
        Boolean(),
        None,
        default_text="`true`",
        meaning="Kafka's way to say it: `false` is `onDataLoss=skip`.",
    )


@dataclass(frozen=True, slots=True)
class ProgressOptions(Section):
    """Progress"""

    reads: ClassVar[frozenset[str]] = frozenset({STREAMING})

    cursor: str | None = setting(
        "cursor",
        Text(),
        None,
        meaning="Keep the query's progress in the brokers too, as a cursor of this name, for tools to see and others to start from.",
        consequence="It is a batch behind, and the last batch of a query may never reach it: what counts is the checkpoint.",
    )


@dataclass(frozen=True, slots=True)
class ValueOptions(Section):
    """Typed values"""

    format: ValueFormat | None = setting(
        "valueFormat",
        Choice(ValueFormat),
        None,
        meaning="What values hold: the column `value` is a struct then.",
        consequence="Values are decoded in Python. Spark's own `from_json` is faster where it is enough.",
    )
    schema: str | None = setting(
        "valueSchema",
        Text(),
        None,
        meaning="For `json` columns as in SQL: `id BIGINT, tags ARRAY<STRING>`. For `avro` a record's schema in JSON. For `protobuf` "
        "the path of a descriptor set, as `protoc --include_imports --descriptor_set_out` writes it; the driver reads it.",
    )
    message: str | None = setting(
        "valueMessage", Text(), None, meaning="For `protobuf` the full name of the message: `shop.Order`."
    )
    mode: SourceValueMode = setting(
        "valueMode",
        Choice(SourceValueMode),
        SourceValueMode.PERMISSIVE,
        meaning="`permissive`: a value that cannot be decoded is null, and stands as it came in the column `malformedValue`, for dead "
        "letters. `failfast`: it ends the query and is named.",
    )


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """All of a read's options. Pickled with the reader: plain values only."""

    connection: ConnectionOptions = field(default_factory=ConnectionOptions)
    streams: StreamOptions = field(default_factory=StreamOptions)
    start: StartingOptions = field(default_factory=StartingOptions)
    end: EndOptions = field(default_factory=EndOptions)
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
        """Whether what the log has no more is taken from the archive."""
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
    """What Spark hands over, checked. `mode` is BATCH or STREAMING."""
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
    """What is said of values, of which the columns depend. Spark asks for them before it tells whether it will read or write."""
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
        if not given:  # which `load()` seldom is, and a table in SQL always: Spark keeps what was said of it to itself
            hint += (
                "; options of `CREATE TABLE` get lost in Spark, those of `CREATE TEMPORARY VIEW … USING bascule` do not"
            )
        raise InvalidOption(f"no option says {what}", hint=hint)


def _check(options: SourceOptions) -> None:
    """What a single option cannot know."""
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


def _check_batch_bounds(options: SourceOptions) -> None:
    """A batch that begins at the latest offset, or ends at the earliest, is empty: nobody means that."""
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
