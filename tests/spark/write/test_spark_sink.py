"""Batch writes by a real Spark to a real broker."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from bascule.client.blocking import BlockingClient
from bascule.client.messages import Message
from bascule.client.publish.partitioner import by_key
from tests.spark.conftest import MakeStream, Read
from tests.support.broker_fixtures import unique_name
from tests.support.broker_process import BrokerProcess


def stored(client: BlockingClient, stream: str) -> list[list[Message]]:
    """All messages, by partition."""
    partitions = client.fetch_metadata([stream]).streams[stream].partitions
    return [
        list(client.subscribe(stream, partition=number, start="earliest", stop="latest"))
        if client.fetch_partition_metadata(stream, number).newest_offset >= 0
        else []
        for number in partitions
    ]


def values(client: BlockingClient, stream: str) -> list[bytes]:
    return [message.value or b"" for messages in stored(client, stream) for message in messages]


class Write:
    def __init__(self, spark: SparkSession, servers: str) -> None:
        self.spark = spark
        self._servers = servers

    def __call__(self, frame: DataFrame | str, stream: str | None = None, mode: str = "append", **options: Any) -> None:
        rows = self.spark.sql(frame) if isinstance(frame, str) else frame
        rows.write.format("bascule").mode(mode).options(servers=self._servers, **options).save(stream)


@pytest.fixture
def write(spark: SparkSession, tables: BrokerProcess) -> Write:
    return Write(spark, tables.address)


ROWS = "SELECT CAST(id AS STRING) AS key, CONCAT('v', id) AS value FROM RANGE(0, 40, 1, 2)"


def test_rows_are_messages_with_key_value_headers_and_time(
    client: BlockingClient, make_stream: MakeStream, write: Write
) -> None:
    stream = make_stream()
    write(
        "SELECT 'ka' AS key, CAST('va' AS BINARY) AS value, MAP('h', CAST('1' AS BINARY)) AS headers, "
        "TIMESTAMP '2026-01-01 00:00:00Z' AS timestamp "
        "UNION ALL SELECT NULL, NULL, NULL, NULL",
        stream,
    )
    second, first = sorted(
        stored(client, stream)[0], key=lambda message: message.value or b""
    )  # two tasks: in any order
    assert (first.key, first.value) == (b"ka", b"va")
    assert first.headers == {"h": b"1", "bascule-timestamp": b"1767225600000000000"}
    assert (second.key, second.value, second.headers) == (None, None, {})


def test_a_key_goes_to_the_partition_that_every_client_sends_it_to(
    client: BlockingClient, make_stream: MakeStream, write: Write
) -> None:
    stream = make_stream(partitions=3)
    write(ROWS, stream)
    found = stored(client, stream)
    assert sorted(message.value or b"" for messages in found for message in messages) == sorted(
        b"v%d" % number for number in range(40)
    )
    for number, messages in enumerate(found):
        assert messages, "every partition got some"
        assert all(by_key(message.key, b"", 3) == number for message in messages)


def test_columns_say_where_rows_go_and_streams_are_created_on_request(
    client: BlockingClient, make_stream: MakeStream, write: Write
) -> None:
    there, new, wild = make_stream(partitions=2), unique_name("new"), make_stream(subject="routed.>")
    write(
        f"SELECT 'a' AS value, '{there}' AS stream, 1 AS partition, 'x' AS subject "
        f"UNION ALL SELECT 'b', '{new}', 2, NULL UNION ALL SELECT 'c', NULL, NULL, 'routed.here'",
        onMissingStream="create",
        createPartitions="3",
        createSync="interval",
        createSyncInterval="250ms",
        createCompression="zstd",
        createCompactMinLag="1m",
    )
    settings = client.fetch_metadata([new]).streams[new].settings
    assert settings is not None
    assert (settings.sync, settings.sync_interval) == ("interval", timedelta(milliseconds=250))
    assert (settings.compression, settings.compact_min_lag) == ("zstd", timedelta(minutes=1))
    assert settings.tombstone_retention == timedelta(days=1)  # the server's
    assert [[message.value for message in messages] for messages in stored(client, there)] == [[], [b"a"]]
    assert [[message.value for message in messages] for messages in stored(client, new)] == [[], [], [b"b"]]
    (routed,) = stored(client, wild)[0]
    assert (routed.value, routed.subject) == (b"c", "routed.here")


def test_rows_that_were_read_can_be_written_as_they_are(
    client: BlockingClient, make_stream: MakeStream, write: Write, read: Read
) -> None:
    source, target = make_stream(5, partitions=2), make_stream(partitions=2)
    before = time.time_ns()
    write(read(stream=source), target)
    copied, original = stored(client, target), stored(client, source)
    assert [[m.value for m in part] for part in copied] == [[m.value for m in part] for part in original]
    for copy, message in zip(copied[0], original[0], strict=True):
        kept = int(copy.headers["bascule-timestamp"])
        assert kept == message.timestamp // 1_000 * 1_000, "the time of the original, in microseconds"
        assert copy.timestamp >= before


def test_a_batch_write_with_a_name_can_be_run_again(
    client: BlockingClient, make_stream: MakeStream, write: Write
) -> None:
    stream = make_stream(partitions=2)
    once = {"delivery": "exactly-once", "producerId": unique_name("import")}
    for _ in range(2):
        write(ROWS, stream, **once)
    assert sorted(values(client, stream)) == sorted(b"v%d" % number for number in range(40))
    write(ROWS, stream, **once, producerEpoch="1")
    assert len(values(client, stream)) == 80, "another write of that name"
    with pytest.raises(Exception, match=r"\[PRODUCER_FENCED\]"):
        write(ROWS, stream, **once, producerEpoch="0")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"mode": "overwrite"}, r"\[INVALID_OPTION\] streams are appended to"),
        ({"ackpolicy": "maybe"}, r"\[INVALID_OPTION\] option `ackPolicy` is `maybe`"),
        ({"orderBy": "when"}, r"\[INVALID_SCHEMA\] option `orderBy` names a column `when`"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_written(write: Write, options: Any, complaint: str) -> None:
    with pytest.raises(Exception, match=complaint):
        write(ROWS, "nowhere", **options)


def test_a_stream_that_is_missing_fails_the_write_and_is_named(write: Write) -> None:
    with pytest.raises(Exception, match=r"\[STREAM_NOT_FOUND\] there is no stream `not-there` to write to"):
        write("SELECT 'a' AS value", "not-there")
