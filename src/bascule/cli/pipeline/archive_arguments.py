"""Options of `bascule pipeline archive` and `bascule pipeline compact`."""

from __future__ import annotations

from typing import Annotated

import typer

from bascule.cli.target import completion
from bascule.cli.terminal import values

Streams = Annotated[
    list[str] | None,
    typer.Argument(
        help="The streams to archive.", show_default=False, autocompletion=completion.streams, metavar="STREAM..."
    ),
]
Pattern = Annotated[
    str | None,
    typer.Option(
        "--pattern",
        help="Instead of names: a regular expression, which also matches streams that are created later.",
        show_default=False,
        metavar="REGEX",
    ),
]
Subject = Annotated[
    str | None,
    typer.Option(
        "--subject",
        help="Instead of names: a NATS subject with wildcards, for all streams whose subjects it matches.",
        show_default=False,
        metavar="SUBJECT",
    ),
]
Once = Annotated[bool, typer.Option("--once", help="Archive the existing messages, then exit.")]
Every = Annotated[str, typer.Option("--every", help="Interval between commits.", metavar="DURATION")]
FileSize = Annotated[
    str | None,
    typer.Option("--file-size", help="Target size of a file. Default: 128MB.", metavar="SIZE", show_default=False),
]
CompactEvery = Annotated[
    int | None,
    typer.Option(
        "--compact-every",
        help="Number of commits between merges of small files; 0 for never. Default: 10.",
        min=0,
        metavar="COMMITS",
        show_default=False,
    ),
]
KeepReplaced = Annotated[
    str | None,
    typer.Option(
        "--keep-replaced",
        help="Retention: how long merged files are kept for readers of older versions. Default: 7d.",
        metavar="DURATION",
        show_default=False,
    ),
]
OnDataLoss = Annotated[
    str,
    typer.Option(
        "--on-data-loss",
        help="If retention has deleted messages before they were archived: `fail`, or `skip` them and record the gap.",
        metavar="CHOICE",
    ),
]
Cursor = Annotated[
    str | None,
    typer.Option(
        "--cursor",
        help='Cursor in which the brokers store the position. Default: `archive:` and the name of the folder; "" for none.',
        show_default=False,
        metavar="NAME",
    ),
]


def kept_seconds(text: str | None) -> float | None:
    """The seconds of `--keep-replaced`."""
    found = values.duration("--keep-replaced", text)
    return None if found is None else found.total_seconds()
