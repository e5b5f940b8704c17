"""`bascule server` and `bascule demo`: replace this process by the program, so that signals reach it directly."""

from __future__ import annotations

import os
import sys
from typing import Final

import typer

PASS_ALL_ON: Final = {"allow_extra_args": True, "ignore_unknown_options": True}


def server(context: typer.Context) -> None:
    """Run a broker: `bascule server --help` shows its options."""
    _become("bascule.broker", context.args)


def demo(context: typer.Context) -> None:
    """Run a broker with NATS, a sample stream, a publisher and an archive to try out: `bascule demo --help` shows its options."""
    _become("bascule.demo.main", context.args)


def _become(module: str, arguments: list[str]) -> None:
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])
