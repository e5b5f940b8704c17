"""The audit log of a server: its file, restarts, rotation, failures and bounds."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule import limits
from bascule.errors import OperatorError
from bascule.net.grpc.server import Peer
from bascule.security.audit import file_writer
from bascule.security.audit.checking import AuditReport, verify_lines
from bascule.security.audit.file_writer import AuditFileWriter
from bascule.security.audit.files import HEAD_FILE, AuditFile, AuditHead
from bascule.security.audit.log import AuditLog
from bascule.security.audit.queue import AuditQueue
from bascule.security.audit.records import LOST, AuditChain, AuditEntry, parse_record
from bascule.security.audit.refusals import REFUSALS_PER_CLIENT_MAX
from tests.support.waiting import eventually

KEY = b"k" * 16
ALICE = Peer("10.0.0.1:5", "alice")


class WrittenLog(AuditLog):
    """A log with the writer of its file."""

    def __init__(self, directory: Path) -> None:
        self.queue = AuditQueue()
        super().__init__(self.queue)
        self.writer = AuditFileWriter(directory / "audit.jsonl", directory, "a", KEY, self, self.queue)
        self.reopen, self.close = self.writer.reopen, self.writer.close


def opened(directory: Path) -> WrittenLog:
    return WrittenLog(directory)


def records(file: Path) -> list[dict[str, Any]]:
    found = [parse_record(line) for line in file.read_bytes().splitlines()]
    assert None not in found
    return [one for one in found if one is not None]


def verified(directory: Path, *names: str) -> AuditReport:
    head = AuditHead.read(directory / HEAD_FILE)
    assert head is not None
    lines = [line for name in names or ("audit.jsonl",) for line in (directory / name).read_bytes().splitlines()]
    return verify_lines(lines, [KEY], head.hash)


def test_records_are_written_and_restarts_continue_the_chain(tmp_path: Path) -> None:
    for _ in range(3):
        log = opened(tmp_path)
        log.event("StartServer")
        log.called(ALICE, "CreateStream", "orders", "OK", "")
        log.close()
    report = verified(tmp_path)
    assert report.is_whole
    assert report.has_head
    assert (report.records, len(report.trails[0].boots)) == (6, 3)
    last = records(tmp_path / "audit.jsonl")[-1]
    assert (last["principal"], last["address"], last["number"]) == ("alice", "10.0.0.1:5", 2)
    assert stat.S_IMODE((tmp_path / "audit.jsonl").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / HEAD_FILE).stat().st_mode) == 0o600


def test_records_removed_at_the_end_are_found_after_a_restart(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for name in ("one", "two", "three"):
        log.called(ALICE, "DeleteStream", name, "OK", "")
    log.close()
    file = tmp_path / "audit.jsonl"
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1]))
    assert not verified(tmp_path).has_head
    log = opened(tmp_path)
    log.event("StartServer")
    log.close()
    assert not verified(tmp_path).is_whole


def test_a_crash_between_file_and_head_is_no_fault(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.event("StartServer")
    log.close()
    old = (tmp_path / HEAD_FILE).read_bytes()
    log = opened(tmp_path)
    log.event("StartServer")
    log.close()
    (tmp_path / HEAD_FILE).write_bytes(old)
    log = opened(tmp_path)
    log.event("StartServer")
    log.close()
    assert verified(tmp_path).is_whole


def test_a_torn_line_is_removed_at_the_start(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.event("StartServer")
    log.close()
    with (tmp_path / "audit.jsonl").open("ab") as file:
        file.write(b'{"action":"Cre')
    log = opened(tmp_path)
    log.event("StartServer")
    log.close()
    report = verified(tmp_path)
    assert report.is_whole
    assert report.records == 2


def test_the_chain_goes_on_after_a_rotation(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.event("StartServer")
    log.close()
    log = opened(tmp_path)
    (tmp_path / "audit.jsonl").rename(tmp_path / "old")
    log.reopen()
    log.event("Reload")
    log.close()
    assert len(records(tmp_path / "old")) == 1
    report = verified(tmp_path, "old", "audit.jsonl")
    assert report.is_whole
    assert report.records == 2
    alone = verified(tmp_path)
    assert alone.is_whole
    assert alone.trails[0].follows


def test_a_file_that_another_program_cuts_gets_no_zeros(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.event("StartServer")
    log.close()
    log = opened(tmp_path)
    os.truncate(tmp_path / "audit.jsonl", 0)
    log.event("StartServer")
    log.close()
    assert len(records(tmp_path / "audit.jsonl")) == 1
    report = verified(tmp_path)
    assert report.is_whole
    assert report.trails[0].follows


def test_refusals_are_bounded_and_a_summary_counts_them(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for _ in range(500):
        log.refused(ALICE, "orders", "Publish")
        log.unauthenticated(Peer("10.0.0.2:7"), "Publish", "the token is wrong")
        log.called(Peer("10.0.0.3:7"), "CreateStream", "", "INVALID_ARGUMENT", "")
    log.close()
    found = records(tmp_path / "audit.jsonl")
    assert len(found) == 3 * REFUSALS_PER_CLIENT_MAX + 3
    summaries = [(one["principal"], one["address"], one["detail"]) for one in found if one["result"] == "SUMMARY"]
    left = f"{500 - REFUSALS_PER_CLIENT_MAX} more calls were refused or failed within 60 s"
    assert sorted(summaries) == [("", "10.0.0.2", left), ("", "10.0.0.3", left), ("alice", "", left)]
    assert verified(tmp_path).is_whole


def test_a_disk_that_does_not_write_delays_no_call_and_the_loss_is_stated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_full, tried = threading.Event(), threading.Event()
    is_full.set()
    write = os.write

    def failing(handle: int, data: Any) -> int:
        if not is_full.is_set():
            return write(handle, data)
        tried.set()
        if len(data) > 100:
            return write(handle, data[:100])  # a part of a line
        raise OSError(28, "No space left on device")

    def failing_whole(handle: int, data: Any) -> int:
        if is_full.is_set() and tried.is_set():
            raise OSError(28, "No space left on device")
        return failing(handle, data)

    monkeypatch.setattr(file_writer, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr("os.write", failing_whole)
    log = opened(tmp_path)
    log.event("StartServer")
    assert tried.wait(60)
    for _ in range(limits.AUDIT_QUEUE_RECORDS_MAX + 100):
        log.called(ALICE, "PauseStream", "orders", "OK", "")
    assert log.queue.lost == 100
    is_full.clear()
    log.close()
    report = verified(tmp_path)
    assert report.is_whole
    assert report.trails[0].lost == 100
    assert report.records == log.queue.written == limits.AUDIT_QUEUE_RECORDS_MAX + 2


def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"security.audit.file.*No such file"):
        AuditFile(tmp_path / "missing" / "audit")
    with pytest.raises(OperatorError, match="Is a directory"):
        AuditFile(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OperatorError, match="not a regular file"):
        AuditFile(tmp_path / "pipe")
    kept = AuditFile(tmp_path / "audit")
    with pytest.raises(OperatorError, match="another process writes it"):
        AuditFile(tmp_path / "audit")
    kept.close()


def test_a_log_without_writers_is_off() -> None:
    log = AuditLog()
    assert not log.is_on
    log.event("StartServer")
    log.refused(ALICE, "orders", "Publish")
    log.summarize(at_once=True)


@given(st.lists(st.sampled_from([0, 0, 0, 0, 1, 2, 5]), min_size=20, max_size=60))
def test_each_loss_is_stated_where_it_happened(steps: list[int]) -> None:
    """0 adds a record, another number takes as many."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(limits, "AUDIT_QUEUE_RECORDS_MAX", 3)
        queue, chain = AuditQueue(), AuditChain("a", "boot", "", KEY)
        lines: list[bytes] = []
        added = 0
        for step in steps:
            if step:
                lines += [chain.seal(entry) for entry in queue.take(step)]
            else:
                added += 1
                queue.add(AuditEntry(0, "alice", "", "CreateStream", "orders", "OK", str(added)))
        queue.close()
        queue.add(AuditEntry(0, "", "", "Late", "", "OK"))
        while entries := queue.take(2):
            lines += [chain.seal(entry) for entry in entries]
    assert verify_lines(lines, [KEY]).is_whole
    seen = 0
    for record in map(json.loads, lines):
        lost = record["action"] == LOST
        seen += int(record["detail"].split()[0]) if lost else 1
        assert lost or int(record["detail"]) == seen
    assert seen == added


def test_a_new_key_signs_the_records_after_it(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.event("StartServer")
    eventually(lambda: log.queue.written, "the record is written")
    log.writer.use_key(b"n" * 16)
    log.event("Reload")
    log.close()
    lines = (tmp_path / "audit.jsonl").read_bytes().splitlines()
    assert verify_lines(lines, [b"n" * 16, KEY]).is_whole
    assert [fault.place for fault in verify_lines(lines, [KEY]).faults] == [2]
    assert [fault.place for fault in verify_lines(lines, [b"n" * 16]).faults] == [1]
