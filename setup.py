"""The Cython kernels. Everything else about the project stands in pyproject.toml."""

from __future__ import annotations

from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

KERNELS = Path("src/bascule/kernels")


def kernel(source: Path) -> Extension:
    return Extension(
        f"bascule.kernels.{source.stem}",
        [str(source)],
        include_dirs=[str(KERNELS)],
        depends=[str(header) for header in KERNELS.glob("*.h")],
        extra_compile_args=["-O3", "-fno-strict-aliasing"],
    )


setup(
    ext_modules=cythonize(
        [kernel(source) for source in sorted(KERNELS.glob("*.pyx"))],
        include_path=["src"],
        build_dir="build/cython",
        language_level=3,
        compiler_directives={
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
        },
    ),
)
