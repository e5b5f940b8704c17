"""The Cython kernels. Everything else about the project stands in pyproject.toml."""

from __future__ import annotations

from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

KERNELS = Path("src/bascule/kernels")


def kernel(source: Path) -> Extension:
    return Extension(
        ".".join(source.relative_to("src").with_suffix("").parts),
        [str(source)],
        include_dirs=sorted({str(header.parent) for header in KERNELS.rglob("*.h")}),
        depends=[str(header) for header in KERNELS.rglob("*.h")],
        extra_compile_args=["-O3", "-fno-strict-aliasing"],
    )


setup(
    ext_modules=cythonize(
        [kernel(source) for source in sorted(KERNELS.rglob("*.pyx"))],
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
