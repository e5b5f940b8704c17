"""The judge of histories is judged itself: it must accept what can be explained and refuse what cannot."""

from __future__ import annotations

import math
import random

import pytest

from tests.support.linearizability import Operation, existence, is_linearizable


def history(*operations: tuple[str, str | None, float, float]) -> list[Operation]:
    return [Operation(number, call, answer, start, end) for number, (call, answer, start, end) in enumerate(operations)]


EXPLAINED = {
    "nothing": history(),
    "one after the other": history(("create", "created", 0, 1), ("look", "present", 2, 3), ("delete", "deleted", 4, 5)),
    "a look during a create may see either": history(
        ("create", "created", 0, 4), ("look", "absent", 1, 2), ("look", "present", 2.5, 3)
    ),
    "two creates, one wins": history(("create", "exists", 0, 5), ("create", "created", 1, 4)),
    "an unknown create did happen": history(
        ("create", None, 0, math.inf), ("look", "absent", 1, 2), ("look", "present", 3, 4)
    ),
    "an unknown create never happened": history(("create", None, 0, math.inf), ("look", "absent", 9, 10)),
    "an unknown delete happens late": history(
        ("create", "created", 0, 1), ("delete", None, 2, math.inf), ("look", "present", 3, 4), ("look", "absent", 5, 6)
    ),
}

UNEXPLAINED = {
    "an acked create is lost": history(("create", "created", 0, 1), ("look", "absent", 2, 3)),
    "both creates win": history(("create", "created", 0, 5), ("create", "created", 1, 4)),
    "a stale look": history(("create", "created", 0, 1), ("delete", "deleted", 2, 3), ("look", "present", 4, 5)),
    "looks go back in time": history(("create", "created", 0, 9), ("look", "present", 1, 2), ("look", "absent", 3, 4)),
    "an unknown create happens twice": history(
        ("create", None, 0, math.inf), ("look", "present", 1, 2), ("delete", "deleted", 3, 4), ("look", "present", 5, 6)
    ),
    "deleted what never was": history(("delete", "deleted", 0, 1)),
}


@pytest.mark.parametrize("name", EXPLAINED)
def test_what_can_be_explained_is_accepted(name: str) -> None:
    assert is_linearizable(EXPLAINED[name], False, existence)


@pytest.mark.parametrize("name", UNEXPLAINED)
def test_what_cannot_be_explained_is_refused(name: str) -> None:
    assert not is_linearizable(UNEXPLAINED[name], False, existence)


@pytest.mark.parametrize("seed", range(30))
def test_histories_of_a_real_object_are_accepted_and_a_flipped_answer_is_noticed(seed: int) -> None:
    rng = random.Random(seed)
    present, now, made = False, 0.0, []
    for process in range(40):
        call = rng.choice(("create", "delete", "look"))
        moment = now + rng.random()
        answer = {
            ("create", False): "created",
            ("create", True): "exists",
            ("delete", True): "deleted",
            ("delete", False): "missing",
            ("look", True): "present",
            ("look", False): "absent",
        }[call, present]
        present = {"create": True, "delete": False}.get(call, present)
        made.append(Operation(process, call, answer, moment - rng.random() * 2, moment + rng.random() * 2))
        now = moment
    assert is_linearizable(made, False, existence)
    alone = Operation(99, "look", "absent" if present else "present", now + 10, now + 11)
    assert not is_linearizable([*made, alone], False, existence)
