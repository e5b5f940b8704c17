"""Values with the frame of a schema registry: the id is checked and shown, and a value with another id is not decoded."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructField, StructType

from bascule.errors import InvalidOption, MalformedValue
from bascule.pipeline.spec.pipeline import load
from bascule.spark.options.reading import value_options
from bascule.spark.read.batch_reader import ReadRange, SparkRows
from bascule.spark.values.decoding import ValueColumn, ValueReader
from bascule.spark.values.framing import Frame, unframed

SCHEMA = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})
ONE, TWO = b"\x02", b"\x04"
"""Orders 1 and 2 in Avro: zigzag."""
FRAMED = {"valueFormat": "avro", "valueSchema": SCHEMA, "valueFraming": "confluent", "valueSchemaIds": "17,21"}


def frame(schema_id: int, value: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + value


def rows(values: list[bytes | None], **options: str) -> list[dict[str, Any]]:
    reader = ValueReader.of(value_options(options))
    table = reader.table()
    assert isinstance(table, StructType)
    asked = ("value", "malformedValue", "valueSchemaId")
    schema = StructType([field for field in table if field.name in asked])
    shaped = SparkRows(schema, pickle.loads(pickle.dumps(reader)))
    columns = [pa.array(values, pa.binary()), pa.array(range(len(values)), pa.int64())]
    batch = pa.RecordBatch.from_arrays(columns, list(shaped.asked))
    found: list[dict[str, Any]] = shaped.conform(batch, ReadRange("orders", 1, 3, 0, len(values))).to_pylist()
    return found


def test_framed_avro_is_decoded_and_its_schema_id_is_a_column() -> None:
    foreign, plain = frame(99, TWO), TWO
    assert rows([frame(17, ONE), frame(21, TWO), foreign, plain, None], **FRAMED) == [
        {"value": {"id": 1}, "malformedValue": None, "valueSchemaId": 17},
        {"value": {"id": 2}, "malformedValue": None, "valueSchemaId": 21},
        {"value": None, "malformedValue": foreign, "valueSchemaId": 99},
        {"value": None, "malformedValue": plain, "valueSchemaId": None},
        {"value": None, "malformedValue": None, "valueSchemaId": None},
    ]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (frame(99, ONE), "schema id 99, and `valueSchemaIds` has 17, 21"),
        (ONE, "does not begin with a frame of a schema registry"),
        (b"\0\0\0", "does not begin with a frame"),
        (frame(17, b""), "the bytes end before the record does"),
    ],
)
def test_a_value_that_cannot_be_read_says_why(value: bytes, said: str) -> None:
    with pytest.raises(MalformedValue, match="`orders`/3 at offset 1 cannot be decoded") as refused:
        rows([frame(17, ONE), value], **FRAMED, valueMode="failfast")
    assert said in refused.value.message


def test_a_frame_that_no_option_names_is_named_by_the_error() -> None:
    plain = {"valueFormat": "avro", "valueSchema": SCHEMA}
    reader = ValueReader.of(value_options(plain))
    declared = reader.value_type()
    assert isinstance(declared, StructType)
    _, reasons = ValueColumn(reader, declared).decode(pa.array([ONE, frame(17, ONE), b"\0\0"], pa.binary()))
    assert "schema id 17: set `valueFraming` to `confluent`" in reasons[1]
    assert "valueFraming" not in reasons[2], "not every malformed value has a frame"


def test_framed_json_needs_no_ids() -> None:
    reader = ValueReader.of(
        value_options({"valueFormat": "json", "valueSchema": "id BIGINT", "valueFraming": "confluent"})
    )
    declared = StructType([StructField("id", LongType()), StructField("name", StringType())])
    structs, reasons = ValueColumn(reader, declared).decode(
        pa.array([frame(5, b'{"id": 1}'), b'{"id": 2}'], pa.binary())
    )
    assert structs.to_pylist() == [{"id": 1, "name": None}, None]
    assert list(reasons) == [1]
    assert "`valueSchemaId` bigint" in str(reader.table())


@pytest.mark.parametrize(
    ("changed", "said", "hint"),
    [
        ({"valueSchemaIds": None}, "`valueSchemaIds` is missing", "`17,21`"),
        ({"valueFraming": None}, "`valueSchemaIds` is set, but `valueFraming` is `none`", "`confluent`"),
        ({"valueFormat": None, "valueSchema": None}, "`valueFormat` is not set", "`avro` or `json`"),
        (
            {"valueFormat": "protobuf", "valueMessage": "shop.Order"},
            "`valueFraming` is `confluent`, but `valueFormat` is `protobuf`",
            "`avro` or `json`",
        ),
        ({"valueSchemaIds": "-1"}, "`valueSchemaIds` is `-1`", "17"),
        ({"valueSchemaIds": "4294967296"}, "`valueSchemaIds` is `4294967296`", "17"),
    ],
)
def test_options_that_do_not_fit_are_refused(changed: dict[str, str | None], said: str, hint: str) -> None:
    given = {name: value for name, value in (FRAMED | changed).items() if value is not None}
    with pytest.raises(InvalidOption, match=said) as refused:
        value_options(given)
    assert hint in (refused.value.hint or "")


def test_a_pipeline_names_the_framing_in_its_file(tmp_path: Any) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(f"""
name: framed
source:
  stream: orders
  value: {{format: avro, schema: '{SCHEMA}', framing: confluent, schema_ids: "17,21"}}
sinks: [console]
checkpoint: state
""")
    assert load(file).source.value_options() == FRAMED


@given(st.binary(max_size=12), st.integers(0, (1 << 32) - 1))
def test_what_is_framed_is_found_again(value: bytes, schema_id: int) -> None:
    assert unframed(frame(schema_id, value)) == Frame(schema_id, value)
    assert value[:1] == b"\0" or unframed(value) is None
