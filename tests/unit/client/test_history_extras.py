"""History without the packages that it needs: everything imports, and the error says what to install."""

from __future__ import annotations

import subprocess
import sys

WITHOUT = """
import sys
for name in ("pyarrow", "deltalake", "pyspark", "numpy", "pandas"):
    sys.modules[name] = None
import bascule
import bascule.cli.stream.subscribe
import bascule.history.readers
from bascule.errors import MissingExtra
from bascule.history.past import ArchiveChoice
for act in (
    lambda: bascule.read_table("orders", history="/lake/orders"),
    lambda: ArchiveChoice(path="/lake/orders", servers="127.0.0.1:1").options("orders"),
):
    try:
        act()
    except MissingExtra as error:
        print(error.hint)
"""


def test_history_without_pyarrow_names_the_extra() -> None:
    found = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=120, check=False)
    assert found.stderr == "" and found.stdout.splitlines() == ['pip install "bascule[spark]"'] * 2
