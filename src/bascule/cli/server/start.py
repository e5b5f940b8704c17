"""`bascule server` and `bascule demo`: become the broker's own programs, so that signals and exit codes are theirs."""

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
    """A broker, NATS, a sample stream and a publisher, to try things out: `bascule demo --help` shows its options."""
    _become("bascule.demo.main", context.args)


def _become(module: str, arguments: list[str]) -> None:
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])
