"""What the command `bascule` runs. A server is started without the other commands: its port listens half a second earlier."""

from __future__ import annotations

import sys


def main() -> None:
    """Run `bascule server` as the program of its own that it is, and every other command by `bascule.cli.main`."""
    if sys.argv[1:2] == ["server"]:
        import runpy

        del sys.argv[1]
        runpy.run_module("bascule.broker", run_name="__main__")
        return
    from bascule.cli.main import main as run_command

    run_command()


if __name__ == "__main__":
    main()
