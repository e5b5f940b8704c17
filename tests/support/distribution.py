"""What users install, built from the checkout: once for a run of the tests, however many processes run them.

python = installed(tmp_path_factory) / "bin" / "python"
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
FILES: Final = (
    "setup.py",
    "pyproject.toml",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "constraints.txt",
)
BUILD: Final = "import sys, setuptools.build_meta as backend; print(backend.build_{kind}(sys.argv[1]))"


def run(*command: str | Path, cwd: Path, **environ: str) -> str:
    """Run a command and return its output."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")}
    result = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**clean, **environ},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    return result.stdout


def copied(directory: Path) -> Path:
    """A copy of the files that a build reads, where it may write."""
    copy = directory / "bascule"
    copy.mkdir(parents=True)
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in FILES:
        shutil.copy(ROOT / name, copy / name)
    return copy


def built(kind: str, copy: Path, into: Path) -> Path:
    """The sdist or wheel. The wheel gets the kernels that are compiled already."""
    prebuilt = {"KERNELS": "prebuilt"} if kind == "wheel" else {}
    return into / run(sys.executable, "-c", BUILD.format(kind=kind), into, cwd=copy, **prebuilt).splitlines()[-1]


def installed(factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel. What the wheel depends on comes from the environment of the tests."""
    base = factory.getbasetemp()
    place = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "installed"
    place.mkdir(exist_ok=True)
    venv, done = place / "venv", place / "done"
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process of the tests may build it now
        if not done.exists():
            copy = copied(place)
            wheel = built("wheel", copy, place)
            assert not wheel.name.endswith("-none-any.whl"), "the kernels are for one platform"
            shutil.rmtree(copy)
            _install(wheel, venv)
            done.touch()
    return venv


def _install(wheel: Path, venv: Path) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=venv.parent)
    options = ("--no-deps", "--no-index", "--no-compile")
    run(sys.executable, "-m", "pip", "--python", venv / "bin" / "python", "install", *options, wheel, cwd=venv.parent)
    (site,) = (venv / "lib").glob("python*/site-packages")
    # A plain path: the editable installation of the checkout, in a file beside it, is not followed.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
