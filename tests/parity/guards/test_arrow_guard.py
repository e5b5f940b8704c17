"""The kernel of columns reads no byte in front of or behind the batches it was given: the process would not survive it."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.parity.guards.test_guard_pages import PACKAGE, ROOT


def test_no_byte_outside_of_the_batches_is_read() -> None:
    command = [sys.executable, "-X", "faulthandler", "-m", f"{PACKAGE}.guard_arrow", "0", "1500"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    last = done.stdout.split()[-1:]
    assert done.returncode == 0, f"died of the input with seed {last}: {done.returncode}\n{done.stderr[-5000:]}"
    assert last == ["1499"]
