"""`bascule log …` as a person uses it: real processes, real files, pipes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bascule.log import LogOptions, PartitionLog, new_batch

COMMAND = [sys.executable, "-m", "bascule.cli.main"]


def bascule(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False, cwd=cwd)


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    directory = tmp_path / "streams" / "orders" / "0"
    log = PartitionLog(str(directory), LogOptions(segment_bytes_max=400, compression="zstd"))
    for number in range(10):
        batch = new_batch()
        batch.add(b"key-%d" % number, b"value %d " % number * 30, [(b"trace", b"7f")], subject=b"orders.new")
        log.append(batch, leader_epoch=1, timestamp=1_700_000_000_000_000_000 + number)
    log.close()
    return directory


def damage(partition: Path) -> None:
    path = sorted(partition.glob("*.log"))[0]
    content = bytearray(path.read_bytes())
    content[70] ^= 1
    path.write_bytes(content)


def snapshot(directory: Path) -> dict[Path, tuple[bytes, int]]:
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in directory.rglob("*") if path.is_file()}


def test_verify_says_that_a_log_is_good(partition: Path) -> None:
    done = bascule("log", "verify", str(partition))
    assert (done.returncode, done.stderr) == (0, "")
    assert "good" in done.stdout
    assert "10 records" in done.stdout


def test_verify_names_the_damage_and_exits_with_4(partition: Path) -> None:
    damage(partition)
    done = bascule("log", "verify", str(partition.parents[2]))
    assert done.returncode == 4
    assert "bad checksum at byte 0" in done.stdout
    assert "offsets 0 to" in done.stdout
    assert "1 damaged place" in done.stderr
    assert "Traceback" not in done.stderr


def test_looking_changes_nothing(partition: Path) -> None:
    damage(partition)
    before = snapshot(partition)
    for arguments in (["verify"], ["inspect"], ["inspect", "--batches"], ["inspect", "--records"]):
        bascule("log", *arguments, str(partition))
    assert snapshot(partition) == before


def test_inspect_shows_segments_batches_and_records(partition: Path) -> None:
    assert "00000000000000000000.log" in bascule("log", "inspect", str(partition)).stdout
    batches = bascule("log", "inspect", str(partition), "--batches").stdout
    assert "offsets=0–0" in batches
    assert "zstd" in batches
    records = bascule("log", "inspect", str(partition), "--records", "--offset", "3", "--limit", "2")
    lines = records.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["offset=3", "offset=4"]
    assert "key=key-3" in lines[0]
    assert "2023-11-14T22:13:20" in lines[0]
    assert "more" in records.stderr


def test_json_is_for_programs(partition: Path) -> None:
    (report,) = json.loads(bascule("log", "verify", str(partition), "--json").stdout)
    assert report["damaged"] is False
    assert sum(segment["records"] for segment in report["segments"]) == 10
    lines = bascule("log", "inspect", str(partition), "--records", "--json").stdout.splitlines()
    assert [json.loads(line)["offset"] for line in lines] == list(range(10))
    assert json.loads(lines[0])["headers"] == {"trace": "7f"}


@pytest.mark.parametrize("what", ["missing", "empty", "file"])
def test_what_is_no_log_is_named(tmp_path: Path, what: str) -> None:
    place = tmp_path / what
    if what == "empty":
        place.mkdir()
    elif what == "file":
        place.write_text("hello")
    done = bascule("log", "verify", str(place))
    assert done.returncode == 4
    assert "error:" in done.stderr
    assert "hint:" in done.stderr
    assert "Traceback" not in done.stderr


def test_records_of_several_partitions_need_a_choice(partition: Path) -> None:
    other = PartitionLog(str(partition.parent / "1"))
    other.open()
    other.close()
    done = bascule("log", "inspect", str(partition.parents[2]), "--records")
    assert done.returncode == 4
    assert "2 partitions" in done.stderr


def test_notes_tell_what_the_next_open_will_do(partition: Path) -> None:
    (partition / "checkpoint").unlink()
    (partition / "00000000000000000000.index").unlink()
    (partition / "00000000000000000000.log.cleaned").write_bytes(b"")
    done = bascule("log", "verify", str(partition))
    assert done.returncode == 0
    assert "checkpoint" in done.stdout
    assert "index" in done.stdout
    assert "interrupted" in done.stdout
