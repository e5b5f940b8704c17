"""A batch read against a cluster in memory: which streams, which offsets, which tasks."""

from __future__ import annotations

import os
import pickle
from typing import Any

import pytest
from pyspark.sql.datasource import (
    InputPartition,
)
from pyspark.sql.types import BinaryType, LongType, MapType, StringType, StructField, StructType

from bascule.errors import (
    BasculeError,
    DataLost,
    InvalidOption,
    InvalidSchema,
    OffsetOutOfRange,
    StreamNotFound,
    TimestampOutOfRange,
)
from bascule.spark.options.declaration import BATCH
from bascule.spark.options.reading import SourceConnection, source_options
from bascule.spark.options.schema import TABLE, check_schema
from bascule.spark.read import cluster as cluster_module
from bascule.spark.read.batch_reader import BatchReader
from bascule.spark.read.resolve import covers_subject
from tests.support.memory_cluster import MemoryCluster


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    found = MemoryCluster()
    monkeypatch.setattr(cluster_module, "connect", lambda _: found)
    found.create("orders", 2, subject="shop.orders", records=10)
    found.create("returns", subject="shop.returns.eu", records=3)
    found.create("__cursors", subject="__cursors", records=3)
    return found


def reader(schema: StructType = TABLE, /, **options: str) -> BatchReader:
    given = (
        options
        if options.keys() & {"subscribe", "subscribePattern", "subjectPattern", "assign"}
        else {"stream": "orders", **options}
    )
    return BatchReader(source_options(given, BATCH), schema)


def ranges(read: BatchReader) -> list[tuple[str, int, int, int]]:
    found = [one for task in read.partitions() for one in task.ranges]
    return [(one.stream, one.partition, one.start, one.end) for one in found]


# ── which ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"subscribe": "orders,returns"}, [("orders", 0), ("orders", 1), ("returns", 0)]),
        ({"subscribePattern": ".*s"}, [("orders", 0), ("orders", 1), ("returns", 0)]),
        ({"subscribePattern": "order"}, []),
        ({"subjectPattern": "shop.*"}, [("orders", 0), ("orders", 1)]),
        ({"subjectPattern": "shop.>"}, [("orders", 0), ("orders", 1), ("returns", 0)]),
        ({"assign": '{"orders": [1]}'}, [("orders", 1)]),
        ({"subscribe": "__cursors"}, [("__cursors", 0)]),
    ],
)
def test_streams_are_chosen(cluster: MemoryCluster, options: dict[str, str], found: list[tuple[str, int]]) -> None:
    del cluster
    assert [place[:2] for place in ranges(reader(**options))] == found


@pytest.mark.parametrize("options", [{"subscribe": "orders,gone"}, {"assign": '{"orders": [2]}'}])
def test_what_does_not_exist_is_named(cluster: MemoryCluster, options: dict[str, str]) -> None:
    del cluster
    with pytest.raises(StreamNotFound, match=r"`gone`|no partition 2"):
        reader(**options).partitions()


@pytest.mark.parametrize(
    ("pattern", "subject", "covered"),
    [
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.*", "a", False),
        ("a.*", "a.*", True),
        ("a.*", "a.>", False),
        ("a.>", "a.>", True),
        ("a.>", "a.b.*", True),
        ("a.>", "a", False),
        (">", "a", True),
        ("a.b", "a.*", False),
        ("*.b", "a.b", True),
    ],
)
def test_a_pattern_covers_all_that_a_subject_stands_for(pattern: str, subject: str, covered: bool) -> None:
    assert covers_subject(pattern.split("."), subject.split(".")) is covered


# ── where ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, [(0, 10), (0, 10)]),
        ({"startingOffsets": '{"orders": {"0": 3, "1": -2}}'}, [(3, 10), (0, 10)]),
        ({"endingOffsets": '{"orders": {"0": 3, "1": -1}}'}, [(0, 3), (0, 10)]),
        ({"startingOffsets": "cursor:job"}, [(0, 10), (5, 10)]),
        ({"startingTimestamp": "4000"}, [(4, 10), (4, 10)]),
        ({"startingTimestamp": "1970-01-01T00:00:03.5Z"}, [(4, 10), (4, 10)]),
        ({"startingOffsetsByTimestamp": '{"orders": {"0": 4000, "1": 0}}'}, [(4, 10), (0, 10)]),
        ({"endingTimestamp": "4000"}, [(0, 4), (0, 4)]),
        ({"endingTimestamp": "99000"}, [(0, 10), (0, 10)]),
        ({"endingOffsetsByTimestamp": '{"orders": {"0": 4000, "1": 0}}'}, [(0, 4)]),
    ],
)
def test_a_read_is_bounded(cluster: MemoryCluster, options: dict[str, str], found: list[tuple[int, int]]) -> None:
    cluster.cursors["job", "orders", 1] = 4
    assert [place[2:] for place in ranges(reader(**options))] == found


def test_a_time_that_no_record_is_behind_is_an_error_or_the_end(cluster: MemoryCluster) -> None:
    del cluster
    with pytest.raises(TimestampOutOfRange, match=r"\[TIMESTAMP_OUT_OF_RANGE\]"):
        reader(startingTimestamp="99000").partitions()
    assert reader(startingTimestamp="99000", startingOffsetsByTimestampStrategy="latest").partitions() == []


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        (
            {"startingOffsets": '{"orders": {"0": 11, "1": 0}}'},
            OffsetOutOfRange,
            "is 11 for `orders`/0, which ends at 10",
        ),
        (
            {"endingOffsets": '{"orders": {"0": 11, "1": 0}}'},
            OffsetOutOfRange,
            "is 11 for `orders`/0, which ends at 10",
        ),
        ({"startingOffsets": '{"orders": {"0": 1}}'}, InvalidOption, "leaves out `orders`/1"),
        (
            {"startingOffsets": '{"orders": {"0": 1, "1": 1, "2": 1}}'},
            InvalidOption,
            "names `orders`/2, which is not read",
        ),
        ({"endingOffsetsByTimestamp": '{"orders": {"0": 1}}'}, InvalidOption, "`endingOffsetsByTimestamp` leaves out"),
        ({"startingTimestamp": "5000", "endingTimestamp": "4000"}, InvalidOption, "from offset 5 to 4"),
    ],
)
def test_bounds_that_a_stream_does_not_have_are_refused(
    cluster: MemoryCluster, options: dict[str, str], error: type[BasculeError], said: str
) -> None:
    del cluster
    with pytest.raises(error, match=said):
        reader(**options).partitions()


def test_records_that_are_gone_are_an_error_or_skipped(cluster: MemoryCluster) -> None:
    cluster.remove_below("orders", 6)
    from_three = {"startingOffsets": '{"orders": {"0": 3, "1": 3}}'}
    with pytest.raises(DataLost, match="from offset 3, but its log starts at 6: 3 offsets are gone"):
        reader(**from_three).partitions()
    assert ranges(reader(**from_three, onDataLoss="skip"))[0] == ("orders", 0, 6, 10)
    assert ranges(reader())[0] == ("orders", 0, 6, 10), "the earliest is what is there"


# ── rows and columns ─────────────────────────────────────────────────────────────────────────────


def test_only_the_columns_of_the_schema_are_asked_for(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    plain = cluster.read

    def note(*place: Any, **options: Any) -> Any:
        asked.append(options["columns"])
        return plain(*place, **options)

    monkeypatch.setattr(cluster, "read", note)
    schema = StructType([StructField("OFFSET", LongType()), StructField("value", BinaryType(), nullable=False)])
    read = reader(schema)
    (batch, *_) = pickle.loads(pickle.dumps(read)).read(read.partitions()[0])
    assert set(asked) == {("offset", "value")}
    assert batch.schema.names == ["OFFSET", "value"]
    assert [field.nullable for field in batch.schema] == [True, False]


def test_a_task_without_a_range_reads_nothing(cluster: MemoryCluster) -> None:
    del cluster
    assert list(reader().read(InputPartition(None))) == []


@pytest.mark.parametrize(
    "field",
    [
        StructField("topic", StringType()),
        StructField("value", StringType()),
        StructField("headers", MapType(StringType(), StringType())),
        StructField("headers", MapType(StringType(), BinaryType(), valueContainsNull=False)),
    ],
)
def test_columns_that_a_stream_does_not_have_are_refused(field: StructField) -> None:
    with pytest.raises(InvalidSchema):
        check_schema(StructType([field]))


# ── connections ──────────────────────────────────────────────────────────────────────────────────


def test_a_process_has_one_connection_for_the_same_options_and_a_fork_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 7: readers are built and unpickled for every task; a connection each would be a connection a task."""
    monkeypatch.setattr(cluster_module, "_connected", {})
    monkeypatch.setattr(cluster_module, "FlightCluster", lambda _: MemoryCluster())
    here, there = SourceConnection(), SourceConnection(servers="other:9292")
    first = cluster_module.connect(here)
    assert cluster_module.connect(pickle.loads(pickle.dumps(here))) is first
    assert cluster_module.connect(there) is not first
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    assert cluster_module.connect(here) is not first, "sockets of a parent are not for its children"
    monkeypatch.setattr(os, "getpid", lambda: pid)
    cluster_module.disconnect(here)
    assert cluster_module.connect(here) is not first
