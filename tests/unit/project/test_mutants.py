"""The planted bugs of tools/mutants.py can still be planted, and the tests that must kill them are there. `make mutants` runs them."""

from __future__ import annotations

import ast

import pytest

from tools.mutants import MUTANTS, ROOT, Mutant, applied


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_still_has_its_place_and_its_test(mutant: Mutant) -> None:
    text = applied(mutant, ROOT)
    ast.parse(text)
    file, _, test = mutant.killer.partition("::")
    functions = {
        node.name for node in ast.parse((ROOT / file).read_text("utf-8")).body if isinstance(node, ast.FunctionDef)
    }
    assert test in functions


def test_there_are_enough_planted_bugs_and_each_is_another() -> None:
    assert len(MUTANTS) >= 20
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)


def test_a_bug_whose_place_is_gone_is_reported() -> None:
    gone = Mutant("gone", MUTANTS[0].file, "this line was rewritten", "", MUTANTS[0].killer)
    with pytest.raises(ValueError, match="occurs 0 times"):
        applied(gone, ROOT)
