"""Prints results: tables on a terminal, tab-separated lines without a header in a pipe, JSON with `--json`.

Lines in a pipe are for `cut`, `awk` and `read`: an empty column is `-`, nothing is shortened or coloured.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import typer

from bascule.config.values.shown import iso
from bascule.errors import CallerError
from bascule.exits import styled

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

NOTHING: Final = "-"


def is_terminal() -> bool:
    return sys.stdout.isatty()


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


def say(text: str) -> None:
    """Print a line of the result to stdout."""
    typer.echo(text)


def note(text: str) -> None:
    """Print a remark to stderr, which is not part of the result; only if stderr is a terminal."""
    if sys.stderr.isatty():
        styled(text, dim=True, err=True)


def confirm(question: str, hint: str = "") -> None:
    """Ask; ends the command unless the answer is yes. Without a terminal, raises CallerError: scripts give `--yes`."""
    if not sys.stdin.isatty():
        way = "give `--yes` to confirm"
        raise CallerError(f"this needs a confirmation: {question}", hint=f"{way}; {hint}" if hint else way)
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)


def warn(text: str) -> None:
    """Print a warning to stderr, also in a pipe."""
    styled("warning: ", fg="yellow", bold=True, line_break=False, err=True)
    typer.echo(text, err=True)


def show_json(document: object) -> None:
    """Print one indented JSON document."""
    typer.echo(json.dumps(document, ensure_ascii=False, indent=2, default=_plain))


def json_line(document: object) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), default=_plain)


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return iso(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def show_rows(
    titles: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Sequence[str] = (),
    header: bool = False,
    optional: Sequence[str] = (),
) -> None:
    """Print a table. `right` names the columns that are aligned to the right.

    With `header`, a pipe gets a line with the titles first. On a narrow terminal `optional` columns are left out, the first ones first.
    """
    if not is_terminal():
        if header:
            typer.echo("\t".join(title.lower().replace(" ", "-") for title in titles))
        for row in rows:
            typer.echo("\t".join(map(_cell, row)))
        return
    titles, rows = fitting(titles, [[_pretty(cell) for cell in row] for row in rows], optional, console().width)
    console().print(table(titles, rows, right=right))


def fitting(
    titles: Sequence[str], rows: Sequence[Sequence[str]], optional: Sequence[str], width: int
) -> tuple[list[str], list[list[str]]]:
    """The table without as many of the optional columns as it takes to fit the width."""
    shown = list(range(len(titles)))
    for title in optional:
        needed = sum(max(len(titles[one]), *(len(row[one]) for row in rows), 0) + 2 for one in shown)
        if needed - 2 <= width:
            break
        shown.remove(titles.index(title))
    return [titles[one] for one in shown], [[row[one] for one in shown] for row in rows]


def table(titles: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> Table:
    from rich.table import Table
    from rich.text import Text

    found = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title in titles:
        found.add_column(title, justify="right" if title in right else "left", overflow="fold")
    for row in rows:
        # Text, since a name may look like rich's markup.
        found.add_row(*(Text(_pretty(cell), style=_style(cell)) for cell in row))
    return found


def show_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one pair per line."""
    if not is_terminal():
        for name, value in facts:
            typer.echo(f"{name}\t{_cell(value)}")
        return
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for name, value in facts:
        grid.add_row(Text(name, style="bold"), Text(_pretty(value), style=_style(value)))
    console().print(grid)


def _cell(value: object) -> str:
    text = iso(value) if isinstance(value, datetime) else str(value)
    # A tab or a line break in a value would start another column or row.
    return printable(text) if text else NOTHING


def _pretty(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, datetime):
        return iso(value.replace(microsecond=0))
    return printable(str(value)) or NOTHING


_STYLES: Final = {
    "ok": "green",
    "paused": "yellow",
    "readonly": "cyan",
    "warning": "yellow",
    "failed": "bold red",
    "skipped": "dim",
    "no leader": "bold red",
    "cannot commit": "bold red",
    "under-replicated": "bold red",
}


def _style(value: Any) -> str:
    return _STYLES.get(value.partition(",")[0], "") if isinstance(value, str) else ""


def printable(text: str) -> str:
    """The text with control characters and line breaks escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def text_of(data: bytes) -> str:
    """Bytes decoded as UTF-8, with invalid bytes as `\\xff`."""
    return data.decode("utf-8", "backslashreplace")


def known(number: int | None) -> int | str:
    """The number for a table cell, empty if it is not known."""
    return "" if number is None else number
