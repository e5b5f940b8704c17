"""`bascule pipeline …`: streams into a lake and back on Spark, each message exactly once, and the proof of it."""

from __future__ import annotations

import typer

from bascule.cli import pipeline_archive, pipeline_latest, pipeline_replay, pipeline_run, pipeline_sql

app = typer.Typer(
    help="Streams through Spark: into a lake and other streams, each message exactly once, and the proof of it.",
    no_args_is_help=True,
)

for _command in (
    pipeline_run.init,
    pipeline_run.check,
    pipeline_run.run,
    pipeline_sql.sql,
    pipeline_archive.archive,
    pipeline_archive.compact,
    pipeline_archive.status,
    pipeline_archive.verify,
    pipeline_latest.latest,
    pipeline_replay.replay,
):
    app.command()(_command)
