"""`bascule pipeline replay`: publishes an archive or a stream to a stream again."""

from __future__ import annotations

import contextlib
import os
from datetime import datetime
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bascule.cli.pipeline.pipeline_target import StorageOption, tables
from bascule.cli.target import completion
from bascule.cli.target.target import Json, Target, connected, explain
from bascule.cli.terminal import values
from bascule.cli.terminal.output import note, say, show_json
from bascule.cli.terminal.progress import ProgressBar
from bascule.config.values.shown import plural
from bascule.config.values.shown import rate as per_second
from bascule.errors import BasculeError, InvalidOption, Unavailable
from bascule.lake.delta.place import LakePlace, storage_options

if TYPE_CHECKING:
    from bascule.client.arrow.reader import FlightConnection
    from bascule.pipeline.jobs.replay import ReplayOptions, ReplayReport
    from bascule.pipeline.jobs.replay_source import Position, ReplaySource

POSITION_RIGHT = "an offset such as `42`, a time such as `2026-03-01T12:00`, or `15m` for 15 minutes ago"


@connected
def replay(
    target: Target,
    source: Annotated[
        str,
        typer.Argument(
            help="A stream, or the path of an archive, which must contain a `/`, such as `./orders` or `s3://bucket/orders`.",
            show_default=False,
            autocompletion=completion.streams,
            metavar="SOURCE",
        ),
    ],
    to: Annotated[str, typer.Option("--to", help="The stream to replay into.", show_default=False, metavar="STREAM")],
    between: Annotated[
        tuple[str, str],
        typer.Option(
            help="Replay from FROM up to, but not including, TO: offsets, times, or `15m` for 15 minutes ago.",
            metavar="FROM TO",
        ),
    ] = ("earliest", "latest"),
    rate: Annotated[
        float | None,
        typer.Option(help="Maximum messages per second. Default: no limit.", show_default=False, metavar="N"),
    ] = None,
    partition: Annotated[
        str, typer.Option(help="Partition of a message: the `same`, by `key`, or `round-robin`.", metavar="CHOICE")
    ] = "same",
    create: Annotated[bool, typer.Option("--create", help="Create the stream if it does not exist.")] = False,
    partitions: Annotated[
        int | None,
        typer.Option(
            help="Partitions of a created stream. Default: as many as the source has.", show_default=False, metavar="N"
        ),
    ] = None,
    replay_id: Annotated[
        str | None,
        typer.Option("--id", help="Continue the replay with this id, or start it.", show_default=False, metavar="ID"),
    ] = None,
    stream: Annotated[
        str | None,
        typer.Option(help="The stream to replay, if the archive holds several.", show_default=False, metavar="STREAM"),
    ] = None,
    storage: StorageOption = None,
    as_json: Json = False,
) -> None:
    """Publish the messages of SOURCE again, each exactly once and in order, with their keys, headers and times.

    A replay that was stopped or killed continues with its --id, without duplicates.
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
        report = _run(target, source, stream, storage_options(storage), options)
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
    again = f", {report.duplicates:,} of them from an earlier run" if report.duplicates else ""
    say(f"Replayed {plural(report.messages, 'message')} of {source} to {to}{again}; {speed} messages/s.")
    if report.lost:
        lost = plural(report.lost, "offset")
        note(f"{lost} of this range were never archived: `bascule pipeline verify {source}` lists them")


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


def _run(
    target: Target, source: str, stream: str | None, storage: dict[str, str], options: ReplayOptions
) -> ReplayReport:
    from bascule.client import blocking
    from bascule.pipeline.jobs.replay import Replay

    with tables(target) as connection, blocking.connect(target.server, **target.client_options()) as client:
        job = Replay(client, connection, _source(connection, source, stream, storage), options)
        if options.id is None:
            note(f"replay {job.id}: if it is stopped, run it again with --id {job.id} to continue")
        with contextlib.ExitStack() as stack:
            return job.run(_Progress(stack))


class _Progress:
    """A progress bar, created when the total is known."""

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


def _source(connection: FlightConnection, source: str, stream: str | None, storage: dict[str, str]) -> ReplaySource:
    from bascule.pipeline.jobs.replay_source import ArchiveSource, LogSource

    if os.sep in source:
        return ArchiveSource(LakePlace.of(source, storage), stream)
    if stream is not None:
        raise values.wrong("--stream", stream, "left out: SOURCE is a stream, not a folder (a folder contains a `/`)")
    return LogSource(connection, source)
