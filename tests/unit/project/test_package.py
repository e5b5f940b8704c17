"""What a package contains: setuptools takes Python files by itself, and of other files only those that pyproject.toml names."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SOURCES = (".pyx", ".pxd", ".pyi", ".h", ".typed", ".properties")


def test_a_package_has_every_file_that_the_kernels_are_compiled_from() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["bascule"]
    package = ROOT / "src" / "bascule"
    others = [path.relative_to(package) for path in package.rglob("*") if path.suffix in SOURCES]
    assert any(name.suffix == ".pyx" for name in others)
    missing = [str(name) for name in others if not any(name.match(pattern) for pattern in patterns)]
    assert missing == []
