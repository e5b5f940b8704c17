"""What a doctor says of each thing that was looked at."""

from __future__ import annotations

from dataclasses import dataclass

OK, WARNING, FAILED, SKIPPED = "ok", "warning", "failed", "skipped"


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at, how it is, and what to do next if it is not well."""

    name: str
    state: str
    found: str
    next_step: str = ""
