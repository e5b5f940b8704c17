"""A shared broker, and `bascule` with a context that leads to it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bascule.cli import main
from tests.cli.command_line import Outcome, Run
from tests.support.broker_process import BrokerProcess


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An `XDG_CONFIG_HOME` without contexts."""
    found = tmp_path / "config"
    found.mkdir()
    return found


@pytest.fixture
def call(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`bascule`, called in this process: quick, and without a terminal."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    monkeypatch.delenv("BASCULE_CONTEXT", raising=False)

    def run(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["bascule", *arguments])
        with pytest.raises(SystemExit) as left:
            main.main()
        captured = capsys.readouterr()
        code = left.value.code
        assert isinstance(code, int) or code is None
        return Outcome(code or 0, captured.out, captured.err)

    return run


@pytest.fixture
def connected(home: Path, broker: BrokerProcess) -> Path:
    """`home` with a context for the shared broker in use."""
    return write_context(home, broker)


def write_context(home: Path, broker: BrokerProcess) -> Path:
    file = home / "bascule" / "contexts.json"
    file.parent.mkdir(exist_ok=True)
    document = {"current": "test", "contexts": {"test": {"server": broker.address}}}
    file.write_text(json.dumps(document), "utf-8")
    return home


@pytest.fixture
def bascule(connected: Path, call: Run) -> Run:
    """`bascule`, called in this process, on the shared broker."""
    del connected
    return call
