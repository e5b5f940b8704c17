"""Judges histories: could these operations have happened one after the other, each at some moment between its call and its answer?

The search of Wing and Gong with Lowe's memory of states already tried. An operation without an answer may have happened at any time
after its call, or never. Keep histories short or split them by object: the search is exponential in overlapping operations.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Operation:
    process: int
    call: str
    answer: str | None
    """None: nobody knows."""

    started: float
    ended: float
    """When the answer came; infinite for an operation without one."""


Step = Callable[[S, Operation], Iterable[S]]
"""The states an operation with its answer can lead to from a state; none when the answer is impossible there."""


class Judge(Generic[S]):
    def __init__(self, history: Sequence[Operation], step: Step[S]) -> None:
        self._operations = sorted(history, key=lambda operation: operation.started)
        self._step = step
        self._tried: set[tuple[int, S]] = set()

    def accepts(self, initial: S) -> bool:
        """Depth first, with a stack of its own: histories are longer than Python's."""
        everything = (1 << len(self._operations)) - 1
        stack = [(everything, initial)]
        while stack:
            left, state = stack.pop()
            if (left, state) in self._tried:
                continue
            self._tried.add((left, state))
            if self._is_done(left):
                return True
            stack.extend(self._following(left, state))
        return False

    def _is_done(self, left: int) -> bool:
        """Only operations that nobody knows the end of may be left out."""
        return all(operation.answer is None for index, operation in enumerate(self._operations) if left >> index & 1)

    def _following(self, left: int, state: S) -> list[tuple[int, S]]:
        """Any operation may be next that was called before the first of those left had been answered."""
        pending = [index for index in range(len(self._operations)) if left >> index & 1]
        first_end = min(self._operations[index].ended for index in pending)
        return [
            (left & ~(1 << index), following)
            for index in pending
            if self._operations[index].started <= first_end
            for following in self._step(state, self._operations[index])
        ]


def is_linearizable(history: Sequence[Operation], initial: S, step: Step[S]) -> bool:
    return Judge(history, step).accepts(initial)


def existence(present: bool, operation: Operation) -> Iterable[bool]:
    """A thing that is created, deleted and looked for: the object behind a stream's name."""
    outcomes = {
        ("create", False): ("created", True),
        ("create", True): ("exists", True),
        ("delete", True): ("deleted", False),
        ("delete", False): ("missing", False),
        ("look", True): ("present", True),
        ("look", False): ("absent", False),
    }
    answer, following = outcomes[operation.call, present]
    if operation.answer in (None, answer):
        yield following
