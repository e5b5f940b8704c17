"""Whatever is wrong with a request, a directory or an option is said by name, and nothing is changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bascule import limits
from bascule.errors import (
    BasculeError,
    CallerError,
    FormatTooNew,
    InvalidConfig,
    NotALog,
    OffsetOutOfRange,
    RecordTooLarge,
)
from bascule.kernels.wire.checksum import crc32c
from bascule.log import LogOptions, LogReader, PartitionLog
from bascule.log.partition.batches import new_batch
from tests.unit.log.log_helpers import (
    Logs,
    batch_positions,
    everything,
    log_files,
    offsets,
    put,
    put_values,
    resealed,
    snapshot,
)

# ── records ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("record", "field", "limit"),
    [
        ({"key": bytes(limits.RECORD_KEY_BYTES_MAX + 1)}, "key", limits.RECORD_KEY_BYTES_MAX),
        ({"value": bytes(limits.RECORD_VALUE_BYTES_MAX + 1)}, "value", limits.RECORD_VALUE_BYTES_MAX),
        ({"headers": [(b"n", b"v")] * (limits.RECORD_HEADERS_MAX + 1)}, "headers", limits.RECORD_HEADERS_MAX),
        (
            {"headers": [(b"n", bytes(limits.RECORD_HEADERS_BYTES_MAX))]},
            "header bytes",
            limits.RECORD_HEADERS_BYTES_MAX,
        ),
        ({"subject": bytes(limits.RECORD_SUBJECT_BYTES_MAX + 1)}, "subject", limits.RECORD_SUBJECT_BYTES_MAX),
        ({"reply": bytes(limits.RECORD_SUBJECT_BYTES_MAX + 1)}, "reply", limits.RECORD_SUBJECT_BYTES_MAX),
    ],
    ids=["key", "value", "number of headers", "bytes of headers", "subject", "reply"],
)
def test_a_record_above_a_limit_is_refused_and_the_batch_stays_usable(
    logs: Logs, record: dict[str, Any], field: str, limit: int
) -> None:
    batch = new_batch()
    batch.add(b"k", b"before")
    with pytest.raises(RecordTooLarge, match=f"{field}.* above the limit of {limit}") as caught:
        batch.add(**{"key": None, "value": None, **record})
    assert caught.value.code == "RECORD_TOO_LARGE"
    assert caught.value.hint is not None
    batch.add(b"k", b"after")
    log = logs.open()
    log.append(batch)
    assert [record.value for record in everything(log)] == [b"before", b"after"]


def test_records_at_their_limits_are_taken(logs: Logs) -> None:
    batch = new_batch()
    batch.add(bytes(limits.RECORD_KEY_BYTES_MAX), b"v", [(b"n", b"v")] * limits.RECORD_HEADERS_MAX, b"s" * 4096)
    log = logs.open()
    log.append(batch)
    found = everything(log)[0]
    assert found.key is not None
    assert len(found.key) == limits.RECORD_KEY_BYTES_MAX
    assert len(found.headers) == limits.RECORD_HEADERS_MAX


def test_an_impossible_timestamp_is_refused_with_nothing_written(logs: Logs) -> None:
    log = logs.open()
    put_values(log, 1)
    before = snapshot(log.directory)
    batch = new_batch()
    batch.add(None, b"x", time_delta=10)
    with pytest.raises((BasculeError, ValueError, OverflowError)):
        log.append(batch, timestamp=(1 << 63) - 5)
    assert snapshot(log.directory) == before
    assert put_values(log, 1) == 1
    assert offsets(log) == [0, 1]


# ── reading ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("committed", [True, False])
def test_negative_offsets_are_refused(logs: Logs, committed: bool) -> None:
    log = logs.open()
    put_values(log, 3)
    with pytest.raises(OffsetOutOfRange, match="-1"):
        log.read(-1, committed=committed)
    with pytest.raises(OffsetOutOfRange, match="-1"):
        log.read_reverse(-1, committed=committed)
    with pytest.raises(CallerError, match="-1"):
        LogReader(log, -1, committed=committed)


@pytest.mark.parametrize("bytes_max", [0, -1])
def test_a_read_of_no_bytes_is_refused(logs: Logs, bytes_max: int) -> None:
    log = logs.open()
    put_values(log, 3)
    with pytest.raises(CallerError, match="bytes_max"):
        log.read(0, bytes_max=bytes_max, committed=False)
    with pytest.raises(CallerError, match="bytes_max"):
        log.read_reverse(0, bytes_max=bytes_max, committed=False)


def test_a_read_beyond_the_end_is_refused_and_names_the_end(logs: Logs) -> None:
    log = logs.open()
    put_values(log, 3)
    assert log.read(3, committed=False) is None
    with pytest.raises(OffsetOutOfRange) as caught:
        log.read(4, committed=False)
    assert "read from 3" in str(caught.value)
    assert log.read(1 << 62) is None, "a committed reader waits there"


def test_a_reverse_read_beyond_the_end_begins_at_the_end(logs: Logs) -> None:
    log = logs.open()
    put_values(log, 3)
    found = log.read_reverse(1 << 62, committed=False)
    assert found is not None
    assert found.records()[-1].offset == 2


# ── directories ──────────────────────────────────────────────────────────────────────────────────


def test_an_empty_path_is_refused() -> None:
    with pytest.raises(CallerError, match="empty"):
        PartitionLog("")


def test_a_directory_that_is_not_a_log_is_refused_and_left_alone(logs: Logs) -> None:
    folder = logs.root / "log"
    folder.mkdir()
    (folder / "thesis.doc").write_text("years of work", "utf-8")
    before = snapshot(folder)
    log = logs.open()
    with pytest.raises(NotALog, match=r"thesis\.doc"):
        log.open()
    with pytest.raises(NotALog):
        put_values(log, 1)
    assert snapshot(folder) == before


def test_a_file_in_the_place_of_the_directory_is_refused(logs: Logs) -> None:
    (logs.root / "log").write_text("a file", "utf-8")
    with pytest.raises(NotALog, match="is a file"):
        logs.open().open()
    assert (logs.root / "log").read_text("utf-8") == "a file"


def test_files_of_somebody_else_beside_the_segments_do_not_matter(logs: Logs) -> None:
    log = logs.open()
    put_values(log, 3)
    log.close()
    note = Path(log.directory, "NOTE.txt")
    note.write_text("do not delete", "utf-8")
    assert offsets(logs.reopen(log)) == [0, 1, 2]
    assert note.exists()


@pytest.mark.parametrize("name", ["lost.index", "backup.index", "0.log", "notes.log.cleaned", "a.tmp"])
def test_files_with_names_like_ours_do_not_keep_a_log_from_opening(logs: Logs, name: str) -> None:
    log = logs.open()
    put_values(log, 3)
    log.close()
    Path(log.directory, name).write_bytes(b"whatever")
    assert offsets(logs.reopen(log)) == [0, 1, 2]


# ── formats of a later version ───────────────────────────────────────────────────────────────────


def make_future(log: PartitionLog, number: int) -> None:
    """Turn the batch with this number of the first segment into one of version 3, intact."""
    path = log_files(log)[0]
    positions = [*batch_positions(path), path.stat().st_size]
    data = bytearray(path.read_bytes())
    batch = data[positions[number] : positions[number + 1]]
    batch[10] = 3
    data[positions[number] : positions[number + 1]] = resealed(batch)
    path.write_bytes(data)


@pytest.mark.parametrize("number", [0, 2, 4])
def test_a_batch_of_a_later_version_is_not_taken_for_damage(logs: Logs, number: int) -> None:
    log = logs.open()
    put_values(log, 5)
    log.close()
    make_future(log, number)
    Path(log.directory, "checkpoint").unlink()
    before = snapshot(log.directory)
    with pytest.raises(FormatTooNew):
        logs.reopen(log).open()
    assert snapshot(log.directory) == before


@pytest.mark.parametrize("number", [3, 4])
def test_a_batch_of_a_later_version_is_not_cut_off_as_a_torn_tail(logs: Logs, number: int) -> None:
    log = logs.open()
    put_values(log, 3)
    log.settle()
    put_values(log, 2)
    crashed = logs.after_crash(log)
    make_future(crashed, number)
    before = snapshot(crashed.directory)
    with pytest.raises(FormatTooNew):
        crashed.open()
    assert snapshot(crashed.directory) == before


def test_reading_a_batch_of_a_later_version_says_so(logs: Logs) -> None:
    log = logs.open()
    put_values(log, 5)
    log.close()
    make_future(log, 2)
    log = logs.reopen(log)
    before = snapshot(log.directory)
    with pytest.raises(FormatTooNew, match="later format"):
        everything(log)
    assert snapshot(log.directory) == before


def test_a_damaged_version_byte_is_damage_and_not_the_future(logs: Logs) -> None:
    log = logs.open()
    put_values(log, 5)
    log.close()
    path = log_files(log)[0]
    data = bytearray(path.read_bytes())
    data[batch_positions(path)[2] + 10] = 2
    path.write_bytes(data)
    Path(log.directory, "checkpoint").unlink()
    log = logs.reopen(log)
    assert [damage.first_offset for damage in log.open().damage] == [2]


@pytest.mark.parametrize("version", [2, 99, "2"])
def test_a_checkpoint_of_a_later_version_is_refused_with_nothing_changed(logs: Logs, version: object) -> None:
    log = logs.open(segment_bytes_max=100)
    put_values(log, 5)
    log.close()
    line = json.dumps({"version": version, "recovery_point": 0}).encode()
    Path(log.directory, "checkpoint").write_bytes(b"%s\n%08x\n" % (line, crc32c(line)))
    Path(log.directory, f"{0:020d}.log.cleaned").write_bytes(b"leftover")
    before = snapshot(log.directory)
    with pytest.raises(FormatTooNew, match="version"):
        logs.reopen(log).open()
    assert snapshot(log.directory) == before


@pytest.mark.parametrize(
    "content",
    [
        {"version": 1, "recovery_point": "many"},
        {"version": 1, "recovery_point": -5},
        {"version": 1, "recovery_point": None},
        {"version": 1, "high_watermark": 1.5},
        {"version": 1, "active_base": [1]},
        {"version": 1, "log_start_offset": "x"},
        {"version": 1, "cleaned_to": {}},
        {"version": 1, "recovery_point": 1 << 70},
        {"recovery_point": 3},
        [1, 2, 3],
        "text",
        None,
    ],
)
def test_a_checkpoint_with_a_good_checksum_and_bad_content_is_no_checkpoint(logs: Logs, content: object) -> None:
    log = logs.open(segment_bytes_max=150)
    put_values(log, 5)
    log.close()
    line = json.dumps(content).encode()
    Path(log.directory, "checkpoint").write_bytes(b"%s\n%08x\n" % (line, crc32c(line)))
    log = logs.reopen(log)
    assert offsets(log) == [0, 1, 2, 3, 4]
    assert put_values(log, 1) == 5


# ── options ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("segment_bytes_max", 0),
        ("segment_bytes_max", -1),
        ("segment_bytes_max", limits.SEGMENT_BYTES_MAX + 1),
        ("segment_bytes_max", 1.5),
        ("segment_bytes_max", "1GB"),
        ("segment_bytes_max", None),
        ("segment_age_max_ns", -1),
        ("retention_age_max_ns", -1),
        ("retention_age_max_ns", 1 << 63),
        ("retention_records_max", -1),
        ("retention_bytes_max", -1),
        ("compact_min_lag_ns", -1),
        ("compact_tombstone_retention_ns", -1),
        ("compact_memory_bytes", 4_095),
        ("sync", "sometimes"),
        ("sync", 1),
        ("compression", "lz4"),
        ("compression", ""),
    ],
)
def test_a_bad_option_is_named_with_its_value(name: str, value: object) -> None:
    with pytest.raises(InvalidConfig) as caught:
        LogOptions(**{name: value})  # type: ignore[arg-type]
    assert name in str(caught.value)
    assert repr(value) in str(caught.value)
    assert caught.value.hint


def test_the_limits_of_options_are_taken() -> None:
    options = LogOptions(segment_bytes_max=limits.SEGMENT_BYTES_MAX, retention_age_max_ns=(1 << 63) - 1)
    assert options.retention.age_max_ns == (1 << 63) - 1
    assert LogOptions(compact_memory_bytes=4_096).compact_memory_bytes == 4_096


def test_the_largest_retention_age_deletes_nothing(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=1, retention_age_max_ns=(1 << 63) - 1)
    put(log, *[(None, b"x")] * 3)
    from bascule.log.cleaning.cleaner import apply_retention

    assert apply_retention(log).deleted == []
