"""`bascule server`: becomes the broker's own program, so that signals and exit codes are its own."""

from __future__ import annotations

import os
import sys
from typing import Final

import typer

PASS_ALL_ON: Final = {"allow_extra_args": True, "ignore_unknown_options": True}


def server(context: typer.Context) -> None:
    """Run a broker: `bascule server --help` shows its options."""
    os.execv(sys.executable, [sys.executable, "-m", "bascule.broker", *context.args])
