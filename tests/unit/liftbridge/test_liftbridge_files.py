"""The files of Go Liftbridge: good ones are read whole, and damaged ones are refused with their place."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.errors import OperatorError
from bascule.liftbridge.bolt import BoltFile
from bascule.liftbridge.directory import LiftbridgeDirectory
from bascule.liftbridge.msgpack import unpack
from bascule.liftbridge.protobuf import Fields
from bascule.liftbridge.raft_state import read_streams
from bascule.liftbridge.segments import SegmentEnd, read_segments
from tests.support.liftbridge_files import (
    GoMessage,
    GoStream,
    create_stream,
    delete_stream,
    message_set,
    set_readonly,
    write_bolt,
    write_partition,
    write_raft,
    write_server,
    write_snapshot,
)

# ── segments ─────────────────────────────────────────────────────────────────────────────────────


def segments_of(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))


def test_messages_are_read_with_all_fields(tmp_path: Path) -> None:
    written = [
        GoMessage(3, b"value", b"key", 10, 4, {b"a": b"1", b"b": b""}),
        GoMessage(4, None, None, 11, 4),
        GoMessage(9, b"", b"", 9, 7),
    ]
    directory = write_partition(tmp_path, "s", 0, {3: written[:2], 9: written[2:], 10: []})
    found = list(read_segments(segments_of(directory)))
    assert [(one.offset, one.timestamp, one.leader_epoch) for one in found] == [(3, 10, 4), (4, 11, 4), (9, 9, 7)]
    assert [(one.key, one.value) for one in found] == [(b"key", b"value"), (None, b""), (b"", b"")]
    assert found[0].headers == ((b"a", b"1"), (b"b", b""))


@pytest.mark.parametrize("kept", [0, 1, 27, 28, 40, -1])
def test_an_interrupted_write_at_the_end_is_cut(tmp_path: Path, kept: int) -> None:
    directory = write_partition(tmp_path, "s", 0, {0: [GoMessage(0, b"x"), GoMessage(1, b"y")]})
    (log,) = segments_of(directory)
    torn = message_set(GoMessage(2, b"z" * 50))[:kept]
    log.write_bytes(log.read_bytes() + torn)
    end = SegmentEnd()
    assert [one.offset for one in read_segments([log], end)] == [0, 1]
    assert end.torn_bytes == len(torn)


def test_every_damaged_byte_of_a_message_is_an_error_with_its_place(tmp_path: Path) -> None:
    directory = write_partition(tmp_path, "s", 0, {0: [GoMessage(n, b"value", b"key") for n in range(3)]})
    (log,) = segments_of(directory)
    good = log.read_bytes()
    start = len(message_set(GoMessage(0, b"value", b"key")))
    for position in range(start + 24, 2 * start):  # size, checksum and everything that it covers
        damaged = bytearray(good)
        damaged[position] ^= 0x80
        log.write_bytes(damaged)
        with pytest.raises(OperatorError, match=f"{log} is damaged at byte {start}.*after offset 0"):
            list(read_segments([log]))


def test_an_offset_that_goes_back_is_an_error(tmp_path: Path) -> None:
    directory = write_partition(tmp_path, "s", 0, {0: [GoMessage(1), GoMessage(1)]})
    with pytest.raises(OperatorError, match="its offset is 1"):
        list(read_segments(segments_of(directory)))


def test_an_incomplete_message_before_the_last_segment_is_an_error(tmp_path: Path) -> None:
    directory = write_partition(tmp_path, "s", 0, {0: [GoMessage(0, b"x")], 1: [GoMessage(1)]})
    first, _ = segments_of(directory)
    first.write_bytes(first.read_bytes()[:-1])
    with pytest.raises(OperatorError, match="damaged at byte 0"):
        list(read_segments(segments_of(directory)))


def test_a_lying_field_length_is_an_error(tmp_path: Path) -> None:
    from bascule.kernels.wire.checksum import crc32c

    rest = struct.pack(">bbi", 1, 0, 1000) + b"short"
    message = struct.pack(">I", crc32c(rest)) + rest
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(struct.pack(">qqQi", 0, 0, 0, len(message)) + message)
    with pytest.raises(OperatorError, match="its fields do not fit its size"):
        list(read_segments([path]))


# ── Raft state ───────────────────────────────────────────────────────────────────────────────────

ORDERS = GoStream("orders", "shop.orders", 2, {3: 5000, 8: 1, 11: 2, 13: 0}, group="workers")


def opened(root: Path) -> LiftbridgeDirectory:
    return LiftbridgeDirectory.open(write_server(root))


def test_streams_come_from_the_log_of_operations(tmp_path: Path) -> None:
    many = [create_stream(GoStream(f"s{n}", f"subject.{n}")) for n in range(40)]
    write_raft(
        tmp_path,
        [
            create_stream(ORDERS),
            *many,
            delete_stream("s7"),
            set_readonly("s8", [], True),
            set_readonly("s9", [0], True),
        ],
    )
    found = read_streams(opened(tmp_path))
    assert found.index == 46
    assert set(found.streams) == {"orders", *(f"s{n}" for n in range(40) if n != 7)}
    orders = found.streams["orders"]
    assert (orders.subject, orders.partitions, orders.group) == ("shop.orders", 2, "workers")
    assert orders.replicas == {0: ("go-1",), 1: ("go-1",)}
    assert orders.created_ns == 1_500_000_000_000_000_000
    overrides = orders.overrides
    assert (overrides.retention_max_age_ms, overrides.compact_enabled, overrides.encryption) == (5000, True, False)
    assert (overrides.min_insync_replicas, overrides.segment_max_bytes) == (2, None)
    assert found.streams["s8"].readonly == found.streams["s9"].readonly == frozenset({0})
    assert found.streams["s10"].readonly == frozenset()


def test_the_latest_snapshot_is_the_beginning(tmp_path: Path) -> None:
    write_snapshot(tmp_path, 10, [GoStream("old", "old")])
    write_snapshot(tmp_path, 20, [ORDERS, GoStream("closed", "closed", readonly=True)])
    write_raft(tmp_path, [create_stream(GoStream("new", "new"))], first_index=21)
    found = read_streams(opened(tmp_path))
    assert (set(found.streams), found.index) == ({"orders", "closed", "new"}, 21)
    assert found.streams["closed"].readonly == {0}


def test_a_damaged_snapshot_is_not_used(tmp_path: Path) -> None:
    write_snapshot(tmp_path, 20, [ORDERS], crc=1)
    write_raft(tmp_path, [], first_index=21)
    with pytest.raises(OperatorError, match=r"the checksum of .*state\.bin is wrong"):
        read_streams(opened(tmp_path))


def test_missing_entries_are_noticed(tmp_path: Path) -> None:
    write_snapshot(tmp_path, 20, [ORDERS])
    write_raft(tmp_path, [delete_stream("orders")], first_index=25)
    with pytest.raises(OperatorError, match="the entries 21 to 24 are missing"):
        read_streams(opened(tmp_path))


def test_a_missing_database_is_named(tmp_path: Path) -> None:
    (write_server(tmp_path) / "streams").mkdir()
    with pytest.raises(OperatorError, match=r"raft.db is missing") as raised:
        read_streams(LiftbridgeDirectory.open(tmp_path))
    assert "--without-metadata" in (raised.value.hint or "")


def test_a_large_value_spans_pages(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    write_bolt(path, [(b"%08d" % n, bytes([n]) * 10_000) for n in range(9)])
    assert list(BoltFile(path.read_bytes()).bucket(b"logs")) == [(b"%08d" % n, bytes([n]) * 10_000) for n in range(9)]
    assert list(BoltFile(path.read_bytes()).bucket(b"conf")) == [(b"CurrentTerm", struct.pack(">Q", 2))]
    assert list(BoltFile(path.read_bytes()).bucket(b"none")) == []


def test_a_torn_meta_page_falls_back_to_the_other(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    write_bolt(path, [(b"k", b"v")])
    for page in (0, 4096):
        data = bytearray(path.read_bytes())
        data[page + 40] ^= 1
        assert list(BoltFile(bytes(data)).bucket(b"logs")) == [(b"k", b"v")]
    with pytest.raises(ValueError, match="no valid meta page"):
        BoltFile(bytes(8192))


# ── any bytes ────────────────────────────────────────────────────────────────────────────────────


@given(st.binary(max_size=200))
def test_no_bytes_break_the_parsers(data: bytes) -> None:
    for parse in (unpack, Fields, lambda one: list(BoltFile(one).bucket(b"logs"))):
        try:
            parse(data)
        except ValueError:
            continue


def test_a_damaged_database_never_ends_in_another_error(tmp_path: Path) -> None:
    streams = [create_stream(GoStream(f"s{n}", "x")) for n in range(9)]
    write_raft(tmp_path, streams)
    directory, path = opened(tmp_path), tmp_path / "raft" / "raft.db"
    good, rng = path.read_bytes(), random.Random(1)
    for _ in range(300):
        data = bytearray(good)
        # Anywhere, or in the heads of pages and elements, which lead to other places.
        place = (
            rng.randrange(len(data))
            if rng.random() < 0.5
            else rng.randrange(len(data) // 4096) * 4096 + rng.randrange(80)
        )
        data[place] ^= rng.randrange(1, 256)
        path.write_bytes(data)
        try:
            assert len(read_streams(directory).streams) <= 9
        except OperatorError as error:
            assert "cannot be read" in error.message
