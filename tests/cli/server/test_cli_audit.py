"""`bascule audit`: what it wants to know, and what it says about a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bascule.net.nats.seal import SealKeys
from bascule.security.audit.records import AuditChain, AuditEntry
from tests.cli.command_line import Run

SECRET = "a cluster secret of the tests"
ENTRY = AuditEntry(1_700_000_000_123_456_789, "alice", "127.0.0.1:5", "CreateStream", "orders", "OK")


@pytest.mark.parametrize("command", ["verify", "tail"])
def test_a_file_or_the_stream_is_needed(bascule: Run, command: str, tmp_path: Path) -> None:
    bascule("audit", command).failed(2, "no file is given")
    bascule("audit", command, str(tmp_path / "audit"), "--stream").failed(2, "both a file and `--stream`")


def test_options_that_do_not_fit_are_refused(bascule: Run, tmp_path: Path) -> None:
    bascule("audit", "verify", str(tmp_path / "audit"), "--from", "3").failed(2, "`--from` is given without `--stream`")
    head = tmp_path / "audit.head"
    head.write_text("[]")
    bascule("audit", "verify", "--stream", "--head", str(head)).failed(2, "has no end of an audit log")


@pytest.mark.parametrize("command", ["verify", "tail"])
def test_a_cluster_without_the_stream_names_the_setting(bascule: Run, command: str) -> None:
    bascule("audit", command, "--stream").failed(3, "no audit stream", "security.audit.stream.enabled")


def test_tail_marks_records_that_were_not_signed_with_the_secret(bascule: Run, tmp_path: Path) -> None:
    secret, file = tmp_path / "secret", tmp_path / "audit.jsonl"
    secret.write_text(SECRET)
    (key,) = SealKeys((SECRET,), "ns").audit_keys()
    genuine = AuditChain("a", "boot", "", key).seal(ENTRY)
    forged = AuditChain("a", "boot", "", b"guessed").seal(ENTRY)
    file.write_bytes(genuine + b"\n" + forged + b"\nno record \x1b[2J\n")
    given = (str(file), "--secret-file", str(secret), "--namespace", "ns")
    lines = bascule("audit", "tail", *given).ok().lines
    assert " a alice 127.0.0.1:5 CreateStream orders OK" in lines[0]
    assert lines[1].startswith("FORGED (the MAC is wrong")
    assert lines[2].startswith("BROKEN (this is no audit record)")
    assert "\x1b" not in lines[2]
    lines = bascule("audit", "tail", *given, "--json").ok().lines
    assert lines[0].encode() == genuine
    assert "the MAC is wrong" in json.loads(lines[1])["fault"]
    assert json.loads(lines[2])["value"] == "no record \x1b[2J"
    assert len(bascule("audit", "tail", str(file), "--count", "1").ok().lines) == 1
