"""`bascule pipeline archive`, `compact`, `status`, `verify`: a stream into Parquet files, how far it is, and the proof of it."""

from __future__ import annotations

from datetime import UTC
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bascule.cli import completion, values
from bascule.cli.output import iso_ns, note, plural, say, show_facts, show_json, show_rows
from bascule.cli.pipeline_target import ArchivePath, Master, source_options, tables
from bascule.cli.progress import ProgressBar
from bascule.cli.target import Json, Target, connected, explain
from bascule.errors import ArchiveDamaged, BasculeError

if TYPE_CHECKING:
    from bascule.flight.reader import FlightConnection
    from bascule.lake.manifest import Archive, Commit
    from bascule.lake.verification import Report


SINCE_RIGHT: Final = "a time such as `2026-11-15`, or how long ago as `7d`"


KeepReplaced = Annotated[
    str,
    typer.Option(
        "--keep-replaced",
        help="How long files stay that were merged, for readers that were told of them before.",
        metavar="DURATION",
    ),
]


def _kept(text: str) -> float:
    found = values.duration("--keep-replaced", text)
    assert found is not None
    return found.total_seconds()


@connected
def archive(
    target: Target,
    path: ArchivePath,
    streams: Annotated[
        list[str] | None,
        typer.Argument(
            help="The streams to archive.", show_default=False, autocompletion=completion.streams, metavar="STREAM..."
        ),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(
            "--pattern",
            help="In place of names: a regular expression. Streams that are created later come too.",
            show_default=False,
            metavar="REGEX",
        ),
    ] = None,
    subject: Annotated[
        str | None,
        typer.Option(
            "--subject",
            help="In place of names: a NATS subject with wildcards, for the streams whose subjects it covers.",
            show_default=False,
            metavar="SUBJECT",
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Archive what is there now and leave.")] = False,
    every: Annotated[str, typer.Option(help="How often to commit while it runs.", metavar="DURATION")] = "10s",
    file_size: Annotated[str, typer.Option(help="The size at which a file is finished.", metavar="SIZE")] = "128MB",
    compact_every: Annotated[
        int, typer.Option(help="Merge small files after so many commits; 0 for never.", min=0, metavar="COMMITS")
    ] = 10,
    keep_replaced: KeepReplaced = "1h",
    cursor: Annotated[
        str | None,
        typer.Option(
            "--cursor",
            help='Tell brokers how far it is, as a cursor of this name. Without it `archive:` and the name of the folder; "" for none.',
            show_default=False,
            metavar="NAME",
        ),
    ] = None,
    master: Master = None,
) -> None:
    """Write streams into ARCHIVE as Parquet, continuously, each message exactly once. Run it again to go on where it stopped."""
    from bascule.pipeline.jobs.archive import ArchiveOptions, run_archive
    from bascule.spark import session

    options = ArchiveOptions(
        streams=tuple(streams or ()),
        pattern=pattern,
        subject=subject,
        cursor=cursor,
        path=str(path),
        servers=target.server,
        file_bytes=values.size("--file-size", file_size) or 1,
        trigger_seconds=values.seconds("--every", every) or 0.1,
        source=source_options(target),
        compact_every=compact_every,
        keep_replaced_seconds=_kept(keep_replaced),
    )
    try:
        found = options.stream_ids()  # who misspelt a stream hears of it before a Spark has started
    except BasculeError as error:
        explain(error, target)
        raise
    if not found:
        note("no stream is meant yet; those that are created later will be archived")
    spark = session(f"archive {path.name}", master)
    try:
        state = run_archive(spark, options, once=once, on_commit=_Narrator())
    except KeyboardInterrupt:
        note("stopped; run it again to go on")
        raise
    finally:
        spark.stop()
    say(f"{plural(state.rows, 'message')} in {plural(len(state.files), 'file')} of {path}.")


class _Narrator:
    """A line for every commit."""

    def __init__(self) -> None:
        self._last = monotonic()

    def __call__(self, commit: Commit) -> None:
        if commit.kind == "compact":
            note(f"{iso_ns(commit.at_ns)}  {plural(len(commit.removed), 'file')} became {len(commit.added)}")
            return
        rows = sum(one.rows for one in commit.added)
        seconds, self._last = monotonic() - self._last, monotonic()
        note(f"{iso_ns(commit.at_ns)}  {plural(rows, 'message')}, {plural(len(commit.added), 'file')}, {seconds:.1f} s")


def compact(
    path: ArchivePath,
    file_size: Annotated[str, typer.Option(help="How large files may get.", metavar="SIZE")] = "128MB",
    keep_replaced: KeepReplaced = "1h",
) -> None:
    """Merge small files of ARCHIVE into large ones, and clear away what is not needed any more. Nobody else may write it meanwhile."""
    from bascule.lake.compaction import Compaction, plan_merges
    from bascule.lake.housekeeping import Housekeeping
    from bascule.lake.manifest import Archive

    target_bytes, kept = values.size("--file-size", file_size) or 1, _kept(keep_replaced)
    found = Archive(path)
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
        keeper.save(state)
    say(f"{plural(before, 'file')} before, {len(state.files)} now; {plural(state.rows, 'message')}.")


# ── looking ──────────────────────────────────────────────────────────────────────────────────────


@connected
def status(
    target: Target,
    path: ArchivePath,
    offline: Annotated[bool, typer.Option("--offline", help="Ask no broker: what it holds, not its lag.")] = False,
    as_json: Json = False,
) -> None:
    """Show what ARCHIVE holds and how far it is behind its streams: in offsets, bytes and seconds."""
    from bascule.lake.manifest import Archive
    from bascule.lake.status import archive_status

    found = Archive(path)
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


# ── proving ──────────────────────────────────────────────────────────────────────────────────────


@connected
def verify(
    target: Target,
    path: ArchivePath,
    offline: Annotated[bool, typer.Option("--offline", help="Compare it with its own checksums alone.")] = False,
    streams: Annotated[
        list[str] | None,
        typer.Option("--stream", help="This stream alone; may be given again.", show_default=False, metavar="STREAM"),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="Messages of that day (UTC) and later ones alone: `2026-11-15`, or how long ago as `7d`.",
            show_default=False,
            metavar="TIME",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Prove that ARCHIVE and its streams hold the same: every file, offset and byte. Exit code 4 if not, and what is wrong."""
    from bascule.lake.manifest import Archive

    day = "" if since is None else f"{values.moment('--since', since, SINCE_RIGHT).astimezone(UTC):%Y-%m-%d}"
    found = Archive(path)
    _must_be_archived(found, streams or [])
    if offline:
        report = _verified(found, None, streams or [], day)
    else:
        with tables(target) as connection:
            report = _verified(found, connection, streams or [], day)
    _show(report, as_json)
    if not report.is_equal:
        raise ArchiveDamaged(f"{path} is not equal to its streams: {plural(len(report.faults), 'fault')}")


def _must_be_archived(archive: Archive, streams: list[str]) -> None:
    """Who misspelt a stream must not read `equal`."""
    there = {stream for stream, _, _ in archive.state().next_offsets}
    for name in streams:
        if name not in there:
            raise values.wrong("--stream", name, "a stream of the archive: " + ", ".join(sorted(there)))


def _verified(archive: Archive, tables: FlightConnection | None, streams: list[str], since: str) -> Report:
    from bascule.lake.verification import Verification

    done = 0

    def on_rows(count: int) -> None:
        nonlocal done
        done += count
        bar.update(done)

    proof = Verification(archive, tables, on_rows, streams=streams, since=since)
    total = sum(one.rows for files in proof.partitions(archive.state()).values() for one in files)
    with ProgressBar("verifying", total) as bar:
        return proof.run()


def _show(report: Report, as_json: bool) -> None:
    if as_json:
        show_json(
            {
                "equal": report.is_equal,
                "files": report.files,
                "messages": report.rows,
                "messages_compared_with_the_log": report.rows_compared,
                "faults": [{"kind": fault.kind, "text": fault.text} for fault in report.faults],
                "unchecked": report.unchecked,
            }
        )
        return
    for fault in report.faults:
        say(f"{fault.kind}: {fault.text}")
    for text in report.unchecked:
        note(f"not compared with the log: {text}")
    if report.is_equal:
        say(
            f"equal: {plural(report.rows, 'message')} in {plural(report.files, 'file')}, "
            f"{report.rows_compared} compared with the log."
        )
