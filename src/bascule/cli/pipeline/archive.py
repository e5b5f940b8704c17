"""`bascule pipeline archive`, `compact`, `status`, `verify`, `repair`, `upgrade`: archives streams as Delta tables, and proves them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from datetime import UTC
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bascule.cli.pipeline import archive_arguments as arguments
from bascule.cli.pipeline.narrator import Narrator
from bascule.cli.pipeline.pipeline_target import (
    ArchiveOrFile,
    ArchivePath,
    Master,
    StorageOption,
    source_options,
    tables,
)
from bascule.cli.pipeline.restarted import Restarts, restarted
from bascule.cli.pipeline.run import archives_of, show_status
from bascule.cli.pipeline.silent_spark import quiet_session
from bascule.cli.target.target import Json, Target, connected, explain
from bascule.cli.terminal import values
from bascule.cli.terminal.output import note, say, show_facts, show_json, show_rows
from bascule.cli.terminal.progress import ProgressBar
from bascule.config.values.shown import iso_ns, plural
from bascule.errors import ArchiveDamaged, BasculeError, DataLost, MissingExtra
from bascule.lake.delta.place import LakePlace, storage_options
from bascule.lake.holes import named

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bascule.client.arrow.reader import FlightConnection
    from bascule.lake.archive import Archive
    from bascule.lake.facts import Commit, Lost
    from bascule.lake.verification import Cursors, Report
    from bascule.pipeline.jobs.archive import ArchiveOptions


SINCE_RIGHT: Final = "a time such as `2026-11-15`, or `7d` for 7 days ago"


@connected
def archive(
    target: Target,
    path: ArchivePath,
    streams: arguments.Streams = None,
    pattern: arguments.Pattern = None,
    subject: arguments.Subject = None,
    once: arguments.Once = False,
    every: arguments.Every = "10s",
    file_size: arguments.FileSize = None,
    compact_every: arguments.CompactEvery = None,
    keep_replaced: arguments.KeepReplaced = None,
    on_data_loss: arguments.OnDataLoss = "fail",
    cursor: arguments.Cursor = None,
    storage: StorageOption = None,
    master: Master = None,
    restarts: Restarts = None,
) -> None:
    """Archive streams in ARCHIVE, a Delta table, continuously, each message exactly once. Run it again to continue after a stop."""
    _must_have_spark()
    from bascule.pipeline.jobs.archive import ArchiveOptions

    given: dict[str, Any] = {
        "file_bytes": values.size("--file-size", file_size),
        "compact_every": compact_every,
        "keep_replaced_seconds": arguments.kept_seconds(keep_replaced),
    }
    options = ArchiveOptions(
        streams=tuple(streams or ()),
        pattern=pattern,
        subject=subject,
        cursor=cursor,
        path=path,
        storage=storage_options(storage),
        servers=target.server,
        trigger_seconds=values.seconds("--every", every) or 0.1,
        source={
            **source_options(target),
            "onDataLoss": values.choice("--on-data-loss", on_data_loss, ("fail", "skip")),
        },
        **{name: value for name, value in given.items() if value is not None},
    )
    _must_have_streams(options, target)
    try:
        with quiet_session(f"archive {options.place.name}", master) as spark:
            said = _run(spark, options, once, restarts)
    except KeyboardInterrupt:
        note("stopped; run it again to continue")
        raise
    except DataLost as error:
        error.hint = (error.hint or "").replace("set `onDataLoss` to `skip`", "give `--on-data-loss skip`") or None
        raise
    say(said)


def _must_have_spark() -> None:
    """Raise MissingExtra without Spark: the job's module cannot be imported then."""
    try:
        import pyspark  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            f"Spark is not installed: {error.name} is missing", hint='`pip install "bascule[spark]"`'
        ) from None


def _must_have_streams(options: ArchiveOptions, target: Target) -> None:
    """Look up the streams before Spark starts, so that a misspelt name fails at once."""
    try:
        found = options.stream_ids()
    except BasculeError as error:
        explain(error, target)
        raise
    if not found:
        note("no stream matches yet; matching streams are archived when they are created")


def _run(spark: SparkSession, options: ArchiveOptions, once: bool, restarts: int | None) -> str:
    from bascule.pipeline.jobs.archive import run_archive

    state = restarted(
        lambda noted: run_archive(spark, options, once=once, on_commit=noted(partial(_narrate, Narrator()))), restarts
    )
    return f"{plural(state.rows, 'message')} in {plural(len(state.files), 'file')} of {options.path}."


def _narrate(narrator: Narrator, commit: Commit) -> None:
    if commit.kind == "compact":
        narrator.remark(commit.at_ns, f"merged {plural(len(commit.removed), 'file')} into {len(commit.added)}")
        return
    rows = sum(one.rows for one in commit.added)
    narrator.commit(commit.at_ns, f"{plural(rows, 'message')}, {plural(len(commit.added), 'file')}")
    for one in commit.lost:
        narrator.remark(commit.at_ns, _lost_text(one))


def compact(
    path: ArchivePath,
    file_size: arguments.FileSize = None,
    keep_replaced: arguments.KeepReplaced = None,
    storage: StorageOption = None,
) -> None:
    """Merge small files of ARCHIVE into large ones, and delete files that are not needed any more. No other process may write ARCHIVE
    meanwhile."""
    from bascule.lake.archive import Archive
    from bascule.lake.compaction import Compaction, plan_merges
    from bascule.lake.housekeeping import Housekeeping

    target_bytes = values.size("--file-size", file_size or "128MB") or 1
    kept = arguments.kept_seconds(keep_replaced or "7d") or 0.0
    found = Archive(path, storage_options(storage))
    found.describe()
    with found.writing():
        keeper = Housekeeping(found, kept)
        state = keeper.begin()
        before = len(state.files)
        work = Compaction(found, target_bytes=target_bytes)
        total = sum(merge.bytes for merge in plan_merges(state.files.values(), target_bytes))
        with ProgressBar("merging, bytes", total) as bar:
            sizes, done = {one.path: one.bytes for one in state.files.values()}, 0
            while (commit := work.round(state)) is not None:
                keeper.after(commit, state)
                done += sum(sizes.get(name, 0) for name in commit.removed)
                bar.update(done)
    say(f"{plural(before, 'file')} before, {len(state.files)} now; {plural(state.rows, 'message')}.")


@connected
def repair(target: Target, path: ArchivePath, storage: StorageOption = None) -> None:
    """Write lost and damaged files of ARCHIVE again, as far as the log still has their messages. No other process may write ARCHIVE
    meanwhile."""
    from bascule.lake.archive import Archive
    from bascule.lake.repair import repair_files

    found = Archive(path, storage_options(storage))
    with tables(target) as connection:
        report = repair_files(found, connection)
    for text in report.failed:
        say(text)
    if report.failed:
        raise ArchiveDamaged(
            f"{path}: {plural(len(report.failed), 'file')} cannot be repaired, {len(report.repaired)} were",
            hint="restore these files from a backup; `bascule pipeline verify` tells what they held",
        )
    say(f"{plural(len(report.repaired), 'file')} repaired, {report.checked} checked.")


def upgrade(path: ArchivePath) -> None:
    """Make ARCHIVE, which an earlier version has written, a Delta table, in place: its files stay as they are. No other process may
    write ARCHIVE meanwhile."""
    from bascule.lake.former.upgrade import upgrade as upgrade_archive

    state = upgrade_archive(path)
    say(f"{path} is a Delta table now: {plural(state.rows, 'message')} in {plural(len(state.files), 'file')}.")


# ── status ───────────────────────────────────────────────────────────────────────────────────────


@connected
def status(
    target: Target,
    path: ArchiveOrFile,
    offline: Annotated[bool, typer.Option("--offline", help="Connect to no broker, and show no lag.")] = False,
    storage: StorageOption = None,
    as_json: Json = False,
) -> None:
    """Show the contents of ARCHIVE, or the progress of the pipeline of FILE, and the lag in offsets, bytes and seconds."""
    from bascule.lake.archive import Archive
    from bascule.lake.status import archive_status

    if Path(path).is_file():
        show_status(Path(path), target, as_json=as_json)
        return
    found = Archive(path, storage_options(storage))
    state, streams = found.state(), found.describe()["streams"]
    if offline:
        document = archive_status(state, None, streams)
    else:
        with tables(target) as connection:
            document = archive_status(state, connection, streams)
    if as_json:
        show_json(document)
        return
    lag = document["lag"]
    show_facts(
        (
            ("Messages", document["messages"]),
            ("Files", document["files"]),
            ("Bytes", document["bytes"]),
            ("Last commit", document["last_commit"]),
            *((f"Behind, {unit}", lag[unit]) for unit in ("offsets", "bytes", "seconds") if lag is not None),
            *([("Lost, offsets", document["lost"])] if document["lost"] else []),
        )
    )
    numbers = {
        "Partition": "partition",
        "Next": "next_offset",
        "Log from": "log_start",
        "Log to": "high_watermark",
        "Behind": "behind",
        "Bytes": "behind_bytes",
        "Seconds": "behind_seconds",
    }
    show_rows(
        ("Stream", *numbers, "Problem"),
        [
            (one["stream"], *(_known(one[name]) for name in numbers.values()), _known(one["problem"]))
            for one in document["partitions"]
        ],
        right=tuple(numbers),
    )


def _known(value: object) -> object:
    return "" if value is None else value


# ── verify ───────────────────────────────────────────────────────────────────────────────────────


@connected
def verify(
    target: Target,
    path: ArchiveOrFile,
    offline: Annotated[bool, typer.Option("--offline", help="Check only the archive's own checksums.")] = False,
    streams: Annotated[
        list[str] | None,
        typer.Option("--stream", help="Only this stream; may be repeated.", show_default=False, metavar="STREAM"),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="Only messages of this day (UTC) and later: `2026-11-15`, or `7d` for 7 days ago.",
            show_default=False,
            metavar="TIME",
        ),
    ] = None,
    storage: StorageOption = None,
    as_json: Json = False,
) -> None:
    """Verify that ARCHIVE, or every archive of the pipeline of FILE, is equal to its streams: every file, offset and byte. Exits with
    code 4 and lists the differences if not. Messages that were lost before they could be archived are listed. A folder of `pipeline
    latest` is compared key by key."""
    day = "" if since is None else f"{values.moment('--since', since, SINCE_RIGHT).astimezone(UTC):%Y-%m-%d}"
    place = LakePlace.of(path, storage_options(storage))
    connect: Callable[[], FlightConnection] = functools.partial(tables, target)
    places = [place]
    if Path(path).is_file():
        places, connect = archives_of(Path(path), target)
    for one in places:
        with contextlib.ExitStack() as stack:
            connection = None if offline else stack.enter_context(connect())
            cursors = None if offline else stack.enter_context(_cursors(target))
            report = _proof(one, connection, streams or [], day, cursors)
        _show(report, as_json)
        if not report.is_equal:
            raise ArchiveDamaged(f"{one} is not equal to its streams: {plural(len(report.faults), 'difference')}")


@contextlib.contextmanager
def _cursors(target: Target) -> Iterator[Cursors]:
    """How far the brokers have heard that an archive is."""
    from bascule.client import blocking

    with blocking.connect(target.server, **target.client_options()) as client:

        def cursor(name: str, stream: str, partition: int) -> int | None:
            try:
                return client.fetch_cursor(name, stream, partition)
            except BasculeError:
                return None  # a stream that is deleted has none

        yield cursor


def _proof(
    place: LakePlace, connection: FlightConnection | None, streams: list[str], day: str, cursors: Cursors | None
) -> Report:
    from bascule.lake.archive import Archive
    from bascule.lake.latest.table import LatestStore
    from bascule.lake.latest.verification import verify_latest

    if place.local is None or not LatestStore(place.local).exists:
        archive = Archive(place)
        _must_be_archived(archive, streams)
        return _verified(archive, connection, streams, day, cursors)
    for option, value in (("--stream", ", ".join(streams)), ("--since", day)):
        if value:
            raise values.wrong(option, value, "left out: a table of the latest messages is verified as a whole")
    return verify_latest(place.local, connection)


def _must_be_archived(archive: Archive, streams: list[str]) -> None:
    """Raise for a stream that is not in the archive: a misspelt name must not verify as equal."""
    if not streams:
        return
    there = {stream for stream, _, _ in archive.state().next_offsets}
    for name in streams:
        if name not in there:
            raise values.wrong("--stream", name, "a stream of the archive: " + ", ".join(sorted(there)))


def _verified(
    archive: Archive, tables: FlightConnection | None, streams: list[str], since: str, cursors: Cursors | None
) -> Report:
    from bascule.lake.verification import Verification

    done = 0

    def on_rows(count: int) -> None:
        nonlocal done
        done += count
        bar.update(done)

    proof = Verification(archive, tables, on_rows, streams=streams, since=since, cursors=cursors)
    with ProgressBar("verifying", proof.total()) as bar:
        return proof.run()


def _show(report: Report, as_json: bool) -> None:
    if as_json:
        show_json(
            {
                "equal": report.is_equal,
                "complete": not report.lost,
                "files": report.files,
                "messages": report.rows,
                "messages_compared_with_the_log": report.rows_compared,
                "faults": [{"kind": fault.kind, "text": fault.text} for fault in report.faults],
                "lost_offsets": report.lost_offsets,
                "lost": [_lost_document(one) for one in report.lost],
                "unchecked": report.unchecked,
            }
        )
        return
    for fault in report.faults:
        say(f"{fault.kind}: {fault.text}")
    for one in report.lost:
        say(f"lost: {_lost_text(one)}, since {iso_ns(one.at_ns)}; `skip` allowed it")
    for text in report.unchecked:
        note(f"not compared with the log: {text}")
    if report.is_equal:
        lost = report.lost_offsets
        without = (
            f" but for {plural(lost, 'offset')} that {'was' if lost == 1 else 'were'} never archived" if lost else ""
        )
        say(
            f"equal{without}: {plural(report.rows, 'message')} in {plural(report.files, 'file')}, "
            f"{report.rows_compared} compared with the log."
        )


def _lost_text(one: Lost) -> str:
    why = {"removed": "retention deleted them first", "deleted": "the stream was deleted"}.get(one.reason, one.reason)
    were = "was" if one.end - one.start == 1 else "were"
    return f"{one.stream}/{one.partition}: {named(one.start, one.end)} {were} never archived, {why}"


def _lost_document(one: Lost) -> dict[str, Any]:
    return {
        "stream": one.stream,
        "stream_id": one.stream_id,
        "partition": one.partition,
        "first": one.start,
        "last": one.end - 1,
        "reason": one.reason,
        "since": iso_ns(one.at_ns),
        "allowed_by": "onDataLoss=skip",
    }
