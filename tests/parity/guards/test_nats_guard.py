"""The NATS reader reads nothing in front of or behind the bytes it was given: the process would not survive it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.parity.guards.test_guard_pages import PACKAGE, ROOT


@pytest.mark.parametrize("seed", [0, 10_000])
def test_the_reader_stays_inside_of_its_bytes(seed: int) -> None:
    command = [sys.executable, "-X", "faulthandler", "-m", f"{PACKAGE}.guard_nats", str(seed), "2000"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    last = done.stdout.split()[-1:]
    assert done.returncode == 0, f"died of the input with seed {last}: {done.returncode}\n{done.stderr[-5000:]}"
    assert last == [str(seed + 1999)]
