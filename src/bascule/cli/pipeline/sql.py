"""`bascule pipeline sql`: runs SQL queries over streams and archives."""

from __future__ import annotations

import csv
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bascule.cli.pipeline.pipeline_target import Master, StorageOption, source_options
from bascule.cli.pipeline.silent_spark import quiet_session
from bascule.cli.target.target import Json, Target, connected, explain
from bascule.cli.terminal import values
from bascule.cli.terminal.output import is_terminal, note, say, show_json, show_rows
from bascule.config.values.shown import plural
from bascule.errors import BasculeError, InvalidOption
from bascule.lake.delta.place import storage_options

if TYPE_CHECKING:
    from bascule.pipeline.sql import Continuous, SqlOptions, SqlSession


def _text(option: str, metavar: str, help: str) -> Any:  # noqa: A002
    return typer.Option(option, metavar=metavar, help=help, show_default=False)


Query = Annotated[str, typer.Argument(help="The query; streams are tables.", show_default=False, metavar="QUERY")]
Archives = Annotated[
    list[str] | None,
    _text(
        "--archive", "NAME=FOLDER", "Define a table: an archive and, if its stream exists, the stream's newer messages."
    ),
]
Values = Annotated[
    list[str] | None,
    _text("--value", "STREAM=FORMAT:SCHEMA", "Decode values: `orders=json:id BIGINT, item STRING`."),
]
Rows = Annotated[int, typer.Option("--rows", min=1, max=1_000_000, help="Maximum number of rows to print.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]
IntoStream = Annotated[
    str | None,
    _text(
        "--into-stream",
        "STREAM",
        "Publish each row of the result to this stream exactly once; without --continuous, every run publishes again.",
    ),
]
IntoPath = Annotated[str | None, _text("--into-path", "FOLDER", "Write the result to this folder as Parquet.")]
Create = Annotated[bool, typer.Option("--create", help="Create the stream if it does not exist.")]
RunsOn = Annotated[bool, typer.Option("--continuous", help="Keep running, and process new messages.")]
CheckpointPath = Annotated[str | None, _text("--checkpoint", "FOLDER", "Checkpoint of a continuous query.")]
Watermarks = Annotated[
    list[str] | None, _text("--watermark", "STREAM=DURATION", "Maximum lateness of rows, for windows and joins.")
]
Mode = Annotated[
    str, typer.Option("--mode", help="Write rows once they are final (`append`), or whenever they change (`update`).")
]
Every = Annotated[str, typer.Option("--every", metavar="DURATION", help="Interval between batches, with --continuous.")]
Once = Annotated[bool, typer.Option("--once", help="With --continuous: process the existing messages, then exit.")]


@connected
def sql(
    target: Target,
    query: Query,
    archive: Archives = None,
    storage: StorageOption = None,
    value: Values = None,
    rows: Rows = 1000,
    as_json: Json = False,
    as_csv: Csv = False,
    into_stream: IntoStream = None,
    into_path: IntoPath = None,
    create: Create = False,
    continuous: RunsOn = False,
    checkpoint: CheckpointPath = None,
    watermark: Watermarks = None,
    mode: Mode = "append",
    every: Every = "10s",
    once: Once = False,
    master: Master = None,
) -> None:
    """Run a query over streams and archives and print the result, or write it, once or continuously, to a stream or a folder."""
    from bascule.pipeline.sql import SqlOptions, SqlSession, local_folder, streams_there

    options = SqlOptions(
        query=query,
        connection={"servers": target.server, **source_options(target)},
        archives=dict(_pair("--archive", text, "`orders=/lake/orders`") for text in archive or ()),
        storage=storage_options(storage),
        values=dict(_value(text) for text in value or ()),
        watermarks_ns=dict(_watermark(text) for text in watermark or ()),
    )
    if into_path is not None:
        local_folder(into_path)  # raises for an object store, before Spark starts
    runs_on = _continuous(continuous, into_stream, into_path, checkpoint, mode, every, create, once, bool(watermark))
    try:
        streams_there(options, streaming=continuous)  # before Spark starts, so that a wrong address fails at once
        with quiet_session("bascule sql", master) as spark:
            session = SqlSession(spark, options)
            if runs_on is not None:
                _run_on(session, runs_on, once=once)
            elif into_stream is not None or into_path is not None:
                _write(session, options, into_stream, into_path, create=create)
            else:
                _answer(session, rows, as_json=as_json, as_csv=as_csv)
    except BasculeError as error:
        if error.hint is None:
            explain(error, target)
        raise


def _answer(session: SqlSession, rows_max: int, *, as_json: bool, as_csv: bool) -> None:
    from bascule.pipeline.sql import cells

    names, rows, has_more = cells(session.frame(), rows_max)
    if as_json:
        show_json([dict(zip(names, row, strict=True)) for row in rows])
    elif as_csv:
        writer = csv.writer(sys.stdout)
        writer.writerow(names)
        writer.writerows(["" if cell is None else cell for cell in row] for row in rows)
    else:
        numbers = [
            name
            for column, name in enumerate(names)
            if rows and all(isinstance(row[column], (int, float)) for row in rows)
        ]
        show_rows(names, [["" if cell is None else cell for cell in row] for row in rows], right=numbers)
        if is_terminal():
            note(plural(len(rows), "row"))
    if has_more:
        note(f"the result has more than {rows_max:,} rows; `--rows` prints more, `--into-path` writes all of them")


def _write(session: SqlSession, options: SqlOptions, stream: str | None, path: str | None, *, create: bool) -> None:
    from bascule.pipeline.sql import write_stream, write_table
    from bascule.spark.errors.failures import from_spark

    frame = session.frame()
    try:
        if stream is not None:
            write_stream(frame, options.connection, stream, create=create)
        else:
            write_table(frame, path or "")
    except Exception as error:
        raise from_spark(error) from None
    say(f"Wrote the result to {f'stream {stream}' if stream is not None else path}.")


def _run_on(session: SqlSession, target: Continuous, *, once: bool) -> None:
    from bascule.pipeline.display import Display
    from bascule.pipeline.runner import wait
    from bascule.spark.errors.failures import from_spark

    query = session.start(target, once=once)
    with Display("sql", live=True, is_remote=True) as display:
        try:
            wait(query, display.progress)
        except KeyboardInterrupt:
            note("stopped; run it again to continue")
            raise
        except Exception as error:
            raise from_spark(error) from None
    say(display.summary())


# ── options ──────────────────────────────────────────────────────────────────────────────────────


def _continuous(
    continuous: bool,
    stream: str | None,
    path: str | None,
    checkpoint: str | None,
    mode: str,
    every: str,
    create: bool,
    once: bool,
    has_watermark: bool,
) -> Continuous | None:
    from pathlib import Path

    from bascule.pipeline.sql import Continuous, local_folder

    if stream is not None and path is not None:
        raise InvalidOption("`--into-stream` and `--into-path` are given together", hint="choose one of them")
    if mode not in ("append", "update"):
        raise values.wrong("--mode", mode, "`append` or `update`")
    if not continuous:
        for option, given in (
            ("--once", once),
            ("--checkpoint", checkpoint),
            ("--watermark", has_watermark),
            ("--mode", mode != "append"),
        ):
            if given:
                raise InvalidOption(f"`{option}` needs a continuous query", hint="add `--continuous`, or leave it out")
        return None
    if stream is None and path is None:
        raise InvalidOption("a continuous query needs a target", hint="give `--into-stream` or `--into-path`")
    if path is not None and mode == "update":
        raise values.wrong("--mode", mode, "`append` with `--into-path`: rows of a table are not replaced")
    if checkpoint is None and path is None:
        raise InvalidOption("a continuous query needs a folder for its checkpoint", hint="give `--checkpoint FOLDER`")
    place = checkpoint or str(Path(local_folder(path or ".")) / "_bascule" / "checkpoint")
    seconds = values.seconds("--every", every) or 0.1
    return Continuous(
        checkpoint=str(Path(place).absolute()),
        stream=stream,
        path=None if path is None else str(local_folder(path).absolute()),
        output_mode=mode,
        trigger_ns=int(seconds * 1e9),
        create=create,
    )


def _pair(option: str, text: str, right: str) -> tuple[str, str]:
    name, is_given, rest = text.partition("=")
    if not name or not is_given or not rest:
        raise values.wrong(option, text, f"a name and its value, such as {right}")
    return name, rest


def _value(text: str) -> tuple[str, tuple[str, str]]:
    right = "`orders=json:id BIGINT, item STRING`"
    name, said = _pair("--value", text, right)
    kind, is_given, schema = said.partition(":")
    if kind not in ("json", "avro") or not is_given or not schema:
        raise values.wrong("--value", text, f"a stream, `json` or `avro`, and a schema, such as {right}")
    return name, (kind, schema)


def _watermark(text: str) -> tuple[str, int]:
    name, said = _pair("--watermark", text, "`orders=10m`")
    return name, int((values.seconds("--watermark", said) or 0) * 1e9)
