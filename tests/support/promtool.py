"""Prometheus' own checker of rules. Where it is not installed, it is taken out of Debian's package, without installing that."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

DOWNLOAD_SECONDS_MAX = 120


def promtool(directory: Path) -> str:
    """The path of the program. Skips the test where there is neither Prometheus nor Debian's packages."""
    found = shutil.which("promtool")
    if found is not None:
        return found
    try:
        for command in (["apt-get", "download", "prometheus"], ["sh", "-c", "dpkg -x prometheus_*.deb package"]):
            subprocess.run(command, cwd=directory, check=True, capture_output=True, timeout=DOWNLOAD_SECONDS_MAX)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"promtool is not there, and Debian's package cannot be had ({error}): apt-get install prometheus")
    return str(directory / "package" / "usr" / "bin" / "promtool")
