"""`bascule pipeline …`: streams into a lake and back on Spark, each message exactly once, and the proof of it."""

from __future__ import annotations

import typer

from bascule.cli import pipeline_archive

app = typer.Typer(
    help="Archive streams to Parquet with Spark, and prove that nothing is missing.", no_args_is_help=True
)

for _command in (
    pipeline_archive.archive,
    pipeline_archive.status,
    pipeline_archive.verify,
):
    app.command()(_command)
