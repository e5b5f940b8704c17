"""`bascule server` and `bascule demo`: run the program in this process, so that signals reach it and `ps` shows the command."""

from __future__ import annotations

import runpy
import sys
from typing import Final

import typer

PASS_ALL_ON: Final = {"allow_extra_args": True, "ignore_unknown_options": True}


def server(context: typer.Context) -> None:
    """Run a broker: `bascule server --help` shows its options."""
    _run("bascule.broker", context.args)


def demo(context: typer.Context) -> None:
    """Run a broker with NATS, a sample stream, a publisher and an archive to try out: `bascule demo --help` shows its options."""
    _run("bascule.demo.main", context.args)


def _run(module: str, arguments: list[str]) -> None:
    sys.argv = [sys.argv[0], *arguments]
    runpy.run_module(module, run_name="__main__")
