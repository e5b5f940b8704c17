"""Rows of measurements: printed as a table, written as JSON."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

OUTPUT = Path(__file__).parent / "out" / "latest.json"


@dataclass(frozen=True, slots=True)
class LoadRow:
    """A server under load. CPU is that of the server's process alone, in seconds per million messages."""

    load: str
    conditions: str
    system: str
    messages_per_second: float
    user_cpu: float
    system_cpu: float
    rss_mb_max: float
    p50_us: float | None = None
    p99_us: float | None = None
    lost: int = 0
    target: str | None = None
    met: bool | None = None

    @property
    def cpu(self) -> float:
        return self.user_cpu + self.system_cpu


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    value: float
    unit: str
    conditions: str
    target: str | None = None
    met: bool | None = None


def measured(name: str, value: float, unit: str, conditions: str) -> Row:
    return Row(name, round(value, 4), unit, conditions)


def at_most(name: str, value: float, unit: str, conditions: str, limit: float) -> Row:
    return Row(name, round(value, 4), unit, conditions, f"≤ {limit:g}", value <= limit)


def at_least(name: str, value: float, unit: str, conditions: str, limit: float) -> Row:
    return Row(name, round(value, 4), unit, conditions, f"≥ {limit:g}", value >= limit)


def publish(rows: Sequence[Row | LoadRow]) -> None:
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps([asdict(row) for row in rows], indent=1, ensure_ascii=False) + "\n")
    console = Console(width=180)
    if figures := [row for row in rows if isinstance(row, Row)]:
        console.print(_figures(figures))
    if loads := [row for row in rows if isinstance(row, LoadRow)]:
        console.print(_loads(loads))


def _figures(rows: Sequence[Row]) -> Table:
    table = Table("measurement", "value", "unit", "conditions", "target", "met", title="Bascule benchmarks")
    for row in rows:
        value = f"{row.value:,.0f}" if row.value >= 1_000 else f"{row.value:g}"
        table.add_row(row.name, value, row.unit, row.conditions, row.target or "", _met(row.met))
    return table


def _loads(rows: Sequence[LoadRow]) -> Table:
    title = "Servers under load; CPU-s/M: CPU seconds of the server process per million messages"
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("load", "system"):
        table.add_column(heading, no_wrap=True)
    for heading in ("msg/s", "CPU-s/M", "user + sys", "RSS MB", "p50 µs", "p99 µs", "lost"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("target", "met"):
        table.add_column(heading, no_wrap=True)
    for load, group in itertools.groupby(rows, key=lambda row: row.load):
        table.add_section()
        table.add_row(load, style="bold")
        for row in group:
            table.add_row(*_load_cells(row))
    return table


def _load_cells(row: LoadRow) -> list[str]:
    return [
        f"  {row.conditions}",
        row.system,
        f"{row.messages_per_second:,.0f}",
        f"{row.cpu:.2f}",
        f"{row.user_cpu:.2f} + {row.system_cpu:.2f}",
        f"{row.rss_mb_max:,.0f}",
        "" if row.p50_us is None else f"{row.p50_us:,.0f}",
        "" if row.p99_us is None else f"{row.p99_us:,.0f}",
        f"{row.lost:,}" if row.lost else "",
        row.target or "",
        _met(row.met),
    ]


def _met(met: bool | None) -> str:
    return "" if met is None else "yes" if met else "NO"
