"""Builds the Cython kernels. pyproject.toml has all other settings of the project.

`KERNEL_FLAGS` replaces the compiler's flags for optimization; `make sanitize` uses it. `KERNEL_SOURCES` names the only .pyx files to
compile; `make mutants` uses it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

KERNELS = Path("src/bascule/kernels")
TEST_KERNELS = Path("tests/support/kernels")
FLAGS = os.environ.get("KERNEL_FLAGS", "-O3").split()
WORKERS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def kernel(source: Path) -> Extension:
    return Extension(
        ".".join(source.with_suffix("").parts).removeprefix("src."),
        [str(source)],
        include_dirs=sorted({str(header.parent) for header in KERNELS.rglob("*.h")}),
        depends=[str(header) for header in KERNELS.rglob("*.h")],
        extra_compile_args=[*FLAGS, "-fno-strict-aliasing"],
        extra_link_args=FLAGS,
    )


sources = sorted(KERNELS.rglob("*.pyx"))
package_dir = {
    "": "src"
}  # with another entry, an editable install hides pyspark_bascule from Spark's search for data sources
if "--inplace" in sys.argv:  # no wheel contains the kernels of the tests
    sources += sorted(TEST_KERNELS.glob("*.pyx"))
    package_dir["tests"] = "tests"

if chosen := os.environ.get("KERNEL_SOURCES", "").split():
    sources = [source for source in sources if str(source) in chosen]

setup(
    package_dir=package_dir,
    ext_modules=cythonize(
        [kernel(source) for source in sources],
        include_path=["src"],
        build_dir="build/cython",
        nthreads=WORKERS if __name__ == "__main__" and sys.platform == "linux" else 0,  # its workers are forks
        language_level=3,
        compiler_directives={
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
        },
    ),
    options={"build_ext": {"parallel": WORKERS}},
)
