"""Builds the Cython kernels. pyproject.toml has all other settings of the project.

`KERNEL_FLAGS` replaces the compiler's flags for optimization; `make sanitize` uses it. With `KERNELS=prebuilt` a wheel gets the kernels
that `make build` has compiled in place; tests use it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from setuptools import Distribution, Extension, setup
from setuptools.command.build_py import build_py

KERNELS = Path("src/bascule/kernels")
TEST_KERNELS = Path("tests/support/kernels")
FLAGS = os.environ.get("KERNEL_FLAGS", "-O3").split()
WORKERS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
SOURCES_ONLY = ("sdist", "egg_info", "dist_info")
"""Commands that need no compiler. MANIFEST.in lists the sources of the kernels."""


def kernel(source: Path) -> Extension:
    return Extension(
        ".".join(source.with_suffix("").parts).removeprefix("src."),
        [str(source)],
        include_dirs=sorted({str(header.parent) for header in KERNELS.rglob("*.h")}),
        depends=[str(header) for header in KERNELS.rglob("*.h")],
        extra_compile_args=[*FLAGS, "-fno-strict-aliasing"],
        extra_link_args=FLAGS,
    )


def compiled(sources: list[Path]) -> list[Extension]:
    from Cython.Build import cythonize

    found: list[Extension] = cythonize(
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
    )
    return found


class KernelDistribution(Distribution):
    """A distribution for one platform, though setuptools compiles nothing."""

    def has_ext_modules(self) -> bool:
        return True


class CopyKernels(build_py):
    def run(self) -> None:
        super().run()
        for library in KERNELS.rglob("*.so"):
            target = Path(self.build_lib) / library.relative_to("src")
            self.mkpath(str(target.parent))
            self.copy_file(str(library), str(target))


sources = sorted(KERNELS.rglob("*.pyx"))
package_dir = {
    "": "src"
}  # with another entry, an editable install hides pyspark_bascule from Spark's search for data sources
if "--inplace" in sys.argv:  # no wheel contains the kernels of the tests
    sources += sorted(TEST_KERNELS.glob("*.pyx"))
    package_dir["tests"] = "tests"

arguments: dict[str, Any] = {}
if os.environ.get("KERNELS") == "prebuilt":
    arguments = {"distclass": KernelDistribution, "cmdclass": {"build_py": CopyKernels}}
elif not any(command in sys.argv for command in SOURCES_ONLY):
    arguments = {"ext_modules": compiled(sources)}

setup(package_dir=package_dir, options={"build_ext": {"parallel": WORKERS}}, **arguments)
