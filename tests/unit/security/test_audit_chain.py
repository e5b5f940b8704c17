"""The chain of audit records: every change of a whole log is found, except at its ends, where it is reported as such."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.security.audit.checking import verify_lines
from bascule.security.audit.records import AuditChain, AuditEntry, canonical, line_hash, lost_entry
from bascule.security.audit.refusals import OTHERS, RefusalBound

KEY = b"k" * 16


def entry(number: int = 1) -> AuditEntry:
    return AuditEntry(1_700_000_000_123_456_789 + number, "alice", "127.0.0.1:5", "CreateStream", "orders", "OK")


def log(*lengths: int, server: str = "a", key: bytes | None = KEY) -> list[bytes]:
    """The lines of several boots of a server."""
    lines: list[bytes] = []
    previous = ""
    for boot, length in enumerate(lengths):
        chain = AuditChain(server, f"boot-{boot}", previous, key)
        lines += [chain.seal(entry(number)) for number in range(1, length + 1)]
        previous = chain.previous
    return lines


def test_a_whole_log_is_whole() -> None:
    lines = log(3, 1, 4)
    report = verify_lines(lines, [b"other", KEY], line_hash(lines[-1]))
    assert report.is_whole
    assert report.has_head
    (trail,) = report.trails
    assert (trail.records, len(trail.boots), trail.follows, trail.lost) == (8, 3, "", 0)


def test_logs_of_several_servers_may_be_mixed() -> None:
    one, two = log(4, server="a"), log(2, 2, server="b")
    mixed = [line for pair in zip(one, two, strict=True) for line in pair]
    report = verify_lines(mixed, [KEY])
    assert report.is_whole
    assert {trail.server for trail in report.trails} == {"a", "b"}


def changed(lines: list[bytes], at: int) -> list[bytes]:
    record = json.loads(lines[at]) | {"principal": "mallory"}
    return [*lines[:at], canonical(record), *lines[at + 1 :]]


def removed(lines: list[bytes], at: int) -> list[bytes]:
    return [*lines[:at], *lines[at + 1 :]]


def repeated(lines: list[bytes], at: int) -> list[bytes]:
    return [*lines[: at + 1], *lines[at:]]


def swapped(lines: list[bytes], at: int) -> list[bytes]:
    return [*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]]


def damaged(lines: list[bytes], at: int) -> list[bytes]:
    return [*lines[:at], lines[at][:-1], *lines[at + 1 :]]


@given(
    change=st.sampled_from([changed, removed, repeated, swapped, damaged]),
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=4).filter(lambda found: sum(found) > 3),
    place=st.integers(0, 1_000),
    key=st.sampled_from([None, KEY]),
)
def test_each_change_within_the_log_is_found(
    change: Callable[[list[bytes], int], list[bytes]], lengths: list[int], place: int, key: bytes | None
) -> None:
    lines = log(*lengths, key=key)
    at = 1 + place % (len(lines) - 3)  # the ends have tests of their own
    assert not verify_lines(change(lines, at), [KEY] if key else []).is_whole


@given(st.data())
def test_each_changed_byte_is_found(data: st.DataObject) -> None:
    lines = log(2, 2)
    text = bytearray(b"\n".join(lines))
    at = data.draw(st.integers(0, len(text) - 1))
    text[at] ^= data.draw(st.integers(1, 255))
    report = verify_lines(bytes(text).split(b"\n"), [KEY])
    assert not report.is_whole or report.trails[0].follows


def test_removal_at_the_ends_is_visible() -> None:
    lines = log(3, 3)
    late = verify_lines(lines[1:], [KEY])
    assert late.is_whole
    assert late.trails[0].follows == line_hash(lines[0])
    assert not verify_lines(lines[:-1], [KEY], line_hash(lines[-1])).has_head


def test_a_forger_without_the_secret_is_found() -> None:
    forged = log(3, key=b"guess")
    assert verify_lines(forged).is_whole
    assert len(verify_lines(forged, [KEY]).faults) == 3
    assert "no MAC" in verify_lines(log(1, key=None), [KEY]).faults[0].text


def test_a_loss_that_the_server_states_is_no_fault_and_another_one_is() -> None:
    chain = AuditChain("a", "boot", "", None)
    stated = [chain.seal(entry()), chain.seal(lost_entry(0, 5)), chain.seal(entry())]
    assert chain.number == 8
    report = verify_lines(stated)
    assert report.is_whole
    assert report.trails[0].lost == 5
    chain = AuditChain("a", "boot", "", None)
    lines = [chain.seal(entry())]
    chain.number += 1
    assert "wrong number" in verify_lines([*lines, chain.seal(entry())]).faults[0].text


def test_a_run_cannot_come_back() -> None:
    lines = log(2, 1)
    chain = AuditChain("a", "boot-0", line_hash(lines[-1]), KEY)
    assert "earlier run" in verify_lines([*lines, chain.seal(entry(1))]).faults[0].text


@pytest.mark.parametrize("line", [b"", b"{}", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"number":1e999}'])
def test_lines_that_are_no_records_are_faults(line: bytes) -> None:
    assert not verify_lines([line]).is_whole


def test_texts_of_clients_are_cut_and_escaped() -> None:
    chain = AuditChain("a", "boot", "", None)
    line = chain.seal(AuditEntry(0, "p" * 10_000, "\n\x1b[31m", "é\ud800", "r" * 10_000, "OK", "d" * 10_000))
    assert line.isascii()
    assert b"\n" not in line
    assert len(line) < 2_000
    assert verify_lines([line]).is_whole


def test_refusals_of_a_client_are_bounded_and_counted() -> None:
    bound = RefusalBound()
    assert sum(bound.admits(("mallory", ""), 0.0) for _ in range(1_000)) == 20
    assert bound.admits(("alice", ""), 1.0)
    assert bound.summaries(59.0) == []
    assert bound.summaries(60.0) == [(("mallory", ""), 980)]
    assert bound.summaries(200.0) == []
    assert bound.admits(("mallory", ""), 201.0)


def test_refusals_of_many_clients_are_bounded_too() -> None:
    bound = RefusalBound()
    admitted = sum(bound.admits(("", f"10.0.{number >> 8}.{number & 255}"), 0.0) for number in range(10_000))
    summaries = dict(bound.summaries(60.0))
    assert admitted <= 500
    assert len(summaries) <= 257
    assert summaries[OTHERS] > 9_000
    assert admitted + sum(summaries.values()) == 10_000
