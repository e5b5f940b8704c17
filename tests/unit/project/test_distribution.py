"""What is built for others to install: a source distribution that can be compiled, and a wheel that runs in an empty environment."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from tests.support.distribution import ROOT, built, copied, installed, run

KERNELS = ROOT / "src" / "bascule" / "kernels"


def test_a_source_distribution_has_the_sources_of_the_kernels(tmp_path: Path) -> None:
    with tarfile.open(built("sdist", copied(tmp_path), tmp_path)) as archive:
        found = {Path(*Path(member).parts[1:]).as_posix() for member in archive.getnames()}
    wanted = {
        path.relative_to(ROOT).as_posix()
        for suffix in ("pyx", "pxd", "pyi", "h")
        for path in KERNELS.rglob(f"*.{suffix}")
    }
    assert wanted <= found
    assert {"setup.py", "pyproject.toml", "src/bascule/py.typed", "src/bascule/spark/log4j2.properties"} <= found
    assert not [name for name in found if name.endswith(".so") or name.startswith("tests/")]


def test_a_wheel_runs_in_an_empty_environment(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    """The wheel has the kernels that were compiled already; what it depends on comes from the environment of the tests."""
    venv = installed(tmp_path_factory)
    python = venv / "bin" / "python"
    shown = run(python, "-c", "import bascule, bascule.client.client; print(bascule.__file__)", cwd=tmp_path).strip()
    assert Path(shown).is_relative_to(venv)
    modules = {path.relative_to(KERNELS).with_suffix("").as_posix() for path in KERNELS.rglob("*.pyx")}
    names = [f"bascule.kernels.{module.replace('/', '.')}" for module in sorted(modules)]
    run(python, "-c", f"import importlib\nfor name in {names}: importlib.import_module(name)", cwd=tmp_path)
    assert "0.1.0" in run(venv / "bin" / "bascule", "--version", cwd=tmp_path)
