"""Options and columns of a write: what is taken, and what is refused with what would be right. No Spark runs here."""

from __future__ import annotations

import pickle

import pytest
from pyspark.sql import types

from bascule.errors import InvalidOption, InvalidSchema
from bascule.spark.options.declaration import BATCH, STREAMING
from bascule.spark.options.writing import AckPolicy, Partitioner, SinkDelivery, sink_options
from bascule.spark.write.columns import check_columns

ONCE = {"delivery": "exactly-once"}


def test_a_write_needs_no_option_but_a_stream() -> None:
    options = sink_options({"path": "orders"}, BATCH)
    assert options.stream == "orders"
    assert options.connection.servers == "127.0.0.1:9292"
    assert options.sureness.delivery is SinkDelivery.AT_LEAST_ONCE
    assert options.sureness.ack_policy is AckPolicy.ALL, "safe unless somebody says otherwise"
    assert options.target.partitioner is Partitioner.AUTO


def test_options_travel_to_executors() -> None:
    options = sink_options({"stream": "orders", "publishTimeout": "1500ms", **ONCE}, STREAMING)
    assert pickle.loads(pickle.dumps(options)) == options
    assert options.timeout_seconds == 1.5


def test_what_spark_itself_is_told_is_not_ours() -> None:
    assert sink_options({"stream": "s", "checkpointLocation": "/tmp/c", "queryName": "q"}, STREAMING).stream == "s"


@pytest.mark.parametrize(
    ("given", "mode", "message", "hint"),
    [
        ({"strem": "s"}, BATCH, "`strem` is no option", "did you mean `stream`?"),
        ({"topic": "s"}, BATCH, "`topic` is no option", "write `stream`"),
        ({"kafka.bootstrap.servers": "s"}, BATCH, "no option", "write `servers`"),
        ({"servers": "a b"}, BATCH, "`servers` is `a b`", "127.0.0.1:9292"),
        ({"servers": "host:99999"}, BATCH, "`servers`", "127.0.0.1:9292"),
        ({"stream": "a b"}, BATCH, "`stream` is `a b`", "no spaces"),
        ({"path": "a/b"}, BATCH, "`path` is `a/b`", "none of /"),
        ({"stream": "a", "path": "b"}, BATCH, "`stream` is `a`, and the path is `b`", "once"),
        ({"subject": "a..b"}, BATCH, "`subject` is `a..b`", "a subject"),
        ({"subject": "a.*"}, BATCH, "`subject` is `a.*`", "without wildcards"),
        ({"stream": "a", "subject": "b"}, BATCH, "both say where rows go", "one of them"),
        ({"subject": "a", "partition": "0"}, BATCH, "`partition` goes with a stream", "NATS"),
        ({"partitioner": "hash"}, BATCH, "`partitioner` is `hash`", "`key`"),
        ({"partition": "-1"}, BATCH, "`partition` is `-1`", "0"),
        ({"partition": "one"}, BATCH, "`partition` is `one`", "number"),
        ({"partition": "1", "partitioner": "key"}, BATCH, "both choose the partition", "one of them"),
        ({"onMissingStream": "ignore"}, BATCH, "`onMissingStream` is `ignore`", "`create`"),
        ({"createPartitions": "0"}, BATCH, "`createPartitions` is `0`", "1"),
        ({"createReplicationFactor": "-2"}, BATCH, "`createReplicationFactor` is `-2`", "-1"),
        ({"createReplicationFactor": "0"}, BATCH, "`createReplicationFactor` is `0`", "-1"),
        ({"createSync": "never"}, BATCH, "`createSync` is `never`", "`ack`, `interval`, `always`"),
        ({"createSyncInterval": "0"}, BATCH, "`createSyncInterval` is `0`", "at least 1ms"),
        ({"createCompression": "gzip"}, BATCH, "`createCompression` is `gzip`", "`none`, `zstd`"),
        ({"createCompactMinLag": "-1s"}, BATCH, "`createCompactMinLag` is `-1s`", "0 or more"),
        ({"createTombstoneRetention": "long"}, BATCH, "`createTombstoneRetention` is `long`", "24h"),
        ({"delivery": "exactlyonce"}, STREAMING, "`delivery` is `exactlyonce`", "did you mean `exactly-once`?"),
        ({"delivery": "at-most-once"}, STREAMING, "`delivery`", "one of"),
        ({"ackPolicy": "quorum"}, BATCH, "`ackPolicy` is `quorum`", "`leader`, `all`, `none`"),
        ({"ackPolicy": "none", **ONCE}, STREAMING, "`ackPolicy` is `none`", "`all` or `leader`"),
        (ONCE, BATCH, "needs a name", "`producerId`"),
        ({"producerId": "p" * 41, **ONCE}, BATCH, "`producerId`", "1 to 40 bytes"),
        ({"producerId": "p"}, BATCH, "at least once", "`delivery=exactly-once`"),
        ({"producerId": "p", **ONCE}, STREAMING, "streaming query", "leave it out"),
        ({"producerEpoch": "3", **ONCE}, STREAMING, "streaming query", "leave it out"),
        ({"producerId": "p", "producerEpoch": "-1", **ONCE}, BATCH, "`producerEpoch` is `-1`", "0"),
        ({"orderBy": " , "}, BATCH, "`orderBy`", "at least one name"),
        ({"maxInFlight": "0"}, BATCH, "`maxInFlight` is `0`", "1"),
        ({"maxInFlight": "2000000"}, BATCH, "`maxInFlight` is `2000000`", "1048576"),
        ({"publishTimeout": "0s"}, BATCH, "`publishTimeout` is `0s`", "duration"),
        ({"publishTimeout": "soon"}, BATCH, "`publishTimeout` is `soon`", "duration"),
        ({"tls": "maybe"}, BATCH, "`tls` is `maybe`", "true"),
        ({"tlsCert": "c.pem"}, BATCH, "`tlsCert` and `tlsKey`", "both"),
    ],
)
def test_bad_values_are_refused_with_what_is_right(given: dict[str, str], mode: str, message: str, hint: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        sink_options({name.lower(): value for name, value in given.items()}, mode)
    assert message in refused.value.message or message.lower() in refused.value.message
    assert hint in (refused.value.hint or "")


# ── columns ──────────────────────────────────────────────────────────────────────────────────────


PAIR = types.StructType().add("key", "string").add("value", "binary")
KINDS: dict[str, types.DataType | str] = {
    "int": "integer",
    "bigint": "long",
    "map<string,string>": types.MapType(types.StringType(), types.StringType()),
    "map<string,binary>": types.MapType(types.StringType(), types.BinaryType()),
    "map<string,int>": types.MapType(types.StringType(), types.IntegerType()),
    "array<string>": types.ArrayType(types.StringType()),
    "array<pair>": types.ArrayType(PAIR),
}


def check(columns: str, **given: str) -> None:
    """Columns as SQL writes them; Spark's own parser needs a running Spark."""
    schema = types.StructType()
    for column in columns.split(", "):
        name, kind = column.split(" ")
        schema.add(name, KINDS.get(kind, kind))
    check_columns(schema, sink_options(given, BATCH))


def test_everything_that_is_written_and_everything_that_is_read_may_be_there() -> None:
    check("value binary", stream="s")
    check("value string, key string, headers map<string,string>, partition bigint, timestamp timestamp_ntz", stream="s")
    check("value string, headers array<pair>, stream string")
    check("value binary, subject string")
    check(
        "key binary, value binary, stream string, partition int, offset bigint, timestamp timestamp, subject string, "
        "replySubject string, headers map<string,binary>, leaderEpoch bigint"
    )


@pytest.mark.parametrize(
    ("columns", "given", "message", "hint"),
    [
        ("key string", {"stream": "s"}, "no column `value`", "alias"),
        ("value int", {"stream": "s"}, "`value` is int", "binary or string"),
        ("value string, key int", {"stream": "s"}, "`key` is int", "binary or string"),
        ("value string, partition string", {"stream": "s"}, "`partition` is string", "int"),
        ("value string, stream binary", {}, "`stream` is binary", "string"),
        ("value string, timestamp bigint", {"stream": "s"}, "`timestamp` is bigint", "timestamp"),
        ("value string, headers string", {"stream": "s"}, "`headers` is string", "map<string, binary>"),
        ("value string, headers map<string,int>", {"stream": "s"}, "`headers` is map", "map<string, binary>"),
        ("value string, headers array<string>", {"stream": "s"}, "`headers` is array", "array<struct"),
        ("value string, Values string", {"stream": "s"}, "`Values` is none", "did you mean `value`?"),
        ("value string, name string", {"stream": "s"}, "`name` is none", "there are `value`"),
        ("value string", {}, "which stream", "option `stream`"),
        ("value string", {"stream": "s", "partitioner": "explicit"}, "no column `partition`", "add the column"),
        ("value string", {"stream": "s", "partitioner": "key"}, "no column `key`", "add the column"),
        ("value string", {"stream": "s", "orderBy": "time"}, "`time`", "there are `value`"),
        (
            "value string, headers map<string,string>",
            {"stream": "s", "orderBy": "headers"},
            "no order",
            "other columns",
        ),
    ],
)
def test_columns_that_cannot_be_written_are_refused(
    columns: str, given: dict[str, str], message: str, hint: str
) -> None:
    with pytest.raises(InvalidSchema) as refused:
        check(columns, **given)
    assert message in refused.value.message
    assert hint in (refused.value.hint or "")
