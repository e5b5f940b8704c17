"""The layout of `src/bascule/` holds, and the checker finds each planted violation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.layout import FILE_LINES_MAX, FOLDER_FILES_MAX, FUNCTION_LINES_MAX, PACKAGE, ROOMS, ROOT, check_tree, table

FEW: dict[str, tuple[str, ...]] = {
    "errors": (),
    "limits": (),
    "kernels.wire": (),
    "kernels.records": ("kernels.wire",),
    "log.core": ("limits",),
    "log": ("errors", "kernels.records", "log.core"),
    "broker": ("log",),
    "__init__": ("errors",),
}
"""A smaller house, for the violations that are planted here. A planted tree has only the files that a test names."""


def test_the_layout_holds() -> None:
    assert [str(violation) for violation in check_tree(ROOT)] == []


def test_contributing_shows_the_rooms_as_they_are() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    assert table(ROOT / "src" / PACKAGE) in text, "put the output of `python -m tools.layout --table` there"


def test_every_room_is_listed_after_the_rooms_that_it_imports() -> None:
    seen: set[str] = set()
    for room, targets in ROOMS.items():
        assert set(targets) <= seen, room
        seen.add(room)


def test_no_two_concepts_import_each_other() -> None:
    reached = {(room.partition(".")[0], target.partition(".")[0]) for room in ROOMS for target in ROOMS[room]}
    assert [(one, other) for one, other in reached if one < other and (other, one) in reached] == []


def plant(root: Path, files: dict[str, str], rooms: dict[str, tuple[str, ...]] | None = None) -> list[str]:
    """The problems of a tree with just these files. Rooms that ROOMS lists as imported and are not are left out."""
    for file, text in files.items():
        path = root / "src" / PACKAGE / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    found = check_tree(root, FEW if rooms is None else rooms)
    return [violation.problem for violation in found if rooms is not None or "does not import" not in violation.problem]


HOUSE = {
    "errors.py": "",
    "limits.py": "",
    "kernels/wire/numbers.pxd": "",
    "kernels/records/records.pyx": "",
    "log/core/plan.py": "",
    "log/store.py": "",
    "broker/main.py": "",
    "__init__.py": "",
}


@pytest.mark.parametrize(
    ("file", "text", "target"),
    [
        ("log/core/node.py", "from bascule.log import store", "log"),
        ("log/core/node.py", "from bascule import log", "log"),
        ("log/core/node.py", "import bascule.kernels.records.records", "kernels.records"),
        ("log/core/node.py", "from ...kernels.wire import numbers", "kernels.wire"),
        ("log/core/node.py", "def f():\n    from bascule.broker import main", "broker"),
        (
            "log/core/node.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from bascule.log.store import S",
            "log",
        ),
        ("kernels/records/keys.py", "from bascule import limits", "limits"),
        ("kernels/records/keys.pyi", "from bascule.errors import BasculeError", "errors"),
        ("kernels/records/keys.pyx", "from bascule.errors import BasculeError", "errors"),
        ("kernels/records/keys.pyx", "from bascule.log.core cimport plan", "log.core"),
        ("kernels/records/keys.pyx", "cimport bascule.log.store", "log"),
        ("kernels/records/keys.pyx", "import os, bascule.limits", "limits"),
        ("kernels/records/keys.pyx", "def f():\n    from bascule import limits as bounds", "limits"),
        ("kernels/records/keys.pxd", "from ...log.store cimport x", "log"),
        (
            "kernels/wire/output.pyx",
            "from bascule.kernels.records.records cimport (\n    A,\n    B,\n)",
            "kernels.records",
        ),
        ("log/segment.py", "from bascule.limits import X", "limits"),
        ("log/segment.py", "from bascule.broker import main", "broker"),
        ("errors.py", "from bascule import limits", "limits"),
        ("__init__.py", "from bascule import log", "log"),
    ],
)
def test_a_forbidden_import_is_found(tmp_path: Path, file: str, text: str, target: str) -> None:
    problems = plant(tmp_path, {**HOUSE, file: text})
    assert set(problems) == {problems[0]}
    assert f"may not import `{target}`" in problems[0]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (
            "log/core/node.py",
            "from bascule import limits\nfrom bascule.log.core import plan\nfrom . import plan\nimport enum",
        ),
        (
            "kernels/records/keys.pyx",
            "cimport cython\nfrom libc.string cimport memcpy\nfrom bascule.kernels.wire.numbers cimport x\nfrom . cimport y",
        ),
        ("kernels/records/keys.pyi", "from collections.abc import Buffer"),
        ("log/segment.py", "import os\nfrom bascule.log.core import plan\nfrom bascule.kernels.records import records"),
        ("broker/broker.py", "from bascule import __version__, log"),
        ("__init__.py", "from bascule.errors import BasculeError"),
    ],
)
def test_an_allowed_import_is_left_alone(tmp_path: Path, file: str, text: str) -> None:
    assert plant(tmp_path, {**HOUSE, file: text}) == []


def test_a_room_that_is_not_listed_is_found(tmp_path: Path) -> None:
    assert "`surprise` is not a room" in plant(tmp_path, {"surprise/thing.py": "x = 1"})[0]


def test_a_listed_import_that_nothing_needs_is_found(tmp_path: Path) -> None:
    problems = plant(tmp_path, {"errors.py": "", "broker/main.py": ""}, {"errors": (), "broker": ("errors",)})
    assert problems == ["`broker` does not import `errors`: remove it from ROOMS"]


def test_a_room_that_imports_one_further_down_the_list_is_found(tmp_path: Path) -> None:
    files = {"errors.py": "", "log/store.py": "from bascule import errors"}
    problems = plant(tmp_path, files, {"log": ("errors",), "errors": ()})
    assert problems == ["`log` imports `errors`, which has to come before it in ROOMS"]


def test_a_crowded_folder_is_found(tmp_path: Path) -> None:
    files = {f"log/file{number}.py": "" for number in range(FOLDER_FILES_MAX + 1)}
    assert plant(tmp_path, files) == [f"{FOLDER_FILES_MAX + 1} source files; a folder has at most {FOLDER_FILES_MAX}"]


def test_a_class_name_that_occurs_twice_is_found(tmp_path: Path) -> None:
    problems = plant(tmp_path, {"log/store.py": "class Range: ...", "broker/main.py": "class Range: ..."})
    assert len(problems) == 1
    assert "class `Range` is also in" in problems[0]


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
    problems = plant(tmp_path, {"log/core/plan.py": text})
    assert len(problems) == 1
    assert "pure" in problems[0]


def body(lines: int) -> str:
    return "".join(f"    x{number} = {number}\n" for number in range(lines))


@pytest.mark.parametrize("head", ["def f():\n", "async def f():\n", "class C:\n  def f(self):\n"])
def test_a_long_function_is_found(tmp_path: Path, head: str) -> None:
    problems = plant(tmp_path, {"log/segment.py": head + body(FUNCTION_LINES_MAX)})
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
    problems = plant(tmp_path, {"kernels/records/records.pyx": head + body(FUNCTION_LINES_MAX) + "\n\nY = 1\n"})
    assert len(problems) == 1
    assert "`f` has" in problems[0]


def test_a_function_that_fits_is_left_alone(tmp_path: Path) -> None:
    text = "def f():\n" + body(FUNCTION_LINES_MAX - 1) + "\n\ndef g():\n" + body(FUNCTION_LINES_MAX - 1)
    assert plant(tmp_path, {"kernels/records/records.pyx": text}) == []


@pytest.mark.parametrize("file", ["log/segment.py", "kernels/records/records.pyx", "kernels/records/records.pxd"])
def test_a_long_file_is_found(tmp_path: Path, file: str) -> None:
    problems = plant(tmp_path, {file: "x = 1\n" * (FILE_LINES_MAX + 1)})
    assert problems == [f"{FILE_LINES_MAX + 1} lines; a file has at most {FILE_LINES_MAX}"]
