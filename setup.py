"""Builds the Cython kernels. pyproject.toml has all other settings of the project."""

from __future__ import annotations

import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

KERNELS = Path("src/bascule/kernels")
TEST_KERNELS = Path("tests/support/kernels")


def kernel(source: Path) -> Extension:
    return Extension(
        ".".join(source.with_suffix("").parts).removeprefix("src."),
        [str(source)],
        include_dirs=sorted({str(header.parent) for header in KERNELS.rglob("*.h")}),
        depends=[str(header) for header in KERNELS.rglob("*.h")],
        extra_compile_args=["-O3", "-fno-strict-aliasing"],
    )


sources = sorted(KERNELS.rglob("*.pyx"))
package_dir = {
    "": "src"
}  # with another entry, an editable install hides pyspark_bascule from Spark's search for data sources
if "--inplace" in sys.argv:  # no wheel contains the kernels of the tests
    sources += sorted(TEST_KERNELS.glob("*.pyx"))
    package_dir["tests"] = "tests"

setup(
    package_dir=package_dir,
    ext_modules=cythonize(
        [kernel(source) for source in sources],
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
