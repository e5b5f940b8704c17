"""Rows of measurements: printed as a table, written as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

OUTPUT = Path(__file__).parent / "out" / "latest.json"


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


def publish(rows: Sequence[Row]) -> None:
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps([asdict(row) for row in rows], indent=1, ensure_ascii=False) + "\n")
    table = Table("measurement", "value", "unit", "conditions", "target", "met", title="Bascule benchmarks")
    for row in rows:
        met = "" if row.met is None else "yes" if row.met else "NO"
        value = f"{row.value:,.0f}" if row.value >= 1_000 else f"{row.value:g}"
        table.add_row(row.name, value, row.unit, row.conditions, row.target or "", met)
    Console(width=140).print(table)
