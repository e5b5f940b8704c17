"""Clients that others wrote, from PyPI and npm. They are installed once into `.cache/` of the repository, each on its own."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tests.support.broker_process import ROOT

CACHE: Final = ROOT / ".cache" / "clients"
INSTALL_SECONDS: Final = 420


def run(command: Sequence[str], *, seconds: float, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """What it said, if it succeeded."""
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        cwd=cwd,
        env=env,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)} left with {done.returncode}:\n{done.stdout}"
    return done.stdout


def once(name: str, wanted: str, make: Callable[[Path], None]) -> Path:
    """A folder that `make` filled, now or in an earlier run. Test processes that want the same one wait for each other."""
    key = hashlib.sha256(f"{sys.version}\n{wanted}".encode()).hexdigest()[:12]
    folder = CACHE / f"{name}-{key}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / ".done").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            (folder / ".done").touch()
    return folder


def python_with(name: str, requirements: Sequence[str]) -> Path:
    """The interpreter of a virtual environment with these packages."""

    def make(folder: Path) -> None:
        run([sys.executable, "-m", "venv", str(folder)], seconds=INSTALL_SECONDS)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        run([*pip, *requirements], seconds=INSTALL_SECONDS)

    return once(name, "\n".join(requirements), make) / "bin" / "python"


def source_of(package: str, version: str) -> Path:
    """The unpacked source distribution."""

    def make(folder: Path) -> None:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
        command = [*pip, "--no-binary", ":all:", "--dest", str(folder), f"{package}=={version}"]
        run(command, seconds=INSTALL_SECONDS)
        for archive in folder.glob("*.tar.gz"):
            with tarfile.open(archive) as opened:
                opened.extractall(folder, filter="data")

    folder = once(f"{package}-source", version, make)
    (unpacked,) = (path for path in folder.iterdir() if path.is_dir())
    return unpacked


def node_modules(packages: Sequence[str]) -> Path:
    """A folder whose `node_modules` has these packages."""

    def make(folder: Path) -> None:
        npm = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(folder)]
        run([*npm, *packages], seconds=INSTALL_SECONDS, env={**os.environ, "npm_config_update_notifier": "false"})

    return once("node", "\n".join(packages), make)


def private_network() -> list[str]:
    """The beginning of a command that runs in a network of its own, where every port is free. Empty where that is not allowed."""
    inside = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    try:
        allowed = subprocess.run([*inside, "true"], capture_output=True, timeout=20, check=False).returncode == 0
    except OSError:
        return []
    return inside if allowed else []
