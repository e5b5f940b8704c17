"""The tree is the architecture: which ring may import which, and how large things may get. Planted violations prove the checker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.layout import FILE_LINES_MAX, FUNCTION_LINES_MAX, ROOT, check_tree


def test_the_layout_holds() -> None:
    assert [str(violation) for violation in check_tree(ROOT)] == []


def plant(root: Path, file: str, text: str) -> list[str]:
    path = root / "src" / "bascule" / file
    path.parent.mkdir(parents=True)
    path.write_text(text, "utf-8")
    return [f"{violation.line}: {violation.problem}" for violation in check_tree(root)]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("raft/core/node.py", "from bascule.log import segment"),
        ("raft/core/node.py", "from bascule import config"),
        ("raft/core/node.py", "import bascule.kernels.records.records"),
        ("raft/core/node.py", "from ...log import segment"),
        ("raft/core/node.py", "def f():\n    from bascule.net import tls"),
        ("core/plan.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from bascule.log import segment"),
        ("kernels/reference.py", "from bascule import limits"),
        ("kernels/reference.py", "from bascule.errors import BasculeError"),
        ("kernels/records/records.pyi", "from bascule.errors import BasculeError"),
        ("kernels/records/records.pyx", "from bascule.errors import BasculeError"),
        ("kernels/records/records.pyx", "from bascule.core.log cimport plan"),
        ("kernels/records/records.pyx", "cimport bascule.net.wire"),
        ("kernels/records/records.pyx", "import os, bascule.limits"),
        ("kernels/records/records.pyx", "def f():\n    from bascule import limits as bounds"),
        ("kernels/records/records.pxd", "from ..log.segment cimport x"),
        ("log/segments/segment.py", "from bascule.config import load"),
        ("log/segments/segment.py", "from bascule.net import tls"),
        ("net/tls.py", "from bascule.core import partition"),
        ("net/tls.py", "from bascule.log import segment"),
        ("config/loading.py", "from bascule.log import segment"),
        ("client/consume/consumer.py", "from bascule.broker import broker"),
        ("spark/source.py", "import bascule.broker.api"),
        ("pipeline/runner.py", "from bascule import broker"),
        ("cli/main.py", "from bascule.broker.broker import Broker"),
        ("errors.py", "from bascule import limits"),
        ("__init__.py", "from bascule import log"),
        ("surprise/thing.py", "x = 1"),
    ],
)
def test_a_forbidden_import_is_found(tmp_path: Path, file: str, text: str) -> None:
    assert len(plant(tmp_path, file, text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "import os",
        "import os.path",
        "import asyncio",
        "import socket",
        "from time import monotonic_ns",
        "from random import Random",
        "import threading",
        "from io import BytesIO",
        "from pathlib import Path",
        "def f():\n    return open('x')",
    ],
)
def test_an_impure_core_is_found(tmp_path: Path, text: str) -> None:
    problems = plant(tmp_path, "core/log/plan.py", text)
    assert len(problems) == 1
    assert "pure" in problems[0]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (
            "raft/core/node.py",
            "from bascule import errors, limits\nfrom bascule.core.raft import log\nfrom . import tracker\nimport enum",
        ),
        (
            "kernels/records/records.pyx",
            "cimport cython\nfrom libc.string cimport memcpy\nfrom bascule.kernels.wire.numbers cimport x\nfrom . cimport y",
        ),
        ("kernels/records/records.pyi", "from typing_extensions import Buffer"),
        (
            "log/segments/segment.py",
            "import os\nfrom bascule.core.log import plan\nfrom bascule.kernels import records\nfrom bascule import limits",
        ),
        ("broker/broker.py", "from bascule import client, config, core, log, net"),
        (
            "cli/main.py",
            "from bascule import __version__\nfrom bascule.config import load\nfrom bascule.log import segment",
        ),
        ("__init__.py", "from bascule.errors import BasculeError"),
    ],
)
def test_an_allowed_import_is_left_alone(tmp_path: Path, file: str, text: str) -> None:
    assert plant(tmp_path, file, text) == []


def body(lines: int) -> str:
    return "".join(f"    x{number} = {number}\n" for number in range(lines))


@pytest.mark.parametrize("head", ["def f():\n", "async def f():\n", "class C:\n  def f(self):\n"])
def test_a_long_function_is_found(tmp_path: Path, head: str) -> None:
    problems = plant(tmp_path, "log/segments/segment.py", head + body(FUNCTION_LINES_MAX))
    assert len(problems) == 1
    assert "`f` has 81 lines" in problems[0]


@pytest.mark.parametrize(
    "head",
    [
        "cdef int f(int a) noexcept nogil:\n",
        "cpdef f():\n",
        "def f(\n    a,\n) -> None:\n",
        "cdef class C:\n  cdef inline int f(self):\n",
    ],
)
def test_a_long_cython_function_is_found(tmp_path: Path, head: str) -> None:
    problems = plant(tmp_path, "kernels/records/records.pyx", head + body(FUNCTION_LINES_MAX) + "\n\nY = 1\n")
    assert len(problems) == 1
    assert "`f` has" in problems[0]


def test_a_function_that_fits_is_left_alone(tmp_path: Path) -> None:
    text = "def f():\n" + body(FUNCTION_LINES_MAX - 1) + "\n\ndef g():\n" + body(FUNCTION_LINES_MAX - 1)
    assert plant(tmp_path, "kernels/records/records.pyx", text) == []


@pytest.mark.parametrize(
    "file", ["log/segments/segment.py", "kernels/records/records.pyx", "kernels/records/records.pxd"]
)
def test_a_long_file_is_found(tmp_path: Path, file: str) -> None:
    problems = plant(tmp_path, file, "x = 1\n" * (FILE_LINES_MAX + 1))
    assert problems == [f"1: {FILE_LINES_MAX + 1} lines; a file has at most {FILE_LINES_MAX}"]
