"""`bascule pipeline latest`: keeps the latest message of each key as a Parquet table."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bascule.cli.pipeline.narrator import Narrator
from bascule.cli.pipeline.pipeline_target import Master, source_options
from bascule.cli.pipeline.restarted import Restarts, restarted
from bascule.cli.target import completion
from bascule.cli.target.target import Target, connected, explain
from bascule.cli.terminal import values
from bascule.cli.terminal.output import note, say
from bascule.config.values.shown import plural
from bascule.errors import BasculeError

if TYPE_CHECKING:
    from bascule.lake.latest.table import TableSnapshot

VALUE_RIGHT = "a format and its schema such as `json:id bigint, name string` or `avro:{…}`"


@connected
def latest(
    target: Target,
    path: Annotated[
        Path, typer.Argument(help="The folder of the table.", show_default=False, metavar="TABLE", file_okay=False)
    ],
    streams: Annotated[
        list[str],
        typer.Argument(
            help="The streams to read.", show_default=False, autocompletion=completion.streams, metavar="STREAM..."
        ),
    ],
    once: Annotated[bool, typer.Option("--once", help="Process the existing messages, then exit.")] = False,
    every: Annotated[str, typer.Option(help="Interval between snapshots.", metavar="DURATION")] = "10s",
    key: Annotated[str, typer.Option(help="The key of a row: a column or an SQL expression.", metavar="SQL")] = "key",
    deleted: Annotated[
        str | None,
        typer.Option(
            help="SQL condition for messages that delete their key. Default: messages without a value.",
            metavar="SQL",
            show_default=False,
        ),
    ] = None,
    value: Annotated[
        str | None,
        typer.Option(
            help="Decode values: `json:` with columns, or `avro:` with a schema.",
            metavar="FORMAT:SCHEMA",
            show_default=False,
        ),
    ] = None,
    null_keys: Annotated[
        str, typer.Option(help="Messages without a key: `keep`, `skip` or `fail`.", metavar="CHOICE")
    ] = "keep",
    buckets: Annotated[
        int, typer.Option(help="Number of files of a new table; a change rewrites the file of its key.", metavar="N")
    ] = 16,
    keep: Annotated[str, typer.Option(help="How long a replaced snapshot stays readable.", metavar="DURATION")] = "1h",
    master: Master = None,
    restarts: Restarts = None,
) -> None:
    """Keep the latest message of each key in TABLE as Parquet; a message without a value deletes its key. Run it again to continue."""
    from bascule.pipeline.jobs.latest import LatestOptions, run_latest
    from bascule.spark import session

    keep_for = values.duration("--keep", keep)
    options = LatestOptions(
        streams=tuple(streams),
        path=str(path),
        servers=target.server,
        key=key,
        deleted=deleted,
        buckets=buckets,
        keep_seconds=0.0 if keep_for is None else keep_for.total_seconds(),
        null_keys=values.choice("--null-keys", null_keys, ("keep", "skip", "fail")),
        trigger_seconds=values.seconds("--every", every) or 0.1,
        source={**source_options(target), **value_options(value)},
    )
    try:
        options.selection().stream_ids()  # before Spark starts, so that a misspelt name fails at once
    except BasculeError as error:
        explain(error, target)
        raise
    spark = session(f"latest {path.name}", master)
    try:
        snapshot = restarted(
            lambda noted: run_latest(spark, options, once=once, on_commit=noted(partial(_narrate, Narrator()))),
            restarts,
        )
    except KeyboardInterrupt:
        note("stopped; run it again to continue")
        raise
    finally:
        spark.stop()
    say(f"{plural(snapshot.rows, 'row')} in {plural(len(snapshot.data_files), 'file')} of {path}.")


def value_options(text: str | None) -> dict[str, str]:
    """The options of the Spark source for a value such as `json:id bigint`."""
    if text is None:
        return {}
    name, separator, schema = text.partition(":")
    if name not in ("json", "avro") or not separator or not schema.strip():
        raise values.wrong("--value", text, VALUE_RIGHT)
    return {"valueFormat": name, "valueSchema": schema.strip()}


def _narrate(narrator: Narrator, snapshot: TableSnapshot) -> None:
    narrator.commit(snapshot.at_ns, f"snapshot {snapshot.number}, {plural(snapshot.rows, 'row')}")
