"""Files of a log in the hands of a reader on the same machine: it finds what a DoGet finds, or gives up before it leaves a row out."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from bascule.broker.flight.local_reads import LocalReads
from bascule.broker.flight.reads import Read
from bascule.broker.flight.service import FlightGate
from bascule.client.arrow import local
from bascule.client.arrow.local import NoShortCut, read_local
from bascule.flight.schema import schema_of
from bascule.flight.tickets import ReadTicket
from bascule.log import PartitionLog
from bascule.log.cleaning.cleaner import apply_retention
from bascule.log.cleaning.compactor import compact
from bascule.log.disk.master_keys import MasterKeys
from bascule.log.partition.file_ranges import open_ranges
from bascule.security.authorization import Authorizer
from bascule.security.identities import Identities
from tests.unit.log.log_helpers import (
    ONE_RECORD_PER_SEGMENT,
    Logs,
    batch_positions,
    commit_all,
    log_files,
    put,
    put_batch,
)

COLUMNS = ("key", "value", "offset", "timestamp", "stream", "leaderEpoch")


class Served:
    """A broker's end that has one partition, `s`/0 with the id 7."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self.gate = FlightGate(self._loop, Identities(None))
        self.partition = SimpleNamespace(id=0, paused=False, leader="me")
        stream = SimpleNamespace(name="s", id=7, partition=lambda number: None if number else self.partition)
        self._led = SimpleNamespace(log=None, stream_id=7)
        sources = SimpleNamespace(
            authorizer=Authorizer.disabled(),
            controller=SimpleNamespace(server_id="me", metadata=SimpleNamespace(streams={"s": stream})),
            partitions=SimpleNamespace(led=lambda _name, _number: self._led),
        )
        self.gate.open(cast(Any, sources))
        self.reads = LocalReads(self.gate)

    def serve(self, log: PartitionLog) -> None:
        self._led.log = log

    def stop(self) -> None:
        self.reads.stop()
        self._loop.close()

    def by_files(self, log: PartitionLog, start: int, end: int, **fields: Any) -> Iterator[tuple[int, pa.RecordBatch]]:
        self.serve(log)
        return read_local(self.reads.name, _ticket(**fields), start, end)

    def by_batches(self, log: PartitionLog, start: int, end: int, **fields: Any) -> pa.Table:
        local = cast(Any, SimpleNamespace(log=log))
        read = Read(cast(Any, None), self.gate, _ticket(start=start, end=end, **fields), local, lambda: False)
        return _table(batch for batch, _ in read.batches())


def _ticket(**fields: Any) -> ReadTicket:
    return ReadTicket(stream="s", partition=0, columns=COLUMNS, **{"stream_id": 7, "batch_rows": 4, **fields})


def _table(batches: Iterator[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(list(batches), schema_of(COLUMNS))


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def _no_file_stays_open() -> Iterator[None]:
    """But those of the log itself, which its pool closes."""
    yield
    names = [_name_of(path) for path in Path("/proc/self/fdinfo").iterdir()]
    assert [name for name in names if name] == []


def _name_of(info: Path) -> str:
    """A log's file that is open for reading only, as readers have it; \"\" for everything else."""
    try:
        flags = next(int(line.split()[1], 8) for line in info.read_text().splitlines() if line.startswith("flags"))
        name = str((info.parent.parent / "fd" / info.name).readlink())
    except OSError:
        return ""
    return name if flags & os.O_ACCMODE == os.O_RDONLY and ".log" in name else ""


def filled(logs: Logs, **options: Any) -> PartitionLog:
    """40 records in batches of one to four, in several segments."""
    log = logs.open(**{"segment_bytes_max": 300, **options})
    number = 0
    for size in (1, 2, 3, 4) * 4:
        put_batch(
            log, *((None if each % 3 else b"k%d" % (each % 5), b"%d" % each) for each in range(number, number + size))
        )
        number += size
    commit_all(log)
    return log


def test_every_range_is_what_a_doget_gives(logs: Logs, served: Served) -> None:
    log = filled(logs)
    assert len(log_files(log)) > 3
    for start in range(0, 40, 3):
        for end in range(start + 1, 41, 4):
            found = list(served.by_files(log, start, end))
            assert _table(batch for _, batch in found) == served.by_batches(log, start, end)
            assert found[-1][0] == end


def test_each_batch_says_up_to_where_the_range_is_covered(logs: Logs, served: Served) -> None:
    covered = 5
    for said, batch in served.by_files(filled(logs), 5, 33):
        assert batch["offset"].to_pylist() == list(range(covered, said))
        assert batch.num_rows <= 4
        covered = said
    assert covered == 33


def test_more_files_than_are_handed_over_at_once(logs: Logs, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bascule.limits.FLIGHT_LOCAL_FILES", 2)
    log = filled(logs, segment_bytes_max=ONE_RECORD_PER_SEGMENT)
    found = _table(batch for _, batch in served.by_files(log, 0, 40))
    assert found == served.by_batches(log, 0, 40)
    load = served.gate.load
    assert load.rows == 80  # by files and by batches


def test_a_batch_larger_than_what_is_read_at_once(logs: Logs, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bascule.limits.FLIGHT_READ_BYTES", 100)
    log = filled(logs)
    put_batch(log, *((b"large", b"x" * 500) for _ in range(5)))
    put(log, (b"small", b"y"))
    commit_all(log)
    for start in range(0, 46, 5):
        assert _table(batch for _, batch in served.by_files(log, start, 46)) == served.by_batches(log, start, 46)


def test_holes_that_compaction_left_are_no_loss(logs: Logs, served: Served) -> None:
    log = filled(logs, compact=True)
    compact(log)
    put(log, (b"k1", b"late"))
    commit_all(log)
    whole = served.by_batches(log, 0, 41)
    assert whole.num_rows < 41
    for start in range(0, 41, 2):
        for end in range(start + 1, 42):
            found: list[pa.RecordBatch] = []
            position = start
            try:
                for said, batch in served.by_files(log, start, end):
                    position = said
                    found.append(batch)
            except NoShortCut:
                assert position < end  # the hole is at the end, and may as well be damage: the broker knows
                found += served.by_batches(log, position, end).to_batches()
            assert _table(iter(found)) == served.by_batches(log, start, end)


@pytest.mark.parametrize("read_bytes", [1 << 20, 100])
@pytest.mark.parametrize("mask", [0x41, 0xFF, None])
def test_damage_never_loses_or_changes_a_row(
    logs: Logs, served: Served, monkeypatch: pytest.MonkeyPatch, mask: int | None, read_bytes: int
) -> None:
    """Whichever byte is wrong: rows come in order and as they were, and the range is covered only if they all came."""
    monkeypatch.setattr("bascule.limits.FLIGHT_READ_BYTES", read_bytes)
    log = filled(logs)
    right = served.by_batches(log, 3, 37)
    gave_up = 0
    for path in log_files(log):
        good = path.read_bytes()
        for place in range(0, len(good), 5):
            wrong = 0 if mask is None else good[place] ^ mask
            path.write_bytes(good[:place] + bytes([wrong]) + good[place + 1 :])
            covered = 3
            found: list[pa.RecordBatch] = []
            try:
                for said, batch in served.by_files(log, 3, 37):
                    covered = said
                    found.append(batch)
            except NoShortCut:
                gave_up += 1
            assert _table(iter(found)) == right.slice(0, covered - 3)
        path.write_bytes(good)
    assert gave_up > 50
    assert _table(batch for _, batch in served.by_files(log, 3, 37)) == right


@pytest.mark.parametrize("read_bytes", [1 << 20, 100])
def test_a_batch_in_the_place_of_another_is_given_up(
    logs: Logs, served: Served, monkeypatch: pytest.MonkeyPatch, read_bytes: int
) -> None:
    monkeypatch.setattr("bascule.limits.FLIGHT_READ_BYTES", read_bytes)
    log = logs.open()
    put(log, *((b"k", b"%d" % number) for number in range(9)))
    commit_all(log)
    path = log_files(log)[0]
    places = [*batch_positions(path), path.stat().st_size]
    good = path.read_bytes()
    path.write_bytes(good[: places[4]] + good[places[5] : places[6]] + good[places[5] :])
    with pytest.raises(NoShortCut):
        list(served.by_files(log, 0, 9, batch_rows=1))


def test_a_file_that_was_cut_back_is_given_up(logs: Logs, served: Served) -> None:
    log = filled(logs)
    reading = served.by_files(log, 0, 40)
    first, _ = next(reading)
    for path in log_files(log):
        os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(NoShortCut):
        list(reading)
    assert first == 4


def test_what_retention_removes_meanwhile_can_still_be_read(logs: Logs, served: Served) -> None:
    log = filled(logs, retention_records_max=3)
    reading = served.by_files(log, 0, 40)
    found = [next(reading)[1]]
    apply_retention(log)
    assert log.log_start_offset > 30
    found += [batch for _, batch in reading]
    assert _table(iter(found))["offset"].to_pylist() == list(range(40))
    with pytest.raises(NoShortCut, match="refused"):  # who comes now is told by a DoGet what is missing
        list(served.by_files(log, 0, 40))


def test_nothing_can_be_written_through_what_is_handed_over(logs: Logs) -> None:
    ranges = open_ranges(filled(logs), 0, 40, 16)
    assert len(ranges.files) > 3
    for each in ranges.files:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.pwrite(each.handle, b"x", 0)
    ranges.close()


def test_what_is_not_committed_is_not_handed_over(logs: Logs, served: Served) -> None:
    log = filled(logs)
    put(log, (b"k", b"uncommitted"))
    assert _table(batch for _, batch in served.by_files(log, 38, 40))["offset"].to_pylist() == [38, 39]
    with pytest.raises(NoShortCut, match="refused"):
        list(served.by_files(log, 38, 41))


@pytest.mark.parametrize(
    "what", ["compressed", "encrypted", "paused", "led elsewhere", "created again", "stopping", "closed"]
)
def test_what_only_a_doget_can_do_is_refused(logs: Logs, served: Served, what: str) -> None:
    sealed: dict[str, dict[str, Any]] = {"compressed": {"compression": "zstd"}, "encrypted": {"encryption": True}}
    log = filled(logs, keys=MasterKeys(b"0123456789abcdef"), **sealed.get(what, {}))
    served.partition.paused = what == "paused"
    served.partition.leader = "somebody" if what == "led elsewhere" else "me"
    if what == "stopping":
        served.gate.close()
    if what == "closed":
        log.close()
    with pytest.raises(NoShortCut, match="refused"):
        list(served.by_files(log, 0, 40, stream_id=8 if what == "created again" else 7))


def test_batches_that_were_sealed_before_the_option_changed_are_given_up(logs: Logs, served: Served) -> None:
    log = filled(logs, compression="zstd", segment_bytes_max=4000)
    put_batch(log, *((b"k", b"x" * 100) for _ in range(5)))
    log.close()
    log = logs.open(segment_bytes_max=4000)
    commit_all(log)
    with pytest.raises(NoShortCut, match="sealed"):
        list(served.by_files(log, 0, 45))


def test_a_broker_on_another_machine_is_not_found() -> None:
    with pytest.raises(NoShortCut, match="no broker answers here"):
        local.ask("bascule-that-there-is-not", _ticket(start=0, end=1))


def test_nonsense_is_refused_and_the_next_is_served(logs: Logs, served: Served) -> None:
    for nonsense in (b"", b"\xff", b"[]", b"{}", b'{"stream": 3}'):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
            caller.settimeout(30)
            caller.connect(f"\0{served.reads.name}")
            if nonsense:
                caller.send(nonsense)
                assert b"refused" in caller.recv(4096)
    assert len(list(served.by_files(filled(logs), 0, 40))) >= 10
