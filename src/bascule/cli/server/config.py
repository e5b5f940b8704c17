"""`bascule config …`: prints the configuration reference, and checks configuration files."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bascule.exits import styled

if TYPE_CHECKING:
    from rich.table import Table

    from bascule.config import Loaded, Setting

PIPE_COLUMNS: Final = 240

app = typer.Typer(help="Print the configuration reference, and check configuration files.", no_args_is_help=True)


class ReferenceFormat(StrEnum):
    """Output of `bascule config reference`."""

    MARKDOWN = "markdown"
    YAML = "yaml"


@app.command()
def reference(
    output: Annotated[
        ReferenceFormat,
        typer.Option("--format", help="`markdown` explains every key, `yaml` is a sample file to start from."),
    ] = ReferenceFormat.MARKDOWN,
) -> None:
    """Print every key with its type, default, environment variable and meaning."""
    from bascule.config.reference import render_page, render_sample

    typer.echo(render_page() if output is ReferenceFormat.MARKDOWN else render_sample(), nl=False)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="The configuration file.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Check a file as a server would load it, environment variables included, and list the keys that differ from their defaults."""
    from rich.console import Console

    from bascule.config import load_with_sources

    loaded = load_with_sources(file)
    for warning in loaded.warnings:
        styled(f"warning: {warning}", fg="yellow", err=True)
    if as_json:
        typer.echo(json.dumps(_document(file, loaded), ensure_ascii=False, indent=2))
        return
    changed = _changed(loaded)
    # A pipe has no width; the default of 80 columns would wrap paths.
    console = Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS)
    if changed:
        console.print(_table(changed))
    count = "Every key has its default" if not changed else f"{len(changed)} of {len(loaded.settings)} keys differ"
    typer.echo(f"{file} is valid. {count}.")


def _changed(loaded: Loaded) -> list[Setting]:
    return [setting for setting in loaded.settings if not setting.is_default]


def _document(file: Path, loaded: Loaded) -> dict[str, object]:
    return {
        "file": str(file),
        "warnings": list(loaded.warnings),
        "changed": [
            {
                "key": setting.key.name,
                "value": setting.key.show(setting.value),
                "default": setting.key.show_default(),
                "source": setting.source,
            }
            for setting in _changed(loaded)
        ],
    }


def _table(settings: list[Setting]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("Key", "Value", "Default", "From"):
        table.add_column(title, overflow="fold", no_wrap=title == "Key")
    for setting in settings:
        key = setting.key
        table.add_row(*map(_plain, (key.name, key.show(setting.value), key.show_default(), setting.source)))
    return table


def _plain(text: str) -> str:
    """Escape rich's markup."""
    return text.replace("[", r"\[")
