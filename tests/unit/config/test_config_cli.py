"""`bascule config`: what the operator sees."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bascule.cli import main
from bascule.config.reference import render_page, render_sample
from bascule.errors import CallerError, OperatorError, OutcomeUnknown, StateError, Unavailable
from bascule.exits import EXIT_BUG, EXIT_CODES, EXIT_INTERRUPTED


class Outcome:
    """Exit code and output of one command."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


Run = Callable[..., Outcome]


@pytest.fixture
def bascule(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["bascule", *arguments])
        with pytest.raises(SystemExit) as left:
            main.main()
        captured = capsys.readouterr()
        code = left.value.code
        assert isinstance(code, int) or code is None
        return Outcome(code or 0, captured.out, captured.err)

    return run


def test_version_and_help_work(bascule: Run) -> None:
    assert bascule("--version").out.startswith("bascule ")
    assert "config" in bascule("--help").out
    assert bascule("config", "--help").code == 0


def test_the_reference_is_printed_as_it_is(bascule: Run) -> None:
    assert bascule("config", "reference").out == render_page()
    assert bascule("config", "reference", "--format", "yaml").out == render_sample()


def test_check_lists_what_differs_and_hides_secrets(bascule: Run, tmp_path: Path) -> None:
    file = tmp_path / "bascule.yaml"
    file.write_text("streams.retention.max.age: 1h\nnats: {user: '[red]me', password: hunter2}\nport: 9293")
    outcome = bascule("config", "check", str(file))
    assert outcome.code == 0
    assert f"{file}:1" in outcome.out
    assert "168h" in outcome.out
    assert "[red]me" in outcome.out
    assert "hunter2" not in outcome.out
    assert "4 of " in outcome.out


def test_check_takes_the_environment_into_account(
    bascule: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "bascule.yaml"
    file.write_text("port: 1")
    monkeypatch.setenv("BASCULE_PORT", "2")
    document = json.loads(bascule("config", "check", str(file), "--json").out)
    assert document["file"] == str(file)
    assert document["changed"] == [
        {"key": "port", "value": "2", "default": "9292", "source": "environment variable BASCULE_PORT"}
    ]


def test_check_of_a_file_that_changes_nothing_says_so(bascule: Run, tmp_path: Path) -> None:
    file = tmp_path / "bascule.yaml"
    file.write_text("")
    assert "Every key has its default" in bascule("config", "check", str(file)).out


def test_a_bad_file_is_a_message_and_a_hint_and_no_traceback(bascule: Run, tmp_path: Path) -> None:
    file = tmp_path / "bascule.yaml"
    file.write_text("strems.sync: ack")
    outcome = bascule("config", "check", str(file))
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err == f"error: Unknown key `strems.sync` at {file}:1\nhint: did you mean `streams.sync`?\n"


def test_a_misspelt_command_is_refused(bascule: Run) -> None:
    assert bascule("confg").code == 2


@pytest.mark.parametrize(
    ("raised", "code", "fragment"),
    [
        (CallerError("no", hint="do"), 2, "hint: do"),
        (StateError("no"), 3, "error: no"),
        (OperatorError("no"), 4, "error: no"),
        (Unavailable("no"), 5, "error: no"),
        (OutcomeUnknown("no"), 6, "error: no"),
        (PermissionError(13, "Permission denied", "/x"), 4, "Permission denied: `/x`"),
        (ZeroDivisionError("oops"), EXIT_BUG, "--traceback"),
        (KeyboardInterrupt(), EXIT_INTERRUPTED, ""),
    ],
)
def test_every_failure_has_its_exit_code(
    bascule: Run, monkeypatch: pytest.MonkeyPatch, raised: BaseException, code: int, fragment: str
) -> None:
    def fail() -> None:
        raise raised

    monkeypatch.setattr(main, "command", lambda: fail)
    outcome = bascule("config")
    assert outcome.code == code
    assert fragment in outcome.err
    assert "Traceback" not in outcome.err


def test_the_traceback_is_there_for_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(main, "command", lambda: fail)
    monkeypatch.setattr(sys, "argv", ["bascule", "--traceback"])
    with pytest.raises(ZeroDivisionError):
        main.main()


def test_exit_codes_are_distinct() -> None:
    assert len(set(EXIT_CODES.values()) | {EXIT_BUG, EXIT_INTERRUPTED, 0, 1}) == len(EXIT_CODES) + 4
