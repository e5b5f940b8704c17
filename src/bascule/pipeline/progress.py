"""What a pipeline has done: counted by batch, so that a batch that comes again counts once. Written beside the checkpoint."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bascule.pipeline.sinks.table import write_document


@dataclass(slots=True)
class BatchReport:
    """One batch."""

    id: int
    read: int
    """Messages."""
    rows: int
    """What the steps left."""
    sinks: dict[str, int] = field(default_factory=dict)
    """Rows that each sink got."""
    dead_letters: int = 0
    broken: dict[str, int] = field(default_factory=dict)
    """Rows that broke each rule."""
    seconds: float = 0.0
    late: int = 0
    """Rows that came too late for a window."""
    steps: dict[str, dict[str, float]] = field(default_factory=dict)
    """By step and sink: rows `in`, `out`, `dead_letters`, and `seconds`; as far as they are known."""


@dataclass(slots=True)
class PipelineProgress:
    """All batches so far."""

    batch: int = -1
    batches: int = 0
    at_ns: int = 0
    read: int = 0
    rows: int = 0
    sinks: dict[str, int] = field(default_factory=dict)
    dead_letters: int = 0
    broken: dict[str, int] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)
    late: int = 0
    """Rows that came too late for the steps that keep state, and were dropped."""
    late_batch: int = -1
    """The last batch that had such rows. Spark tells of them when a batch is over: behind the numbers above by one."""

    @classmethod
    def load(cls, path: Path) -> PipelineProgress:
        """It is a report: one that cannot be read begins anew."""
        try:
            found = json.loads(path.read_text("utf-8"))
            return cls(**found)
        except (OSError, ValueError, TypeError):
            return cls()

    def add(self, report: BatchReport) -> bool:
        """False for a batch that was counted before."""
        if report.id <= self.batch:
            return False
        self.batch, self.batches, self.at_ns = report.id, self.batches + 1, time.time_ns()
        self.read += report.read
        self.rows += report.rows
        self.dead_letters += report.dead_letters
        _add(self.sinks, report.sinks)
        _add(self.broken, report.broken)
        self.last = asdict(report)
        return True

    def add_late(self, batch_id: int, rows: int) -> bool:
        """False for a batch that was counted before."""
        if batch_id <= self.late_batch:
            return False
        self.late_batch = batch_id
        self.late += rows
        return True

    def save(self, path: Path) -> None:
        write_document(path, asdict(self))

    def document(self) -> dict[str, Any]:
        return asdict(self)


def late_of(document: Mapping[str, Any]) -> int:
    """Rows that a batch dropped because they came too late, from Spark's report on it."""
    return sum(int(one.get("numRowsDroppedByWatermark", 0)) for one in document.get("stateOperators", ()))


def _add(totals: dict[str, int], more: Mapping[str, int]) -> None:
    for name, count in more.items():
        totals[name] = totals.get(name, 0) + count
