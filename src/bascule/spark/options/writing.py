"""The options of a write. The reference page is generated from these declarations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from bascule.client.connection.options import INT32_MAX, subject_name
from bascule.config.sections.streams import Compression, Sync
from bascule.config.values.duration import MILLISECOND_NS, SECOND_NS
from bascule.config.values.key import setting
from bascule.config.values.kinds import INT64_MAX, Boolean, Choice, Duration, Integer, Kind, Unfit
from bascule.errors import InvalidOption
from bascule.spark.options.declaration import BATCH, STREAMING, Section, StreamName, Words, read_options
from bascule.spark.options.reading import ConnectionOptions

WINDOW_MAX: Final = 1 << 20


class Partitioner(StrEnum):
    AUTO = "auto"
    KEY = "key"
    ROUND_ROBIN = "round-robin"
    EXPLICIT = "explicit"


class AckPolicy(StrEnum):
    LEADER = "leader"
    ALL = "all"
    NONE = "none"


class OnMissingStream(StrEnum):
    FAIL = "fail"
    CREATE = "create"


class SinkDelivery(StrEnum):
    AT_LEAST_ONCE = "at-least-once"
    EXACTLY_ONCE = "exactly-once"


class Subject(Kind[str]):
    """A NATS subject without wildcards."""

    name = "subject"

    def parse(self, text: str) -> str:
        try:
            found = subject_name(text)
        except InvalidOption:
            raise Unfit("a subject such as `orders.eu`") from None
        if {"*", ">"} & set(found.split(".")):
            raise Unfit("a subject without wildcards, such as `orders.eu`")
        return found


class ProducerId(Kind[str]):
    """A name for a write."""

    name = "text of at most 40 bytes"

    def parse(self, text: str) -> str:
        if not 1 <= len(text.encode()) <= PRODUCER_ID_BYTES_MAX or not text.isprintable():
            raise Unfit(f"a text of 1 to {PRODUCER_ID_BYTES_MAX} bytes")
        return text


PRODUCER_ID_BYTES_MAX: Final = 40
"""Of the 64 bytes of a producer's id, the number of the Spark partition and a hash of the subject take the rest."""


@dataclass(frozen=True, slots=True)
class TargetOptions(Section):
    """Target"""

    stream: str | None = setting(
        "stream",
        StreamName(),
        None,
        meaning='The stream that all rows go to; `save("orders")` and `start("orders")` are the same.',
        consequence="The columns `stream` and `subject` are ignored then.",
    )
    path: str | None = setting("path", StreamName(), None, meaning='What `save("orders")` sets: one stream.')
    subject: str | None = setting(
        "subject",
        Subject(),
        None,
        meaning="The NATS subject that all rows are published to; every stream with a matching subject stores them.",
        consequence="Each row is a call of its own: slower than naming the stream.",
    )
    partitioner: Partitioner = setting(
        "partitioner",
        Choice(Partitioner),
        Partitioner.AUTO,
        meaning="`key`: CRC-32 of the key modulo the number of partitions, as in all clients of Liftbridge; `round-robin`: the "
        "partitions in turn; `explicit`: the column `partition`, which must be there. `auto` uses the column if it is there "
        "and not null, else the key if there is one, else round robin.",
    )
    partition: int | None = setting(
        "partition", Integer(minimum=0, maximum=INT32_MAX), None, meaning="The partition that all rows go to."
    )
    on_missing_stream: OnMissingStream = setting(
        "onMissingStream",
        Choice(OnMissingStream),
        OnMissingStream.FAIL,
        meaning="For a stream that does not exist: `fail`, or `create` it with its name as its subject.",
    )
    create_partitions: int = setting(
        "createPartitions", Integer(minimum=1, maximum=INT32_MAX), 1, meaning="Partitions of a stream that is created."
    )
    create_replication_factor: int | None = setting(
        "createReplicationFactor",
        Integer(minimum=-1, maximum=INT32_MAX),
        None,
        default_text="the server's",
        meaning="Replicas of a stream that is created; -1 for one on every broker.",
    )
    create_sync: Sync | None = setting(
        "createSync",
        Choice(Sync),
        None,
        default_text="the server's",
        meaning="What waits for the disk in a stream that is created: `ack`, `interval` or `always`.",
    )
    create_sync_interval_ns: int | None = setting(
        "createSyncInterval",
        Duration(minimum_ns=MILLISECOND_NS),
        None,
        default_text="the server's",
        meaning="How soon messages of a stream that is created reach the disk when nothing waits for it.",
    )
    create_compression: Compression | None = setting(
        "createCompression",
        Choice(Compression),
        None,
        default_text="the server's",
        meaning="How a stream that is created is compressed: `none` or `zstd`.",
    )
    create_compact: bool = setting(
        "createCompact",
        Boolean(),
        False,
        meaning="Whether a stream that is created keeps the newest message of each key only.",
    )
    create_compact_min_lag_ns: int | None = setting(
        "createCompactMinLag",
        Duration(),
        None,
        default_text="the server's",
        meaning="How long compaction of a stream that is created leaves a message after a newer one with its key.",
    )
    create_tombstone_retention_ns: int | None = setting(
        "createTombstoneRetention",
        Duration(),
        None,
        default_text="the server's",
        meaning="How long compaction of a stream that is created leaves a message without a value.",
    )

    @property
    def create_settings(self) -> dict[str, Any]:
        """Arguments of `create_stream` for a stream that does not exist; None leaves one to the server."""
        durations = {
            "sync_interval": self.create_sync_interval_ns,
            "compact_min_lag": self.create_compact_min_lag_ns,
            "tombstone_retention": self.create_tombstone_retention_ns,
        }
        return {
            "partitions": self.create_partitions,
            "replication_factor": self.create_replication_factor,
            "sync": self.create_sync,
            "compression": self.create_compression,
            "compact": self.create_compact or None,
            **{name: None if value is None else value / SECOND_NS for name, value in durations.items()},
        }


@dataclass(frozen=True, slots=True)
class DeliveryOptions(Section):
    """Delivery guarantees"""

    delivery: SinkDelivery = setting(
        "delivery",
        Choice(SinkDelivery),
        SinkDelivery.AT_LEAST_ONCE,
        meaning="`at-least-once`: a batch or a task that runs again publishes its rows again. `exactly-once`: every row keeps its "
        "sequence number when it is published again, and brokers drop rows that they already have.",
        consequence="`exactly-once` needs the same rows in the same order when a batch is replayed: see `orderBy`.",
    )
    producer_id: str | None = setting(
        "producerId",
        ProducerId(),
        None,
        meaning="Names a batch write for `exactly-once`: a second write with the same name and `producerEpoch` "
        "publishes only the rows that "
        "the first did not. Streaming queries have names already.",
    )
    producer_epoch: int | None = setting(
        "producerEpoch",
        Integer(minimum=0, maximum=INT64_MAX),
        None,
        default_text="the batch id within `foreachBatch`, else 0",
        meaning="The number of the write with this name. Brokers refuse a number below the highest that they have seen.",
    )
    order_by: tuple[str, ...] | None = setting(
        "orderBy",
        Words(),
        None,
        meaning="Columns by which a task sorts its rows before it numbers them; `*` for all columns.",
        consequence="A task keeps all its rows in memory. The order of rows after a shuffle may differ when a batch is "
        "replayed: without "
        "`orderBy`, `exactly-once` then fails.",
    )
    ack_policy: AckPolicy = setting(
        "ackPolicy",
        Choice(AckPolicy),
        AckPolicy.ALL,
        meaning="A row counts as written when all in-sync replicas have stored it (`all`), when the leader has "
        "(`leader`), or when it was sent "
        "(`none`).",
    )
    in_flight_max: int = setting(
        "maxInFlight",
        Integer(minimum=1, maximum=WINDOW_MAX),
        8192,
        meaning="Maximum unacknowledged messages of a task to one broker.",
    )
    timeout_ns: int = setting(
        "publishTimeout",
        Duration(minimum_ns=1),
        120 * SECOND_NS,
        meaning="How long a task retries the rows of one Arrow batch, while brokers restart or elect a leader, before it fails.",
    )


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """All of a write's options. Pickled with the writer: plain values only."""

    connection: ConnectionOptions = field(default_factory=ConnectionOptions)
    target: TargetOptions = field(default_factory=TargetOptions)
    sureness: DeliveryOptions = field(default_factory=DeliveryOptions)
    mode: str = BATCH

    @property
    def stream(self) -> str | None:
        return self.target.stream or self.target.path

    @property
    def is_exactly_once(self) -> bool:
        return self.sureness.delivery is SinkDelivery.EXACTLY_ONCE

    @property
    def timeout_seconds(self) -> float:
        return self.sureness.timeout_ns / SECOND_NS


FOREIGN: Final[Mapping[str, str]] = {
    "kafka.bootstrap.servers": "write `servers`",
    "topic": "write `stream`",
    "includeheaders": "leave it out: a column `headers` is always written",
    "acks": "write `ackPolicy`",
    "kafka.acks": "write `ackPolicy`",
    "idempotent": "write `delivery=exactly-once`",
}
"""Options of Kafka's connector, and others that people try, by their names in lower case."""

OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})
"""Options of Spark itself, which it hands over with ours."""


def sink_options(given: Mapping[str, str], mode: str) -> SinkOptions:
    """The checked options of a write. `mode` is BATCH or STREAMING."""
    ours = {name: value for name, value in given.items() if name.lower() not in OF_SPARK}
    options = replace(read_options(SinkOptions, ours, mode, FOREIGN), mode=mode)
    _check_target(options.target, options.stream)
    _check_delivery(options)
    if (options.connection.tls_cert is None) != (options.connection.tls_key is None):
        raise InvalidOption(
            "one of options `tlsCert` and `tlsKey` is missing", hint="they belong together: give both or none"
        )
    return options


def _check_target(target: TargetOptions, stream: str | None) -> None:
    if target.stream is not None and target.path is not None and target.stream != target.path:
        raise InvalidOption(
            f"option `stream` is `{target.stream}`, and the path is `{target.path}`", hint="name the stream once"
        )
    if stream is not None and target.subject is not None:
        raise InvalidOption("options `stream` and `subject` both say where rows go", hint="keep one of them")
    if target.subject is not None and target.partition is not None:
        raise InvalidOption(
            "option `partition` goes with a stream, but `subject` is given", hint="NATS decides by the subject alone"
        )
    if target.partition is not None and target.partitioner is not Partitioner.AUTO:
        raise InvalidOption(
            f"options `partition` and `partitioner={target.partitioner}` both choose the partition",
            hint="keep one of them",
        )
    if target.create_replication_factor == 0:
        raise InvalidOption("option `createReplicationFactor` is `0`", hint="it must be -1, or 1 and more")


def _check_delivery(options: SinkOptions) -> None:
    sureness = options.sureness
    if not options.is_exactly_once:
        for name, value in (("producerId", sureness.producer_id), ("producerEpoch", sureness.producer_epoch)):
            if value is not None:
                raise InvalidOption(
                    f"option `{name}` is `{value}`, but rows are delivered at least once",
                    hint="leave it out, or set `delivery=exactly-once`",
                )
        return
    if sureness.ack_policy is AckPolicy.NONE:
        raise InvalidOption(
            "option `ackPolicy` is `none`, but `delivery` is `exactly-once`", hint="it must be `all` or `leader`"
        )
    if options.mode == BATCH and sureness.producer_id is None:
        raise InvalidOption(
            "a batch write that is delivered exactly once needs a name that it keeps when it runs again",
            hint="set `producerId`",
        )
    if options.mode == STREAMING:
        for name, value in (("producerId", sureness.producer_id), ("producerEpoch", sureness.producer_epoch)):
            if value is not None:
                raise InvalidOption(
                    f"option `{name}` is `{value}`, but this is a streaming query",
                    hint="leave it out: the query's id and the batch number are used",
                )
