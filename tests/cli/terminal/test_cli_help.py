"""What `bascule` says about itself: help pages, completion, and how quickly."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bascule.cli import main
from tests.cli.command_line import COMMAND, Run, environ, run
from tests.support.broker_fixtures import MakeStream
from tests.support.waiting import eventually

WANTED = """
stream create|list|describe|set|delete|pause|resume|readonly
publish
subscribe
cursor list|get|set|delete
group list|describe|reset|delete|consume
cluster status|wait|drain|add|remove|rebalance|reassign|cancel|elect|throttle
top
bench publish|subscribe|latency
doctor
context add|list|use|remove|show
pipeline init|check|run|preview|test|host|hosted|sql|archive|compact|status|verify|repair|upgrade|latest|replay
spark shell|pack
acl list|grant|revoke|explain
token create|list|revoke
audit verify|tail
log inspect|verify
keys status|rotate
config reference|check
import liftbridge
server
demo
"""


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))


ALL = dict(commands(main.command()))


def test_every_command_is_there() -> None:
    wanted = set()
    for line in WANTED.split("\n"):
        family, _, names = line.partition(" ")
        wanted |= {(family, *filter(None, [name])) for name in names.split("|")} if family else set()
    assert {path for path, one in ALL.items() if path and not hasattr(one, "commands")} == wanted


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_pages_are_complete(path: tuple[str, ...]) -> None:
    command = ALL[path]
    assert command.help
    assert command.help.rstrip().endswith((".", "`"))
    for parameter in command.params:
        assert getattr(parameter, "help", None), f"{path}: {parameter.name} says nothing"


@pytest.mark.parametrize("path", [path for path in ALL if path not in (("server",), ("demo",))], ids=" ".join)
def test_help_pages_are_printed(call: Run, path: tuple[str, ...]) -> None:
    outcome = call(*path, "--help").ok()
    assert "Usage: bascule" in outcome.out
    assert call(*path, "-h").out == outcome.out
    for parameter in ALL[path].params:
        longest = max((*parameter.opts, ""), key=len)
        if longest.startswith("--"):
            assert longest[:14] in outcome.out


def test_no_arguments_show_help(call: Run) -> None:
    for path in ((), ("stream",), ("bench",)):
        outcome = call(*path)
        assert outcome.code == 2
        assert "Usage: bascule" in outcome.out + outcome.err


def test_a_misspelt_command_is_recognised(call: Run) -> None:
    call("subscrbe", "orders").failed(2, "subscrbe", "Did you mean 'subscribe'", "bascule --help")
    call("stream", "crate").failed(2, "'create'", "bascule stream --help")


# ── completion ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_written_for_each_shell(home: Path, shell: str) -> None:
    outcome = run(home=home, env={"_BASCULE_COMPLETE": f"source_{shell}"})
    assert "_BASCULE_COMPLETE" in outcome.out
    assert "bascule" in outcome.out


def test_commands_options_and_streams_are_completed(connected: Path, make_stream: MakeStream, bascule: Run) -> None:
    bascule("context", "add", "elsewhere").ok()
    name = make_stream().name

    def complete(line: str) -> set[str]:
        given = {"_BASCULE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        return set(run(home=connected, env=given).out.split())

    assert {"create", "delete"} <= complete("bascule stream ")
    assert "--partitions" in complete("bascule stream create --p")
    # It asks the broker for a moment at most: who presses the key again gets it.
    eventually(lambda: complete(f"bascule subscribe {name[:-2]}") >= {name}, "the stream is found")
    assert complete("bascule context use else") == {"elsewhere"}
    assert complete("bascule subscribe -s 127.0.0.1:1 x") == set()


# ── quickness ────────────────────────────────────────────────────────────────────────────────────


def test_help_needs_nothing_heavy(home: Path) -> None:
    """Counted instead of timed: modules, which do not depend on how busy the machine is."""
    code = "import sys, bascule.cli.main; print([name for name in sys.modules if name.partition('.')[0] in "
    code += "('asyncio', 'rich', 'yaml', 'uvloop', 'ssl') or name.startswith(('bascule.client', 'bascule.log', 'bascule.kernels'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ(home), check=True)
    assert ast.literal_eval(done.stdout) == []


def test_the_module_runs_as_a_program(home: Path) -> None:
    done = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True, env=environ(home), check=False)
    assert done.stdout.startswith("bascule ")
