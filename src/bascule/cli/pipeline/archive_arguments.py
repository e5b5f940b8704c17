"""What `bascule pipeline archive` and its neighbours can be told."""

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
        help="In place of names: a regular expression. Streams that are created later come too.",
        show_default=False,
        metavar="REGEX",
    ),
]
Subject = Annotated[
    str | None,
    typer.Option(
        "--subject",
        help="In place of names: a NATS subject with wildcards, for the streams whose subjects it covers.",
        show_default=False,
        metavar="SUBJECT",
    ),
]
Once = Annotated[bool, typer.Option("--once", help="Archive what is there now and leave.")]
Every = Annotated[str, typer.Option("--every", help="How often to commit while it runs.", metavar="DURATION")]
FileSize = Annotated[
    str | None,
    typer.Option("--file-size", help="How large files may get. Without it 128MB.", metavar="SIZE", show_default=False),
]
CompactEvery = Annotated[
    int | None,
    typer.Option(
        "--compact-every",
        help="Merge small files after so many commits; 0 for never. Without it 10.",
        min=0,
        metavar="COMMITS",
        show_default=False,
    ),
]
KeepReplaced = Annotated[
    str | None,
    typer.Option(
        "--keep-replaced",
        help="How long files stay that were merged, for readers that were told of them before. Without it 1h.",
        metavar="DURATION",
        show_default=False,
    ),
]
OnDataLoss = Annotated[
    str,
    typer.Option(
        "--on-data-loss",
        help="When retention was faster: `fail`, or `skip` to go on without what is gone, which the archive then notes.",
        metavar="CHOICE",
    ),
]
Cursor = Annotated[
    str | None,
    typer.Option(
        "--cursor",
        help='Tell brokers how far it is, as a cursor of this name. Without it `archive:` and the name of the folder; "" for none.',
        show_default=False,
        metavar="NAME",
    ),
]
Format = Annotated[
    str,
    typer.Option(
        "--format",
        help="`parquet`, or `delta` or `iceberg` into a table of Spark's catalog, for which their jar has to be given.",
        rich_help_panel=TABLE_PANEL,
        metavar="FORMAT",
    ),
]
TableName = Annotated[
    str | None,
    typer.Option(
        "--table",
        help="The table for `delta` or `iceberg`. ARCHIVE is then the folder for Spark's notes on the query.",
        show_default=False,
        rich_help_panel=TABLE_PANEL,
        metavar="NAME",
    ),
]
Packages = Annotated[
    str | None,
    typer.Option(
        "--packages",
        help="Jars for Spark to fetch, by their coordinates, with commas in between.",
        show_default=False,
        rich_help_panel=TABLE_PANEL,
        metavar="COORDINATES",
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option(
        "--conf",
        help="A setting of Spark, such as that of a catalog: `spark.x=y`; may be given again.",
        show_default=False,
        rich_help_panel=TABLE_PANEL,
        metavar="KEY=VALUE",
    ),
]


def kept_seconds(text: str | None) -> float | None:
    """Of `--keep-replaced`."""
    found = values.duration("--keep-replaced", text)
    return None if found is None else found.total_seconds()


def spark_settings(conf: list[str] | None, packages: str | None) -> dict[str, str]:
    """Of `--conf` and `--packages`."""
    settings = {} if packages is None else {"spark.jars.packages": packages}
    for text in conf or ():
        name, separator, value = text.partition("=")
        if not separator or not name.startswith("spark."):
            raise values.wrong("--conf", text, "a setting of Spark, such as `spark.driver.memory=2g`")
        settings[name] = value
    return settings


def check_format(table_format: str, table: str | None, only_parquet: dict[str, object]) -> None:
    """An option that would do nothing is an error."""
    values.choice("--format", table_format, FORMATS)
    if table_format == PARQUET:
        if table is not None:
            raise values.wrong("--table", table, "left out, or `--format` must be `delta` or `iceberg`")
        return
    if table is None:
        raise values.wrong("--format", table_format, "`parquet`, or `--table` must name the table")
    for name, value in only_parquet.items():
        if value is not None:
            raise values.wrong(name, value, f"left out: tables of the format `{table_format}` see to that themselves")
