"""Streaming reads by a real Spark from a real broker, with what happens to queries: crashes, repeats, streams that change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from bascule.client.blocking import BlockingClient
from bascule.spark.options.reading import SourceConnection
from bascule.spark.read.cluster import FlightCluster
from tests.spark.conftest import MakeStream, Query, publish
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import eventually

GOLDEN = Path(__file__).parent / "checkpoint"


def offset_log(query: Query, batch_id: int) -> dict[str, Any]:
    """What the checkpoint holds of a batch."""
    lines = (query.checkpoint / "offsets" / str(batch_id)).read_text("utf-8").splitlines()
    found: dict[str, Any] = json.loads(lines[2])
    return found


def test_available_now_reads_what_is_there_within_limits_and_then_ends(
    client: BlockingClient, make_stream: MakeStream, query: Query
) -> None:
    stream = make_stream(6, partitions=2)
    query.during = lambda _: publish(client, stream, 5, first=100)
    offsets = query.run(stream=stream, startingOffsets="earliest", maxOffsetsPerTrigger="8")
    assert [len(rows) for _, rows in query.batches] == [8, 4], "what came meanwhile is not read"
    assert sorted(offsets) == sorted([*range(6)] * 2)
    query.during = lambda _: None
    assert query.run(stream=stream) == [*range(6, 16)], "the next run goes on"


def test_the_checkpoint_holds_offsets_like_kafkas_and_which_stream_they_are_of(
    make_stream: MakeStream, query: Query
) -> None:
    stream = make_stream(2, partitions=2)
    query.run(stream=stream, startingOffsets="earliest")
    found = offset_log(query, 0)
    assert found[stream].pop("id") > 0
    assert found == {stream: {"0": 2, "1": 2, "from": {"0": 0, "1": 0}}}


def test_a_first_batch_that_is_repeated_after_a_crash_begins_where_it_began(
    client: BlockingClient, make_stream: MakeStream, query: Query
) -> None:
    """Trap 1. Spark asks the new process for the initial offset, and `latest` is another one by now."""
    stream = make_stream(10)
    assert query.run(stream=stream, startingOffsets="latest") == []
    query.forget_commit(0)
    publish(client, stream, 5, first=10)
    assert query.run(stream=stream, startingOffsets="latest") == [10, 11, 12, 13, 14]
    assert [batch_id for batch_id, _ in query.batches] == [0, 0, 1]


def test_a_repeated_batch_has_the_same_id_and_the_same_rows(
    client: BlockingClient, make_stream: MakeStream, query: Query
) -> None:
    """Trap 4."""
    stream = make_stream(10)
    query.run(stream=stream, startingOffsets="earliest", maxOffsetsPerTrigger="6")
    query.forget_commit(1)
    publish(client, stream, 3, first=10)
    query.run(stream=stream, maxOffsetsPerTrigger="6")
    rows = [(batch_id, [offset for _, offset in found]) for batch_id, found in query.batches]
    assert rows == [(0, [*range(6)]), (1, [*range(6, 10)]), (1, [*range(6, 10)]), (2, [10, 11, 12])]


def test_the_cursor_is_advice_and_the_offset_log_is_the_truth(
    client: BlockingClient, make_stream: MakeStream, query: Query
) -> None:
    """Trap 2: Spark commits a batch while it plans the next, and never the last one."""
    stream = make_stream(10)
    query.run(stream=stream, startingOffsets="earliest", maxOffsetsPerTrigger="6", cursor="etl")
    assert client.fetch_cursor("etl", stream) == 5
    publish(client, stream, 2, first=10)
    assert query.run(stream=stream, cursor="etl") == [10, 11]
    assert client.fetch_cursor("etl", stream) == 9


def test_a_checkpoint_that_was_written_once_can_always_be_gone_on_with(
    tables: BrokerProcess, make_stream: MakeStream, query: Query
) -> None:
    """checkpoint/ is of a query that died in its batch 1, before the commit. Only the stream's id is put in."""
    stream = make_stream(12, partitions=2, name="golden-orders")
    connection = FlightCluster(SourceConnection(servers=tables.address))
    stream_id = str(connection.streams([stream])[stream].id)
    connection.close()
    for file in (file for file in GOLDEN.rglob("*") if file.is_file()):
        copy = query.checkpoint / file.relative_to(GOLDEN)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(file.read_text("utf-8").replace("STREAM_ID", stream_id), "utf-8")
    query.run(stream=stream, startingOffsets="latest")
    both = [(batch_id, [offset for number, offset in rows if number == 0]) for batch_id, rows in query.batches]
    assert both == [(1, [6, 7, 8, 9]), (2, [10, 11])]


def test_progress_tells_the_lag(make_stream: MakeStream, query: Query) -> None:
    stream = make_stream(10)
    query.run(stream=stream, startingOffsets="earliest", maxOffsetsPerTrigger="6")
    reports = [
        each["sources"][0]["latestOffset"][stream] for each in query.progress if each["sources"][0]["latestOffset"]
    ]
    first, last = reports[0]["lag"], reports[-1]["lag"]
    assert (first["offsets"], last["offsets"]) == (4, 0)
    assert first["bytes"] > 0 and first["seconds"] > 0 and last == {"offsets": 0, "bytes": 0, "seconds": 0.0}


def test_a_query_that_runs_on_reads_what_comes_and_notices_a_stream_created_again(
    client: BlockingClient, make_stream: MakeStream, query: Query
) -> None:
    stream = make_stream(3)
    running = query.start({"processingTime": "50 milliseconds"}, stream=stream)
    try:
        eventually(lambda: len(query.batches) > 0, "the first batch was run")
        publish(client, stream, 4, first=3)
        eventually(lambda: query.offsets == [3, 4, 5, 6], "what came was read")
        client.delete_stream(stream)
        make_stream(20, name=stream)
        with pytest.raises(StreamingQueryException, match=r"\[STREAM_(RECREATED|DELETED|NOT_FOUND)\]"):
            running.awaitTermination(120)
    finally:
        running.stop()
    with pytest.raises(
        StreamingQueryException, match=r"\[STREAM_RECREATED\] stream `.*` was deleted and created again"
    ):
        query.run(stream=stream)
    assert query.run(stream=stream, onDataLoss="skip") == [*range(20)], (
        "on request the new one is read from its beginning"
    )


def test_a_stream_that_is_created_while_a_query_runs_is_read_from_its_beginning(
    make_stream: MakeStream, query: Query
) -> None:
    make_stream(1, name="later.eu")
    assert query.run(subscribePattern=r"later\..*", startingOffsets="latest") == []
    make_stream(3, name="later.us")
    assert query.run(subscribePattern=r"later\..*") == [0, 1, 2]


def test_a_query_of_spark_connect_reads_the_same(
    connect_spark: Any, tables: BrokerProcess, make_stream: MakeStream, tmp_path: Path
) -> None:
    stream = make_stream(5, partitions=2)
    frame = connect_spark.readStream.format("bascule").options(
        servers=tables.address, stream=stream, startingOffsets="earliest", maxOffsetsPerTrigger="6"
    )
    writer = frame.load().select("partition", "offset").writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    assert writer.start(str(tmp_path / "rows")).awaitTermination(120)
    rows = connect_spark.read.parquet(str(tmp_path / "rows")).collect()
    assert sorted(tuple(row) for row in rows) == [(number, offset) for number in (0, 1) for offset in range(5)]
