"""Options of `bascule pipeline archive` and `bascule pipeline compact`."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from bascule.cli.target import completion
from bascule.cli.terminal import values

TABLE_PANEL: Final = "Tables of Delta or Iceberg"
PARQUET: Final = "parquet"
FORMATS: Final = (PARQUET, "delta", "iceberg")

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
        help="How long merged files are kept for readers that still use them. Default: 1h.",
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
Format = Annotated[
    str,
    typer.Option(
        "--format",
        help="`parquet`, or `delta` or `iceberg` for a table of Spark's catalog; these need their jar, see `--packages`.",
        rich_help_panel=TABLE_PANEL,
        metavar="FORMAT",
    ),
]
TableName = Annotated[
    str | None,
    typer.Option(
        "--table",
        help="The table for `delta` or `iceberg`. ARCHIVE is then the folder of the query's checkpoint.",
        show_default=False,
        rich_help_panel=TABLE_PANEL,
        metavar="NAME",
    ),
]
Packages = Annotated[
    str | None,
    typer.Option(
        "--packages",
        help="Maven coordinates of jars for Spark, separated by commas.",
        show_default=False,
        rich_help_panel=TABLE_PANEL,
        metavar="COORDINATES",
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option(
        "--conf",
        help="A Spark setting, for example of a catalog: `spark.x=y`; may be repeated.",
        show_default=False,
        rich_help_panel=TABLE_PANEL,
        metavar="KEY=VALUE",
    ),
]


def kept_seconds(text: str | None) -> float | None:
    """The seconds of `--keep-replaced`."""
    found = values.duration("--keep-replaced", text)
    return None if found is None else found.total_seconds()


def spark_settings(conf: list[str] | None, packages: str | None) -> dict[str, str]:
    """The Spark settings of `--conf` and `--packages`."""
    settings = {} if packages is None else {"spark.jars.packages": packages}
    for text in conf or ():
        name, separator, value = text.partition("=")
        if not separator or not name.startswith("spark."):
            raise values.wrong("--conf", text, "a Spark setting such as `spark.driver.memory=2g`")
        settings[name] = value
    return settings


def check_format(table_format: str, table: str | None, only_parquet: dict[str, object]) -> None:
    """Raise for options that have no effect with this format."""
    values.choice("--format", table_format, FORMATS)
    if table_format == PARQUET:
        if table is not None:
            raise values.wrong("--table", table, "left out, or `--format` must be `delta` or `iceberg`")
        return
    if table is None:
        raise values.wrong("--format", table_format, "`parquet`, or `--table` must name the table")
    for name, value in only_parquet.items():
        if value is not None:
            raise values.wrong(
                name, value, f"left out: tables of the format `{table_format}` manage their files themselves"
            )
