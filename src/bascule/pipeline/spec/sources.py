"""Where rows come from: streams, what their values hold, and when the events happened that they tell of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

from bascule.config.values.duration import MILLISECOND_NS
from bascule.config.values.key import setting
from bascule.config.values.kinds import Choice, Duration, Text
from bascule.pipeline.spec.document import KeyGroup
from bascule.pipeline.spec.kinds import LakePath, StreamNames, TextMap
from bascule.spark.options.declaration import Pattern, StreamName
from bascule.spark.options.reading import SubjectPattern
from bascule.spark.options.value_options import SchemaIds, ValueFormat, ValueFraming


class ValueMode(StrEnum):
    FAILFAST = "failfast"
    PERMISSIVE = "permissive"
    DEAD_LETTER = "dead-letter"


class Missing(StrEnum):
    """What becomes of a row without an event time."""

    DROP = "drop"
    DEAD_LETTER = "dead-letter"
    FAIL = "fail"
    MESSAGE = "message"


@dataclass(frozen=True, slots=True)
class ValueSpec(KeyGroup):
    """What values hold"""

    format: ValueFormat | None = setting(
        "format", Choice(ValueFormat), None, meaning="The column `value` is a struct then. Without it, it is bytes."
    )
    schema: str | None = setting(
        "schema",
        Text(),
        None,
        meaning="For `json` columns as in SQL: `id BIGINT, tags ARRAY<STRING>`; for `avro` a record's schema in JSON; for `protobuf` "
        "the path of a descriptor set.",
    )
    message: str | None = setting(
        "message", Text(), None, meaning="For `protobuf` the full name of the message: `shop.Order`."
    )
    framing: ValueFraming = setting(
        "framing",
        Choice(ValueFraming),
        ValueFraming.NONE,
        meaning="`confluent` for `avro` and `json` values with the frame of a schema registry: a byte 0 and the bytes of a schema id.",
    )
    schema_ids: tuple[int, ...] | None = setting(
        "schema_ids",
        SchemaIds(),
        None,
        meaning="The ids under which the registry has `schema`; a value with another one is malformed. Required for framed `avro`.",
    )
    mode: ValueMode | None = setting(
        "mode",
        Choice(ValueMode),
        None,
        default_text="`dead-letter` if there is a `dlq`, else `failfast`",
        meaning="What becomes of a message whose value is something else: `failfast` ends the pipeline and names it, `permissive` has "
        "`value` null and the bytes in the column `malformedValue`, `dead-letter` hands it to `dlq`.",
    )


@dataclass(frozen=True, slots=True)
class EventTime(KeyGroup):
    """When the event of a row happened: the column `event_time`"""

    short: ClassVar = "from"

    expression: str = setting(
        "from",
        Text(),
        "timestamp",
        meaning="A column or an SQL expression: `value.at`. A timestamp, or text in the format of ISO 8601.",
        consequence="`timestamp` is the time at which the broker stored the message.",
    )
    watermark_ns: int | None = setting(
        "watermark",
        Duration(minimum_ns=MILLISECOND_NS),
        None,
        meaning="How much older than the newest row a row may be: `window` and joins of streams wait that long, and need it.",
        consequence="Rows that are even later are not in any window or join; they are counted.",
    )
    missing: Missing | None = setting(
        "missing",
        Choice(Missing),
        None,
        default_text="`dead-letter` if there is a `dlq`, else `fail`",
        meaning="What becomes of a row without an event time: `drop` and `dead-letter` count it as rule `event-time`, `fail` ends the "
        "pipeline, `message` gives it the time of its message.",
    )


@dataclass(frozen=True, slots=True)
class SourceSpec(KeyGroup):
    """Where rows come from"""

    stream: str | None = setting("stream", StreamName(), None, meaning="One stream.")
    streams: tuple[str, ...] | None = setting("streams", StreamNames(), None, meaning="Several.")
    pattern: str | None = setting(
        "pattern", Pattern(), None, meaning="A regular expression that the whole name of a stream has to match."
    )
    subject: str | None = setting(
        "subject", SubjectPattern(), None, meaning="A NATS subject with wildcards: all streams whose subject it covers."
    )
    starting: str = setting(
        "starting",
        Text(),
        "earliest",
        meaning="Where a pipeline without a checkpoint begins: whatever option `startingOffsets` of the source takes.",
    )
    history: str | None = setting(
        "history", LakePath(), None, meaning="An archive of the stream: what the log has no longer is read from there."
    )
    storage: Mapping[str, str] | None = setting(
        "storage_options",
        TextMap(),
        None,
        meaning="Options of the object store of `history`, beside those of the environment.",
        is_secret=True,
    )
    on_data_loss: str | None = setting(
        "on_data_loss", Text(), None, default_text="`fail`", meaning="What option `onDataLoss` of the source takes."
    )
    value: ValueSpec = field(default_factory=ValueSpec)
    time: EventTime | None = field(default=None, metadata={"part": EventTime})
    more: Mapping[str, str] | None = setting(
        "options",
        TextMap(),
        None,
        meaning="More options of the source, such as `maxBytesPerTrigger: 64MiB`. They are in [Spark options](spark-options.md).",
    )

    @property
    def options(self) -> Mapping[str, str]:
        return self.more or {}

    @property
    def names(self) -> tuple[str, ...]:
        """The streams that are named; none if a pattern selects them."""
        return (self.stream,) if self.stream is not None else self.streams or ()

    @property
    def watermark_ns(self) -> int | None:
        return None if self.time is None else self.time.watermark_ns

    def read_options(self) -> dict[str, str]:
        """Options of the source that say what is read, without the connection."""
        said = {
            "subscribe": ",".join(self.names) or None,
            "subscribePattern": self.pattern,
            "subjectPattern": self.subject,
            "startingOffsets": None if _says_start(self.options) else self.starting,
            "history": self.history,
            "storageOptions": None if self.storage is None else json.dumps(dict(self.storage)),
            "onDataLoss": self.on_data_loss,
        }
        return {**{name: value for name, value in said.items() if value is not None}, **self.options}

    def value_options(self) -> dict[str, str]:
        value = self.value
        given = {
            "valueFormat": value.format,
            "valueSchema": value.schema,
            "valueMessage": value.message,
            "valueFraming": None if value.framing is ValueFraming.NONE else value.framing,
            "valueSchemaIds": ",".join(map(str, value.schema_ids)) if value.schema_ids else None,
        }
        return {name: str(text) for name, text in given.items() if text is not None}


def _says_start(options: Mapping[str, str]) -> bool:
    names = {"startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp"}
    return any(name.lower() in names for name in options)
