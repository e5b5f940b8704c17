"""A private copy of the source tree in which one bug at a time is planted. Workshops run side by side."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from tools.mutants.mutant import ROOT, Mutant, applied

PARTS: Final = ("src", "tests", "tools", "proto", "docs", "setup.py", "pyproject.toml", "README.md")
"""The parts of the tree that tests need."""

BUILD_SECONDS_MAX: Final = 300.0


class Verdict(Enum):
    KILLED = "killed"
    SURVIVED = "SURVIVED"
    TIMED_OUT = "TIMED OUT"
    """The test did not end in time. That kills nothing: a test has to fail, not to hang."""
    BROKEN = "BROKEN"
    """The bug has no place, does not compile, or its test could not be run."""


@dataclass(frozen=True, slots=True)
class Outcome:
    verdict: Verdict
    output: str = ""
    """What the test or the compiler has printed."""


class Workshop:
    def __init__(self, folder: Path, root: Path = ROOT) -> None:
        self.folder = folder
        self._root = root
        for part in PARTS:
            if (root / part).is_dir():
                shutil.copytree(root / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
            elif (root / part).exists():
                shutil.copy2(root / part, folder / part)

    def by_test(self, mutant: Mutant, seconds_max: float) -> Outcome:
        """Whether the named test fails with the bug. A crash of the interpreter is a failure too."""
        options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
        outcome, code = self._run(mutant, ["-m", "pytest", *options, mutant.killer], seconds_max)
        if code is None:
            return outcome
        lines = outcome.output.strip().splitlines()
        is_failure = code == 1 and lines and "error" not in lines[-1]
        if code == 0:
            return Outcome(Verdict.SURVIVED, outcome.output)
        return Outcome(Verdict.KILLED if is_failure or code < 0 else Verdict.BROKEN, outcome.output)

    def passes(self, tests: list[str], workers: int, seconds_max: float) -> Outcome:
        """Whether the tests pass without any bug: BROKEN if they do not. Otherwise they would kill everything."""
        command = [
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            *(["-n", str(workers)] if workers > 1 else []),
            *tests,
        ]
        try:
            code, output = self._python(command, seconds_max)
        except subprocess.TimeoutExpired as error:
            return Outcome(Verdict.TIMED_OUT, f"{error.timeout:g} seconds were not enough")
        return Outcome(Verdict.BROKEN if code else Verdict.SURVIVED, output)

    def by_script(self, mutant: Mutant, script: str, seconds_max: float) -> Outcome:
        """Whether a Python script fails with the bug."""
        outcome, code = self._run(mutant, ["-c", script], seconds_max)
        return outcome if code is None else Outcome(Verdict.KILLED if code else Verdict.SURVIVED, outcome.output)

    def _run(self, mutant: Mutant, arguments: list[str], seconds_max: float) -> tuple[Outcome, int | None]:
        """What Python prints and its exit code with the bug in the copy; no code if it did not come so far."""
        try:
            with self._planted(mutant):
                code, output = self._python(arguments, seconds_max)
        except subprocess.TimeoutExpired as error:
            return Outcome(Verdict.TIMED_OUT, f"{error.timeout:g} seconds were not enough"), None
        except (ValueError, RuntimeError) as error:
            return Outcome(Verdict.BROKEN, str(error)), None
        return Outcome(Verdict.BROKEN, output), code

    @contextlib.contextmanager
    def _planted(self, mutant: Mutant) -> Iterator[None]:
        target = self.folder / mutant.file
        before = target.read_bytes()
        target.write_text(applied(mutant, self.folder), "utf-8")
        try:
            # A compiled file of the same size and second would be taken for the mutant's.
            _forget_bytecode(target)
            if mutant.kernel is not None:
                self._build(mutant, mutant.kernel)
            yield
        finally:
            target.write_bytes(before)  # not the original, which a developer may be changing
            _forget_bytecode(target)
            if mutant.kernel is not None:
                self._restore(mutant.kernel)

    def _build(self, mutant: Mutant, kernel: str) -> None:
        """Compile one kernel in place, without optimization because the compiler takes longer than most tests."""
        code, output = self._python(
            ["setup.py", "--quiet", "build_ext", "--inplace", "--force"],
            BUILD_SECONDS_MAX,
            {"KERNEL_SOURCES": kernel, "KERNEL_FLAGS": "-O0"},
        )
        if code != 0:
            raise RuntimeError(f"`{mutant.name}` does not compile\n{output}")

    def _restore(self, kernel: str) -> None:
        for built in (self._root / kernel).parent.glob(f"{Path(kernel).stem}.*.so"):
            target = self.folder / Path(kernel).parent / built.name
            target.unlink(missing_ok=True)  # a process that has loaded it keeps the old file
            shutil.copy2(built, target)
        shutil.rmtree(self.folder / "build", ignore_errors=True)

    def _python(
        self, arguments: list[str], seconds_max: float, settings: dict[str, str] | None = None
    ) -> tuple[int, str]:
        environment = {
            **os.environ,
            "PYTHONPATH": f"{self.folder / 'src'}{os.pathsep}{self.folder}",
            **(settings or {}),
        }
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=seconds_max)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise
        return process.returncode, output


def _forget_bytecode(source: Path) -> None:
    for compiled in (source.parent / "__pycache__").glob(f"{source.stem}.*.pyc"):
        compiled.unlink(missing_ok=True)
