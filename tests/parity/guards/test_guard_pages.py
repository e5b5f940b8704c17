"""No kernel reads a byte in front of or behind the bytes it was given: the process would not survive it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = "tests.parity.guards"
ROOT = Path(__file__).resolve().parents[3]


def run_guarded(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-X", "faulthandler", "-m", f"{PACKAGE}.guard_pages", *arguments]
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    # A sanitizer must not handle the signal: it would end the process with another status.
    sanitizer = ":".join(filter(None, (os.environ.get("ASAN_OPTIONS"), "handle_segv=0")))
    environment = {**os.environ, "PYTHONPATH": path, "ASAN_OPTIONS": sanitizer}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_the_guard_kills_who_reads_too_far() -> None:
    assert run_guarded("trespass").returncode == -signal.SIGSEGV


@pytest.mark.parametrize("seed", [0, 10_000])
def test_no_kernel_reads_outside_of_its_bytes(seed: int) -> None:
    done = run_guarded(str(seed), "1000")
    last = done.stdout.split()[-1:]
    assert done.returncode == 0, f"died of the input with seed {last}: {done.returncode}\n{done.stderr[-5000:]}"
    assert last == [str(seed + 999)]
