"""`bascule pipeline replay`: an archive or a stream once more into a stream."""

from __future__ import annotations

import contextlib
import os
from datetime import datetime
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bascule.cli.pipeline.pipeline_target import tables
from bascule.cli.target import completion
from bascule.cli.target.target import Json, Target, connected, explain
from bascule.cli.terminal import values
from bascule.cli.terminal.output import note, say, show_json
from bascule.cli.terminal.progress import ProgressBar
from bascule.config.values.shown import plural
from bascule.config.values.shown import rate as per_second
from bascule.errors import BasculeError, InvalidOption, Unavailable

if TYPE_CHECKING:
    from bascule.client.arrow.reader import FlightConnection
    from bascule.pipeline.jobs.replay import ReplayOptions, ReplayReport
    from bascule.pipeline.jobs.replay_source import Position, Source

POSITION_RIGHT = "an offset such as `42`, a time such as `2026-03-01T12:00`, or how long ago as `15m`"


@connected
def replay(
    target: Target,
    source: Annotated[
        str,
        typer.Argument(
            help="A stream, or the folder of an archive: with a `/` in it, such as `./orders`.",
            show_default=False,
            autocompletion=completion.streams,
            metavar="SOURCE",
        ),
    ],
    to: Annotated[str, typer.Option("--to", help="The stream to replay into.", show_default=False, metavar="STREAM")],
    between: Annotated[
        tuple[str, str],
        typer.Option(help="From where, and to before where: offsets, times, or how long ago.", metavar="FROM TO"),
    ] = ("earliest", "latest"),
    rate: Annotated[
        float | None,
        typer.Option(help="Messages in a second. Without it, as fast as it goes.", show_default=False, metavar="N"),
    ] = None,
    partition: Annotated[
        str, typer.Option(help="Where messages go: `same` partition, by `key`, or `round-robin`.", metavar="CHOICE")
    ] = "same",
    create: Annotated[bool, typer.Option("--create", help="Create the stream if it is not there.")] = False,
    partitions: Annotated[
        int | None,
        typer.Option(
            help="Of a stream that is created. Without it, as many as the source has.", show_default=False, metavar="N"
        ),
    ] = None,
    replay_id: Annotated[
        str | None,
        typer.Option("--id", help="Go on with the replay of this id, or begin it.", show_default=False, metavar="ID"),
    ] = None,
    stream: Annotated[
        str | None,
        typer.Option(help="Which stream of an archive that holds several.", show_default=False, metavar="STREAM"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Publish the messages of SOURCE once more, each exactly once and in order, with their keys, headers and times.

    One that was stopped or killed goes on with its --id and repeats nothing.
    """
    from bascule.pipeline.jobs.replay import WAYS, ReplayOptions

    options = ReplayOptions(
        target=to,
        id=replay_id,
        start=position(between[0], "earliest"),
        end=position(between[1], "latest"),
        way=values.choice("--partition", partition, WAYS),
        rate=rate,
        create=create,
        partitions=partitions,
    )
    try:
        report = _run(target, source, stream, options)
    except BasculeError as error:
        if error.hint is None or isinstance(error, Unavailable):
            explain(error, target)
        raise
    if as_json:
        show_json(_document(report))
    else:
        _show(report, source, to)


def _document(report: ReplayReport) -> dict[str, Any]:
    return {
        "id": report.id,
        "messages": report.messages,
        "duplicates": report.duplicates,
        "lost": report.lost,
        "seconds": round(report.seconds, 3),
        "resumed": {str(number): offset for number, offset in report.resumed.items()},
    }


def _show(report: ReplayReport, source: str, to: str) -> None:
    speed = per_second(report.messages / max(report.seconds, 1e-3))
    again = f", {report.duplicates:,} of them were there already" if report.duplicates else ""
    say(f"{plural(report.messages, 'message')} of {source} in {to}{again}; {speed} messages/s.")
    if report.lost:
        lost = plural(report.lost, "offset")
        note(f"{lost} between them were never archived: `bascule pipeline verify {source}` names them")


def position(text: str, open_end: str) -> Position:
    if text == open_end:
        return None
    right = f"`{open_end}`, {POSITION_RIGHT}"
    try:
        found = values.stop("--between", text)
    except InvalidOption:
        raise values.wrong("--between", text, right) from None
    if not isinstance(found, int | datetime):
        raise values.wrong("--between", text, right)
    return found


def _run(target: Target, source: str, stream: str | None, options: ReplayOptions) -> ReplayReport:
    from bascule.client import blocking
    from bascule.pipeline.jobs.replay import Replay

    with tables(target) as connection, blocking.connect(target.server, **target.client_options()) as client:
        job = Replay(client, connection, _source(connection, source, stream), options)
        if options.id is None:
            note(f"replay {job.id}: run it again with --id {job.id} to go on if it is stopped")
        with contextlib.ExitStack() as stack:
            return job.run(_Progress(stack))


class _Progress:
    """A bar, made when it is known how long it has to be."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._bar: ProgressBar | None = None
        self._begun = monotonic()
        self._first = 0

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            self._bar = self._stack.enter_context(ProgressBar("replaying", total))
            self._first = done
        speed = per_second((done - self._first) / max(monotonic() - self._begun, 1e-3))
        self._bar.update(done, f"replaying, {speed} messages/s")


def _source(connection: FlightConnection, source: str, stream: str | None) -> Source:
    from bascule.pipeline.jobs.replay_source import ArchiveSource, LogSource

    if os.sep in source:
        return ArchiveSource(source, stream)
    if stream is not None:
        raise values.wrong("--stream", stream, "left out: SOURCE is a stream itself, and no folder with a `/` in it")
    return LogSource(connection, source)
