"""The options of typed values: their format, schema and framing. `reading.py` checks that they fit each other."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from bascule.config.values.key import setting
from bascule.config.values.kinds import Choice, Kind, Text, Unfit, split_list
from bascule.spark.options.declaration import Section


class ValueFormat(StrEnum):
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class ValueFraming(StrEnum):
    NONE = "none"
    CONFLUENT = "confluent"


class SourceValueMode(StrEnum):
    PERMISSIVE = "permissive"
    FAILFAST = "failfast"


class SchemaIds(Kind[tuple[int, ...]]):
    """Numbers of a schema registry, separated by commas."""

    name = "list of schema ids"

    def parse(self, text: str) -> tuple[int, ...]:
        words = split_list(text)
        if not words or not all(word.isascii() and word.isdigit() and int(word) < 1 << 32 for word in words):
            raise Unfit("ids of the schema registry, such as `17` or `17,21`")
        return tuple(dict.fromkeys(int(word) for word in words))

    def show(self, value: tuple[int, ...]) -> str:
        return ",".join(map(str, value))


@dataclass(frozen=True, slots=True)
class ValueOptions(Section):
    """Typed values"""

    format: ValueFormat | None = setting(
        "valueFormat",
        Choice(ValueFormat),
        None,
        meaning="The encoding of values: the column `value` becomes a struct.",
        consequence="Values are decoded in Python. Spark's own `from_json` is faster where it is enough.",
    )
    schema: str | None = setting(
        "valueSchema",
        Text(),
        None,
        meaning="For `json`, columns as in SQL: `id BIGINT, tags ARRAY<STRING>`. For `avro`, a record's schema in "
        "JSON. For `protobuf`, "
        "the path of a descriptor set, as `protoc --include_imports --descriptor_set_out` writes it; the driver reads it.",
    )
    message: str | None = setting(
        "valueMessage", Text(), None, meaning="For `protobuf`, the full name of the message: `shop.Order`."
    )
    framing: ValueFraming = setting(
        "valueFraming",
        Choice(ValueFraming),
        ValueFraming.NONE,
        meaning="The bytes before `avro` and `json` values: `confluent` is a byte 0 and the four bytes of a schema id, as "
        "producers with a schema registry write it. The column `valueSchemaId` has the id.",
        consequence="The registry is not asked: `valueSchema` is the schema that wrote the values.",
    )
    schema_ids: tuple[int, ...] | None = setting(
        "valueSchemaIds",
        SchemaIds(),
        None,
        meaning="The ids under which the registry has `valueSchema`, separated by commas. A value with another id is malformed. "
        "Required for framed `avro` values, because another schema would read them as something else.",
    )
    mode: SourceValueMode = setting(
        "valueMode",
        Choice(SourceValueMode),
        SourceValueMode.PERMISSIVE,
        meaning="A value that cannot be decoded: `permissive` makes it null and keeps its bytes in the column "
        "`malformedValue`; `failfast` "
        "ends the query with an error that names it.",
    )
