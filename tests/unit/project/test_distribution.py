"""What is built for others to install: a source distribution that can be compiled, and a wheel that runs in an empty environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
KERNELS = ROOT / "src" / "bascule" / "kernels"


def run(*command: str | Path, cwd: Path, **environ: str) -> str:
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


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that a build reads, where it may write."""
    copy = tmp_path_factory.mktemp("distribution") / "bascule"
    copy.mkdir()
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in (
        "setup.py",
        "pyproject.toml",
        "MANIFEST.in",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "constraints.txt",
    ):
        shutil.copy(ROOT / name, copy / name)
    return copy


def test_a_source_distribution_has_the_sources_of_the_kernels(copy: Path, tmp_path: Path) -> None:
    build = "import sys, setuptools.build_meta as backend; print(backend.build_sdist(sys.argv[1]))"
    name = run(sys.executable, "-c", build, tmp_path, cwd=copy).splitlines()[-1]
    with tarfile.open(tmp_path / name) as archive:
        found = {Path(*Path(member).parts[1:]).as_posix() for member in archive.getnames()}
    wanted = {
        path.relative_to(ROOT).as_posix()
        for suffix in ("pyx", "pxd", "pyi", "h")
        for path in KERNELS.rglob(f"*.{suffix}")
    }
    assert wanted <= found
    assert {"setup.py", "pyproject.toml", "src/bascule/py.typed", "src/bascule/spark/log4j2.properties"} <= found
    assert not [name for name in found if name.endswith(".so") or name.startswith("tests/")]


def test_a_wheel_runs_in_an_empty_environment(copy: Path, tmp_path: Path) -> None:
    """The wheel has the kernels that were compiled already; what it depends on comes from the environment of the tests."""
    build = "import sys, setuptools.build_meta as backend; print(backend.build_wheel(sys.argv[1]))"
    name = run(sys.executable, "-c", build, tmp_path, cwd=copy, KERNELS="prebuilt").splitlines()[-1]
    assert not name.endswith("-none-any.whl"), "the kernels are for one platform"
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--no-deps",
        "--no-index",
        tmp_path / name,
        cwd=tmp_path,
    )
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    # a plain path: the editable installation of the checkout, in a file beside it, is not followed
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    shown = run(python, "-c", "import bascule, bascule.client.client; print(bascule.__file__)", cwd=tmp_path).strip()
    assert Path(shown).is_relative_to(tmp_path)
    modules = {path.relative_to(KERNELS).with_suffix("").as_posix() for path in KERNELS.rglob("*.pyx")}
    names = [f"bascule.kernels.{module.replace('/', '.')}" for module in sorted(modules)]
    run(python, "-c", f"import importlib\nfor name in {names}: importlib.import_module(name)", cwd=tmp_path)
    assert "0.1.0" in run(tmp_path / "venv" / "bin" / "bascule", "--version", cwd=tmp_path)
