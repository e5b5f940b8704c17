"""The planted bugs of tools/mutants can still be planted, and the tests that must kill them are there. `make mutants` runs them."""

from __future__ import annotations

import ast
import functools

import pytest

from tools.mutants import MUTANTS, ROOT, Mutant, applied
from tools.mutants.workshop import Verdict, Workshop


@functools.cache
def names_in(file: str) -> set[str]:
    functions = ast.FunctionDef, ast.AsyncFunctionDef
    body = ast.parse((ROOT / file).read_text("utf-8")).body
    return {node.name for node in body if isinstance(node, functions)}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_still_has_its_place_and_its_test(mutant: Mutant) -> None:
    text = applied(mutant, ROOT)
    if mutant.kernel is None:
        ast.parse(text)
    else:
        assert mutant.kernel.endswith(".pyx") and (ROOT / mutant.kernel).exists()
    file, _, test = mutant.killer.partition("::")
    assert test.partition("[")[0] in names_in(file)


def test_there_are_enough_planted_bugs_and_each_is_another() -> None:
    assert len(MUTANTS) >= 400
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)


def test_a_bug_whose_place_is_gone_is_reported() -> None:
    gone = Mutant("gone", MUTANTS[0].file, "this line was rewritten", "", MUTANTS[0].killer)
    with pytest.raises(ValueError, match="occurs 0 times"):
        applied(gone, ROOT)


# ── a workshop ───────────────────────────────────────────────────────────────────────────────────

SOURCE = "def half(number):\n    return number // 2\n"
TEST = """
import time
from small import half

def test_half():
    assert half(4) == 2

def test_weak():
    half(4)

def test_slow():
    time.sleep(0 if half(4) == 2 else 600)
"""


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """A copy of a project with one module."""
    root = tmp_path_factory.mktemp("project")
    for name, text in (("src/small.py", SOURCE), ("tests/test_small.py", TEST)):
        (root / name).parent.mkdir()
        (root / name).write_text(text)
    return Workshop(tmp_path_factory.mktemp("copies") / "copy", root)


def tried(workshop: Workshop, test: str, old: str = "// 2", new: str = "// 3", seconds: float = 60) -> Verdict:
    mutant = Mutant("wrong", "src/small.py", old, new, f"tests/test_small.py::{test}")
    verdict = workshop.by_test(mutant, seconds).verdict
    assert (workshop.folder / "src/small.py").read_text() == SOURCE
    return verdict


def test_a_bug_is_killed_by_a_test_that_fails_or_by_a_crash(workshop: Workshop) -> None:
    assert tried(workshop, "test_half") is Verdict.KILLED
    assert tried(workshop, "test_weak", new="// 2 if number != 4 else __import__('os').abort()") is Verdict.KILLED


def test_a_bug_survives_a_test_that_passes(workshop: Workshop) -> None:
    assert tried(workshop, "test_weak") is Verdict.SURVIVED


def test_a_test_that_hangs_kills_nothing(workshop: Workshop) -> None:
    assert tried(workshop, "test_slow", seconds=5) is Verdict.TIMED_OUT


def test_what_cannot_be_tried_kills_nothing(workshop: Workshop) -> None:
    assert tried(workshop, "test_gone") is Verdict.BROKEN
    assert tried(workshop, "test_half", old="// 5") is Verdict.BROKEN
    assert tried(workshop, "test_half", old="return", new="returns") is Verdict.BROKEN


def test_tests_that_fail_without_a_bug_are_found(workshop: Workshop) -> None:
    assert workshop.passes(["tests/test_small.py"], 1, 60).verdict is Verdict.SURVIVED
    assert workshop.passes(["tests/test_gone.py"], 1, 60).verdict is Verdict.BROKEN
