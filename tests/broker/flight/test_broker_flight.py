"""Streams as Arrow tables, from a real broker: what is in them, what is refused, and what does not disturb the broker."""

from __future__ import annotations

import json
import time
import zlib
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.flight as flight
import pytest

import bascule
from bascule import errors
from bascule.client.arrow.reader import FlightConnection
from bascule.flight.schema import COLUMNS, table_schema
from bascule.flight.tickets import LOCATIONS_ACTION, ReadTicket
from tests.support.api_client import Api
from tests.support.broker_fixtures import StartBroker, unique_name
from tests.support.broker_process import BrokerProcess
from tests.support.tables import SERVING, Counting, numbers, read_rows, stream, tables, tables_api, tables_broker
from tests.support.waiting import eventually

__all__ = ["stream", "tables", "tables_api", "tables_broker"]


# ── what is in a table ───────────────────────────────────────────────────────────────────────────


def test_every_message_is_a_row_with_all_it_was_published_with(
    tables_broker: BrokerProcess, tables_api: Api, stream: str
) -> None:
    began = datetime.now(UTC) - timedelta(seconds=1)
    tables_api.publish(stream, b"lamp", key=b"k", headers={"a": b"1", "b": b""})
    tables_api.publish(stream, b"desk", 1)
    tables_api.publish(stream, b"", key=b"k2")
    table = bascule.read_table(stream, servers=tables_broker.address)
    assert table.schema == table_schema()
    table.validate(full=True)
    first, second, third = table.to_pylist()
    assert dict(first.pop("headers")) == {"a": b"1", "b": b""}
    assert began < first.pop("timestamp") <= datetime.now(UTC)
    epoch = first.pop("leaderEpoch")
    assert epoch > 0
    assert first == {
        "key": b"k",
        "value": b"lamp",
        "stream": stream,
        "partition": 0,
        "offset": 0,
        "subject": f"subject.{stream}",
        "replySubject": None,
    }
    assert (second["key"], second["value"] or b"", second["offset"]) == (b"k2", b"", 1)
    assert (third["partition"], third["offset"], third["subject"]) == (1, 0, f"subject.{stream}.1")


def test_the_grpc_port_answers_in_flight_where_tables_are_served(tables_broker: BrokerProcess, stream: str) -> None:
    with flight.FlightClient(f"grpc://{tables_broker.address}") as client:
        (answer,) = client.do_action(flight.Action(LOCATIONS_ACTION, b""))
        (location,) = json.loads(answer.body.to_pybytes())["locations"]
        with FlightConnection(location) as tables:
            assert stream in tables.offsets()
        with pytest.raises(NotImplementedError, match="has the action `locations` alone"):
            list(client.do_action(flight.Action("offsets", b"{}")))


def test_a_stream_without_messages_is_a_table_without_rows(tables_broker: BrokerProcess, stream: str) -> None:
    table = bascule.read_table(stream, servers=tables_broker.address)
    assert (table.num_rows, table.schema) == (0, table_schema())


def test_ranges_partitions_and_columns_can_be_chosen(
    tables_broker: BrokerProcess, tables: FlightConnection, stream: str
) -> None:
    tables.put(stream, numbers(100))
    read = bascule.read_table(
        stream, servers=tables_broker.address, start=10, end=13, partitions=[0], columns=["value"]
    )
    assert read.to_pydict() == {"value": [b"10", b"11", b"12"]}
    read = bascule.read_table(stream, servers=tables_broker.address, start={0: 98}, columns=["offset", "partition"])
    assert read.to_pydict() == {"offset": [98, 99], "partition": [0, 0]}
    with pytest.raises(errors.CallerError, match="no column 'price'"):
        bascule.read_table(stream, servers=tables_broker.address, columns=["price"])
    with pytest.raises(errors.StreamNotFound, match="no partition 2"):
        bascule.read_table(stream, servers=tables_broker.address, partitions=[2])


def test_a_time_may_say_where_to_begin_and_to_end(
    tables_broker: BrokerProcess, tables: FlightConnection, stream: str
) -> None:
    tables.put(stream, numbers(5))
    time.sleep(0.01)  # a time between the two
    between = datetime.now(UTC)
    tables.put(stream, numbers(5, first=5))
    read = bascule.read_table(stream, servers=tables_broker.address, start=between, columns=["offset"], partitions=[0])
    assert read["offset"].to_pylist() == [5, 6, 7, 8, 9]
    read = bascule.read_table(stream, servers=tables_broker.address, end=between, columns=["offset"], partitions=[0])
    assert read["offset"].to_pylist() == [0, 1, 2, 3, 4]


def test_batches_are_cut_by_rows_and_by_bytes(tables: FlightConnection, stream: str) -> None:
    tables.put(stream, numbers(1000, size=100))
    by_rows = list(tables.read(stream, 0, batch_rows=300))
    assert [batch.num_rows for batch in by_rows] == [300, 300, 300, 100]
    by_bytes = list(tables.read(stream, 0, batch_bytes=10_000))
    assert all(9_000 < batch.nbytes < 20_000 for batch in by_bytes[:-1])
    for batches in (by_rows, by_bytes):
        assert pa.Table.from_batches(batches)["offset"].to_pylist() == list(range(1000))


def test_encrypted_batches_are_opened(tables: FlightConnection, tables_api: Api) -> None:
    name = unique_name("secret")
    tables_api.CreateStream(name=name, subject=name, encryption=True)
    tables.put(name, numbers(2000, size=200))
    assert [row["offset"] for row in read_rows(tables, name, 0, columns=["offset"])] == list(range(2000))


def test_compressed_batches_are_opened(start_broker: StartBroker) -> None:
    broker = start_broker({**SERVING, "streams.compression": "zstd"})
    api = broker.api()
    api.CreateStream(name="s", subject="s")
    with FlightConnection(broker.address) as tables:
        tables.put("s", numbers(2000, size=200))
        found = tables.offsets(["s"])["s"]["partitions"][0]
        assert found["size_bytes"] < 2000 * 100, "the batches are not compressed"
        values = [row["value"].rstrip(b".") for row in read_rows(tables, "s", 0, columns=["value"])]
    assert values == [b"%d" % number for number in range(2000)]
    api.close()


def test_gaps_that_compaction_left_are_no_loss(tables: FlightConnection, tables_api: Api) -> None:
    name = unique_name("compacted")
    tables_api.CreateStream(name=name, subject=name, compactEnabled=True, segmentMaxBytes=2_000, cleanerInterval=50)
    keys = [b"%d" % (number % 7) for number in range(500)]
    for first in range(0, 500, 50):
        tables.put(name, pa.table({"key": keys[first : first + 50], "value": [b"x" * 30] * 50}))
    rows = eventually(
        lambda: found if len(found := read_rows(tables, name, 0, 0, 500, ["offset", "key"])) < 200 else None,
        "most messages are compacted away",
    )
    offsets = [row["offset"] for row in rows]
    assert offsets == sorted(set(offsets))
    assert offsets[-1] == 499
    assert {row["key"] for row in rows} == set(keys)


# ── what is refused ──────────────────────────────────────────────────────────────────────────────


def test_nothing_is_read_beyond_the_high_watermark(tables: FlightConnection, stream: str) -> None:
    tables.put(stream, numbers(10))
    assert len(read_rows(tables, stream, 0, 0, 10)) == 10
    with pytest.raises(errors.OffsetOutOfRange, match="up to offset 10"):
        read_rows(tables, stream, 0, 0, 11)
    assert read_rows(tables, stream, 0, 10, 10) == []


def test_who_asks_for_what_retention_has_deleted_hears_where_the_log_begins(
    tables: FlightConnection, tables_api: Api
) -> None:
    name = unique_name("retained")
    tables_api.CreateStream(
        name=name, subject=name, retentionMaxMessages=100, segmentMaxBytes=2_000, cleanerInterval=50
    )
    for first in range(0, 500, 50):
        tables.put(name, numbers(50, first=first, size=50))
    start = eventually(lambda: tables.offsets([name])[name]["partitions"][0]["log_start"], "the oldest are deleted")
    with pytest.raises(errors.OffsetBelowStart) as refused:
        read_rows(tables, name, 0, 0, 500)
    assert refused.value.log_start_offset >= start
    assert tables.offsets([name])[name]["retention"]["max_messages"] == 100
    assert read_rows(tables, name, 0)[-1]["offset"] == 499


def test_a_stream_that_was_created_again_is_another_one(tables: FlightConnection, tables_api: Api, stream: str) -> None:
    tables.put(stream, numbers(5))
    before = tables.offsets([stream])[stream]["id"]
    assert len(read_rows(tables, stream, 0, 0, 5, stream_id=before)) == 5
    tables_api.DeleteStream(name=stream)
    with pytest.raises(errors.StreamNotFound):
        read_rows(tables, stream, 0, 0, 5, stream_id=before)
    tables_api.CreateStream(name=stream, subject=f"subject.{stream}")
    with pytest.raises(errors.StreamRecreated, match="created again"):
        read_rows(tables, stream, 0, 0, 5, stream_id=before)


def test_a_stream_deleted_while_it_is_read_ends_the_read(
    tables_broker: BrokerProcess, tables_api: Api, stream: str
) -> None:
    with Counting(tables_broker.address) as tables:
        tables.put(stream, numbers(20_000, size=1000))
        batches = tables.read(stream, 0, batch_rows=50)
        next(batches)
        tables_api.DeleteStream(name=stream)
        with pytest.raises(errors.BasculeError) as ended:
            for _ in batches:
                pass
    assert isinstance(ended.value, errors.StreamNotFound | errors.StreamRecreated), repr(ended.value)


def test_a_paused_partition_is_resumed_for_its_reader(tables: FlightConnection, tables_api: Api, stream: str) -> None:
    tables.put(stream, numbers(5))
    tables_api.PauseStream(name=stream)
    everything = tables.offsets()[stream]["partitions"][0]
    assert (everything["paused"], everything["high_watermark"]) == (True, None)
    assert len(read_rows(tables, stream, 0)) == 5
    assert not tables.offsets()[stream]["partitions"][0]["paused"]


GARBAGE = [
    b"",
    b"{",
    b"[]",
    b"\xff\xfe",
    b'{"partition": 0}',
    b'{"stream": 1, "partition": 0}',
    b'{"stream": "s", "partition": -1}',
    b'{"stream": "s", "partition": true}',
    b'{"stream": "s", "partition": 0, "start": "now"}',
    b'{"stream": "s", "partition": 0, "start": 5, "end": 4}',
    b'{"stream": "s", "partition": 0, "end": 99999999999999999999}',
    b'{"stream": "s", "partition": 0, "columns": ["price"]}',
    b'{"stream": "s", "partition": 0, "columns": []}',
    b'{"stream": "s", "partition": 0, "batch_rows": 0}',
    b'{"stream": "s", "partition": 0, "ends": 4}',
    b"[" * 10_000,
    b'{"stream": "' + b"s" * 100_000 + b'"}',
]


@pytest.mark.parametrize("ticket", GARBAGE, ids=range(len(GARBAGE)))
def test_a_ticket_that_makes_no_sense_is_refused_with_what_is_wrong(
    tables_broker: BrokerProcess, ticket: bytes
) -> None:
    with flight.FlightClient(f"grpc://{tables_broker.flight_address}") as client:
        with pytest.raises(flight.FlightServerError, match="INVALID_ARGUMENT: "):
            client.do_get(flight.Ticket(ticket)).read_all()
        with pytest.raises(flight.FlightServerError, match="INVALID_ARGUMENT: "):
            client.get_flight_info(flight.FlightDescriptor.for_command(ticket))
        with pytest.raises(flight.FlightServerError, match="INVALID_ARGUMENT: "):
            list(client.do_action(flight.Action("offsets", ticket or b"[]")))


# ── plain Arrow Flight ───────────────────────────────────────────────────────────────────────────


def test_a_plain_flight_client_finds_describes_and_reads_streams(
    tables_broker: BrokerProcess, tables: FlightConnection, stream: str
) -> None:
    tables.put(stream, numbers(30))
    with flight.FlightClient(f"grpc://{tables_broker.flight_address}") as client:
        listed = {info.descriptor.path[0].decode() for info in client.list_flights()}
        assert stream in listed
        pattern = b'{"pattern": "%s"}' % stream.encode()
        assert [info.descriptor.path for info in client.list_flights(pattern)] == [[stream.encode()]]
        assert client.get_schema(flight.FlightDescriptor.for_path(stream)).schema == table_schema()
        info = client.get_flight_info(flight.FlightDescriptor.for_path(stream))
        assert info.schema == table_schema()
        assert [location.uri.decode() for one in info.endpoints for location in one.locations] == [
            f"grpc://{tables_broker.flight_address}"
        ] * 2
        rows = sum(client.do_get(endpoint.ticket).read_all().num_rows for endpoint in info.endpoints)
        assert rows == 30
        with pytest.raises(flight.FlightServerError, match="STREAM_NOT_FOUND: "):
            client.get_flight_info(flight.FlightDescriptor.for_path("no such stream"))
        prefix = b'{"pattern": "%s*"}' % stream[:-1].encode()
        assert [stream.encode()] in [info.descriptor.path for info in client.list_flights(prefix)]
        with pytest.raises(flight.FlightServerError, match="pattern has 300 characters"):
            list(client.list_flights(b'{"pattern": "%s"}' % (b"(" * 300)))
        assert [action.type for action in client.list_actions()] == ["offsets"]


def test_offsets_by_time_and_sizes(tables: FlightConnection, stream: str) -> None:
    tables.put(stream, numbers(10))
    found = tables.offsets([stream], {stream: {0: 0, 1: 0}})[stream]
    first, second = found["partitions"][0], found["partitions"][1]
    assert (first["log_start"], first["high_watermark"], first["log_end"], first["timestamp_offset"]) == (0, 9, 10, 0)
    assert (second["log_start"], second["high_watermark"], second["log_end"], second["timestamp_offset"]) == (
        0,
        -1,
        0,
        0,
    )
    assert first["size_bytes"] > second["size_bytes"] == 0
    assert abs(first["last_timestamp"] - time.time_ns()) < 60e9
    late = tables.offsets([stream], {stream: {0: first["last_timestamp"] + 1}})[stream]["partitions"][0]
    assert late["timestamp_offset"] == 10
    with pytest.raises(errors.StreamNotFound):
        tables.offsets(["no such stream"])


# ── putting ──────────────────────────────────────────────────────────────────────────────────────


def test_a_put_table_is_published_and_answered_with_offsets(
    tables: FlightConnection, tables_api: Api, stream: str
) -> None:
    headers = pa.array([[("h", b"1")], None, []], pa.map_(pa.string(), pa.binary()))
    rows = pa.table(
        {
            "value": pa.array([b"a", b"b", None], pa.binary()),
            "key": pa.array([b"k", None, b"k"], pa.binary()),
            "headers": headers,
            "partition": pa.array([1, 0, 1], pa.int32()),
        }
    )
    assert tables.put(stream, rows) == [{"batch": 0, "rows": 3, "partitions": [1, 0, 1], "offsets": [0, 0, 1]}]
    first, second = tables_api.read(stream, 1)
    assert (first.key, first.value, first.headers["h"]) == (b"k", b"a", b"1")
    assert (second.key, second.value) == (b"k", b"")


def test_without_a_partition_keys_choose_as_clients_do_and_others_take_turns(
    tables: FlightConnection, stream: str
) -> None:
    keyed = tables.put(stream, pa.table({"value": ["x"] * 4, "key": ["a", "b", "a", "b"]}))
    assert keyed[0]["partitions"] == [zlib.crc32(key) % 2 for key in (b"a", b"b", b"a", b"b")]
    turns = tables.put(stream, pa.table({"value": ["x"] * 4}))
    assert turns[0]["partitions"] == [0, 1, 0, 1]


def test_several_batches_are_answered_one_by_one(tables: FlightConnection, stream: str) -> None:
    answers = tables.put(stream, numbers(10_000, size=100).to_batches(max_chunksize=3_000))
    assert [answer["rows"] for answer in answers] == [3000, 3000, 3000, 1000]
    assert [offset for answer in answers for offset in answer["offsets"]] == list(range(10_000))
    values = [row["value"].rstrip(b".") for row in read_rows(tables, stream, 0, columns=["value"])]
    assert values == [b"%d" % number for number in range(10_000)]


BAD_PUTS = {
    "no value": (pa.table({"key": [b"k"]}), errors.CallerError, "no column `value`"),
    "a column that cannot be given": (pa.table({"value": [b"v"], "offset": [1]}), errors.CallerError, "'offset'"),
    "no such partition": (pa.table({"value": [b"v"], "partition": [7]}), errors.StreamNotFound, "no partition 7"),
    "a value of another kind": (pa.table({"value": [1.5]}), errors.CallerError, "double"),
    "too large": (pa.table({"value": [b"v" * (2 << 20)]}), errors.BasculeError, "exceeds max replication size"),
    "an ack policy that tells nothing": (pa.table({"value": [b"v"]}), errors.CallerError, "ack_policy"),
}


@pytest.mark.parametrize("name", BAD_PUTS)
def test_rows_that_cannot_be_published_are_refused(tables: FlightConnection, stream: str, name: str) -> None:
    rows, kind, text = BAD_PUTS[name]
    policy = "none" if "policy" in name else "all"
    with pytest.raises(kind, match=text):
        tables.put(stream, rows, ack_policy=policy)
    assert read_rows(tables, stream, 0) == []


def test_a_batch_with_made_up_offsets_is_refused(tables: FlightConnection, stream: str) -> None:
    """Arrow itself would follow them out of its memory."""
    ends = pa.py_buffer(b"".join(number.to_bytes(4, "little") for number in (0, 1 << 30, 10)))
    values = pa.Array.from_buffers(pa.binary(), 2, [None, ends, pa.py_buffer(b"ab" * 10)])
    with pytest.raises(errors.CallerError, match="not what its schema says"):
        tables.put(stream, [pa.RecordBatch.from_arrays([values], ["value"])])
    assert read_rows(tables, stream, 0) == []


def test_rows_for_a_readonly_stream_are_refused_and_for_a_paused_one_wake_it(
    tables: FlightConnection, tables_api: Api, stream: str
) -> None:
    tables_api.PauseStream(name=stream)
    tables.put(stream, numbers(3))
    tables_api.SetStreamReadonly(name=stream, readonly=True)
    with pytest.raises(errors.StateError, match="readonly"):
        tables.put(stream, numbers(3))
    assert len(read_rows(tables, stream, 0)) == 3
    with pytest.raises(errors.StreamNotFound):
        tables.put("no-such-stream", numbers(3))


# ── the broker goes on ───────────────────────────────────────────────────────────────────────────


def test_readers_that_do_not_read_cost_little_and_hold_up_nobody(
    tables_broker: BrokerProcess, tables: FlightConnection, tables_api: Api, stream: str
) -> None:
    tables.put(stream, numbers(40_000, size=2_000).to_batches(max_chunksize=5_000))
    before = tables_broker.rss_bytes()
    ticket = flight.Ticket(ReadTicket(stream=stream, partition=0).encode())
    clients = [flight.FlightClient(f"grpc://{tables_broker.flight_address}") for _ in range(8)]
    readers = [client.do_get(ticket) for client in clients]
    for reader in readers:
        assert reader.read_chunk().data.num_rows  # each has begun, and goes no further
    worst = 0.0
    for _ in range(50):
        began = time.monotonic()
        tables_api.publish(stream, b"x")
        worst = max(worst, time.monotonic() - began)
    assert len(read_rows(tables, stream, 0, 39_000, 40_000)) == 1000
    # 8 × 80 MB would be held if it were not for flow control
    assert tables_broker.rss_bytes() - before < 300 << 20
    assert worst < 20
    for reader, client in zip(readers, clients, strict=True):
        reader.cancel()
        client.close()


def test_all_columns_have_a_place_in_the_table() -> None:
    assert tuple(table_schema().names) == COLUMNS
