"""`bascule pipeline …`: the commands of this family."""

from __future__ import annotations

import typer

from bascule.cli.pipeline import archive as pipeline_archive
from bascule.cli.pipeline import host as pipeline_host
from bascule.cli.pipeline import latest as pipeline_latest
from bascule.cli.pipeline import replay as pipeline_replay
from bascule.cli.pipeline import run as pipeline_run
from bascule.cli.pipeline import sql as pipeline_sql
from bascule.cli.pipeline import trials as pipeline_trials

app = typer.Typer(
    help="Run pipelines on Spark: streams to archives, tables and other streams, each message exactly once.",
    no_args_is_help=True,
)

for _command in (
    pipeline_run.init,
    pipeline_run.check,
    pipeline_trials.preview,
    pipeline_trials.test,
    pipeline_run.run,
    pipeline_host.host,
    pipeline_host.hosted,
    pipeline_sql.sql,
    pipeline_archive.archive,
    pipeline_archive.compact,
    pipeline_archive.status,
    pipeline_archive.verify,
    pipeline_archive.repair,
    pipeline_archive.upgrade,
    pipeline_latest.latest,
    pipeline_replay.replay,
):
    app.command()(_command)
