"""A planted bug: a replacement in one source file, and the test that must fail with it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    file: str
    old: str
    new: str
    killer: str
    """The test, as pytest names it."""


def applied(mutant: Mutant, root: Path) -> str:
    """The source with the bug in it. Raises ValueError when the place is not there, or there more than once."""
    text = (root / mutant.file).read_text("utf-8")
    if (count := text.count(mutant.old)) != 1:
        raise ValueError(f"`{mutant.name}`: its place occurs {count} times in {mutant.file}")
    return text.replace(mutant.old, mutant.new)


def run(mutant: Mutant, copy: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run the command against the copy of the sources, with the bug in it."""
    target = copy / mutant.file
    before = target.read_text("utf-8")
    target.write_text(applied(mutant, copy), "utf-8")
    # No compiled files: one of the same size and second would be taken for the mutant's.
    environment = {
        **os.environ,
        "PYTHONPATH": f"{copy / 'src'}{os.pathsep}{ROOT}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    try:
        return subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600
        )
    finally:
        target.write_text(before, "utf-8")


def by_test(mutant: Mutant, copy: Path) -> bool:
    """Whether the named test fails. Raises when it could not be run: that kills nothing."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", mutant.killer]
    result = run(mutant, copy, command)
    if result.returncode not in (0, 1) or "error" in result.stdout.rsplit("\n", 2)[-2]:
        raise RuntimeError(f"`{mutant.name}`: {mutant.killer} could not be run\n{result.stdout}{result.stderr}")
    return result.returncode == 1
