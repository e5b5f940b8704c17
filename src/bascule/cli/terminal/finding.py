"""The result of one check of `bascule doctor` or `bascule pipeline check`."""

from __future__ import annotations

from dataclasses import dataclass

OK, WARNING, FAILED, SKIPPED = "ok", "warning", "failed", "skipped"


@dataclass(frozen=True, slots=True)
class Check:
    """The thing that was checked, its state, what was found, and what to do next if it failed."""

    name: str
    state: str
    found: str
    next_step: str = ""
