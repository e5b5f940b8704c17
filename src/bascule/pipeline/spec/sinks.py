"""Where rows go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from bascule.config.values.key import setting
from bascule.config.values.kinds import Boolean, Integer, Size, Text
from bascule.pipeline.spec.document import KeyGroup
from bascule.pipeline.spec.kinds import Expressions, Folder, LakePath, TextMap
from bascule.spark.options.declaration import StreamName

ARCHIVE_FILE_BYTES_DEFAULT: Final = 128 << 20
CONSOLE_ROWS_MAX: Final = 10_000
PARTITIONS_MAX: Final = 10_000

OTHERWISE: Final = "otherwise"

_WHEN: Final = (
    "An SQL condition over what the steps leave: the sink gets the rows for which it is true. `otherwise` is for the rows that no "
    "other sink's `when` takes."
)
_STORAGE: Final = (
    "Options of the object store, beside those of the environment, such as `AWS_REGION`. Write `${NAME}` for secrets."
)
_CREATE: Final = "Whether to create the stream if it is not there. Without it, that is an error."


@dataclass(frozen=True, slots=True)
class ArchiveSink(KeyGroup):
    """`archive`: all messages as they were read, whatever the steps do, as Parquet that can be proved"""

    short: ClassVar = "path"
    required: ClassVar = frozenset({"path"})

    path: str = setting(
        "path",
        LakePath(),
        "",
        default_text="–",
        meaning="The archive: a folder, or a path such as `s3://bucket/orders`.",
    )
    storage: Mapping[str, str] | None = setting("storage_options", TextMap(), None, meaning=_STORAGE, is_secret=True)
    file_bytes: int = setting(
        "file_size", Size(minimum=1), ARCHIVE_FILE_BYTES_DEFAULT, meaning="The size at which a file is finished."
    )

    @property
    def target(self) -> str:
        return f"archive {self.path}"


@dataclass(frozen=True, slots=True)
class LatestSink(KeyGroup):
    """`latest`: the newest row of each key; a message without a value deletes it"""

    short: ClassVar = "path"
    required: ClassVar = frozenset({"path"})

    path: str = setting(
        "path",
        Folder(),
        "",
        default_text="–",
        meaning="The folder of the table.",
        consequence="It has the columns that the steps leave, and those that say which message a row is.",
    )
    key: str = setting("key", Text(), "key", meaning="A column, or an SQL expression: what there is one row of.")
    deleted: str | None = setting(
        "deleted",
        Text(),
        None,
        default_text="`value IS NULL`",
        meaning="An SQL condition: rows for which it is true delete their key.",
    )
    when: str | None = setting("when", Text(), None, default_text="all rows", meaning=_WHEN)

    @property
    def target(self) -> str:
        return f"latest {self.path}"


@dataclass(frozen=True, slots=True)
class StreamSink(KeyGroup):
    """`stream`: published, each row exactly once"""

    short: ClassVar = "stream"
    required: ClassVar = frozenset({"stream"})

    stream: str = setting(
        "stream",
        StreamName(),
        "",
        default_text="–",
        meaning="The stream.",
        consequence="A `value` of bytes or text is published as it is. A struct, or rows without a column `value`, become JSON. "
        "`key`, `headers` and `timestamp` are kept if they are there; a key that is no bytes becomes text.",
    )
    create: bool = setting("create", Boolean(), False, meaning=_CREATE)
    partitions: int = setting(
        "partitions", Integer(minimum=1, maximum=PARTITIONS_MAX), 1, meaning="Partitions of a stream that is created."
    )
    replication_factor: int | None = setting(
        "replication_factor",
        Integer(minimum=-1, maximum=PARTITIONS_MAX, hole=0),
        None,
        default_text="the server's",
        meaning="Replicas of a stream that is created; -1 for one on every broker.",
    )
    compact: bool = setting(
        "compact",
        Boolean(),
        False,
        meaning="The stream keeps the newest message of each key: it is created with compaction, and one that exists must have it.",
        consequence="Rows need a `key`. One whose key is null becomes a dead letter, or ends the pipeline if there is no `dlq`.",
    )
    when: str | None = setting("when", Text(), None, default_text="all rows", meaning=_WHEN)

    @property
    def target(self) -> str:
        return f"stream {self.stream}"


@dataclass(frozen=True, slots=True)
class TableSink(KeyGroup):
    """`table`: Parquet with the columns that the steps leave"""

    short: ClassVar = "path"
    required: ClassVar = frozenset({"path"})

    path: str = setting(
        "path",
        Folder(),
        "",
        default_text="–",
        meaning="The folder of the table. A batch is a folder `batch=…` in it that appears whole or not at all.",
    )
    partition_by: tuple[str, ...] = setting(
        "partition_by",
        Expressions(),
        (),
        default_text="–",
        meaning="Columns whose values become folders within a batch.",
    )
    when: str | None = setting("when", Text(), None, default_text="all rows", meaning=_WHEN)

    @property
    def target(self) -> str:
        return f"table {self.path}"


@dataclass(frozen=True, slots=True)
class ConsoleSink(KeyGroup):
    """`console`: rows on the screen, to look at"""

    rows_max: int = setting(
        "rows", Integer(minimum=1, maximum=CONSOLE_ROWS_MAX), 20, meaning="Rows of a batch that are shown at most."
    )
    when: str | None = setting("when", Text(), None, default_text="all rows", meaning=_WHEN)

    @property
    def target(self) -> str:
        return "console"


RoutedSink = LatestSink | StreamSink | TableSink | ConsoleSink
"""Sinks of what the steps leave."""

Sink = ArchiveSink | LatestSink | StreamSink | TableSink | ConsoleSink

SINKS: Final[Mapping[str, type[KeyGroup]]] = {
    "archive": ArchiveSink,
    "latest": LatestSink,
    "stream": StreamSink,
    "table": TableSink,
    "console": ConsoleSink,
}


@dataclass(frozen=True, slots=True)
class DeadLetters(KeyGroup):
    """Dead letters"""

    stream: str | None = setting(
        "stream",
        StreamName(),
        None,
        meaning="The stream that gets them: key and value as they came, and headers that say which pipeline, rule, reason, stream, "
        "partition and offset.",
    )
    create: bool = setting("create", Boolean(), True, meaning="Create the stream if it does not exist.")
    path: str | None = setting(
        "path", Folder(), None, meaning="Alternatively a folder of Parquet files with these columns."
    )


@dataclass(frozen=True, slots=True)
class BrokerConnection(KeyGroup):
    """Connection to the brokers"""

    tls: bool = setting("tls", Boolean(), False, meaning="Connect to brokers with TLS.")
    tls_ca: str | None = setting(
        "tls_ca", Text(), None, meaning="PEM file of certificate authorities to trust instead of the system's."
    )
    tls_cert: str | None = setting(
        "tls_cert", Text(), None, meaning="PEM file of the client certificate, for brokers that require one."
    )
    tls_key: str | None = setting("tls_key", Text(), None, meaning="PEM file of the private key of `tls_cert`.")
    token: str | None = setting(
        "token",
        Text(),
        None,
        meaning="Sent to brokers with every call. Write `${TOKEN}` and set the variable.",
        is_secret=True,
    )

    def options(self) -> dict[str, str]:
        """For the source and the sink."""
        given = {"tlsCa": self.tls_ca, "tlsCert": self.tls_cert, "tlsKey": self.tls_key, "token": self.token}
        found = {name: value for name, value in given.items() if value is not None}
        return {**found, "tls": "true"} if self.tls or self.tls_ca or self.tls_cert else found
