"""Which Python executors run, and how the driver finds one by the same name.

Spark runs the source of a query with one command in two places: the driver's Java runs it to plan a read, executors run it to read. The
path of the driver's Python is of no use to an executor on another machine. On a cluster the command is therefore a name, `python3.11`,
which each machine looks up in its `PATH`; a folder in front of the driver's `PATH` has this name for the Python that runs the driver.

A user's choice is used instead of the name: the setting `spark.pyspark.python`, else the variable `PYSPARK_PYTHON`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from bascule.errors import OperatorError

SETTING: Final = "spark.pyspark.python"
VARIABLE: Final = "PYSPARK_PYTHON"
DRIVER_VARIABLE: Final = "PYSPARK_DRIVER_PYTHON"

_LAUNCHER: Final = """\
#!/bin/sh
# Runs the Python of a driver by the name that executors have for theirs.
exec {python} "$@"
"""


def default_name() -> str:
    """What executors call a Python of this version."""
    return f"python{sys.version_info.major}.{sys.version_info.minor}"


def executors_python(settings: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """The command that executors run: what the user has set, else a name."""
    return settings.get(SETTING) or environ.get(VARIABLE) or default_name()


@contextlib.contextmanager
def found_by_java(command: str, folder: Path) -> Iterator[None]:
    """Within the block, a Java that is started here runs `command` with the packages of this process, to plan what executors do."""
    changed = {DRIVER_VARIABLE: command, VARIABLE: command}
    if os.sep in command:
        _must_be_here(command)
        # Its own packages may not include ours: it gets the folders in which this process looks.
        changed["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    else:
        changed["PATH"] = os.pathsep.join(
            filter(None, [str(write_launcher(command, folder)), os.environ.get("PATH", "")])
        )
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _must_be_here(command: str) -> None:
    if not os.access(command, os.X_OK):
        raise OperatorError(
            f"executors are to run the Python `{command}`, which the driver does not have; Spark plans reads on the driver with the "
            "same command",
            hint=f"set `{SETTING}` or `{VARIABLE}` to a name that executors find in their PATH, such as `{default_name()}`",
        )


def write_launcher(name: str, folder: Path) -> Path:
    """A folder in which the Python of this process has that name."""
    text = _LAUNCHER.format(python=shlex.quote(sys.executable))
    home = folder / hashlib.sha256(text.encode()).hexdigest()[:16]
    launcher = home / name
    if not os.access(launcher, os.X_OK):
        home.mkdir(parents=True, exist_ok=True)
        draft = launcher.with_name(f"{name}.{os.getpid()}")
        draft.write_text(text, "utf-8")
        draft.chmod(0o755)
        draft.replace(launcher)
    return home
