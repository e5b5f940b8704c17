"""`bascule log …`: reads the files of a partition log. It changes nothing, and a broker may be running on them."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bascule.errors import NotALog, StorageError

if TYPE_CHECKING:
    from rich.console import Console

    from bascule.log.disk.encryption import LogIdentity
    from bascule.log.disk.sealing import Sealer
    from bascule.log.recovery.inspection import BatchFacts, LogInspection
    from bascule.log.segments.segment import Segment

PIPE_COLUMNS: Final = 240

app = typer.Typer(help="Inspect and verify the files of a partition log.", no_args_is_help=True)

Directory = Annotated[Path, typer.Argument(help="A partition's directory, or a data directory.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.command()
def verify(directory: Directory, as_json: AsJson = False) -> None:
    """Check every checksum and every record. Exits with code 4 if there is damage."""
    from bascule.log.recovery.inspection import find_logs, inspect_log

    reports = [inspect_log(path) for path in find_logs(directory)]
    if as_json:
        typer.echo(json.dumps([_document(report) for report in reports], indent=2, ensure_ascii=False))
    else:
        for report in reports:
            _print_verdict(report)
    damaged = sum(len(report.damage) for report in reports)
    if damaged:
        raise StorageError(
            f"{damaged} damaged place{'s' if damaged > 1 else ''} in {directory}",
            hint="intact messages stay readable; the rest can be restored from another replica of the partition",
        )


def _print_verdict(report: LogInspection) -> None:
    records_held = sum(segment.records for segment in report.segments)
    size = sum(segment.bytes for segment in report.segments)
    verdict = "damaged" if report.damage else "good"
    typer.echo(
        f"{report.directory}: {verdict}, {len(report.segments)} segments, {records_held:,} records, {size:,} bytes"
    )
    for damage in report.damage:
        typer.echo(f"  {damage.describe()}")
    for note in report.notes:
        typer.echo(f"  note: {note}")


@app.command()
def inspect(
    directory: Directory,
    batches: Annotated[bool, typer.Option("--batches", help="List the batches.")] = False,
    show_records: Annotated[bool, typer.Option("--records", help="List the records.")] = False,
    offset: Annotated[int, typer.Option(min=0, help="First offset to list (with --batches or --records).")] = 0,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of lines.")] = 100,
    key_file: Annotated[
        Path | None,
        typer.Option(
            "--key-file",
            help="Master keys of encrypted logs, as `encryption.key.file` has them. Default: the environment.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the segments of a log, or with --batches or --records their contents."""
    from bascule.log.recovery.inspection import find_logs, inspect_log

    found = find_logs(directory)
    if not (batches or show_records):
        _show_segments([inspect_log(path) for path in found], as_json)
        return
    if len(found) > 1:
        raise NotALog(f"{directory} holds {len(found)} partitions", hint=f"choose one, such as `{found[0]}`")
    rows = _record_rows(found[0], offset, key_file) if show_records else _batch_rows(found[0], offset)
    _show_rows(rows, limit, as_json)


def _show_segments(reports: list[LogInspection], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([_document(report) for report in reports], indent=2, ensure_ascii=False))
        return
    from rich.table import Table

    console = _console()
    for report in reports:
        table = Table(title=report.directory, title_justify="left", box=None, pad_edge=False, header_style="bold")
        for heading in ("Segment", "Offsets", "Bytes", "Batches", "Records", "From", "To", "Damage"):
            table.add_column(heading, no_wrap=True)
        for segment in report.segments:
            table.add_row(
                Path(segment.file).name,
                f"{segment.base_offset} – {segment.end_offset - 1}" if segment.batches else "empty",
                f"{segment.bytes:,}",
                f"{segment.batches:,}",
                f"{segment.records:,}",
                _time(segment.first_timestamp),
                _time(segment.last_timestamp),
                str(len(segment.damage) or ""),
            )
        console.print(table)
        for line in [damage.describe() for damage in report.damage] + report.notes:
            typer.echo(line)


def _batch_rows(directory: Path, offset: int) -> Any:
    from bascule.log.recovery.inspection import open_segments, walk_batches
    from bascule.log.segments.damage import Damage

    for segment in open_segments(directory):
        for found in walk_batches(segment):
            if isinstance(found, Damage):
                yield {"damage": found.describe()}
            elif found.header.last_offset >= offset:
                yield _batch_row(segment, found)


def _batch_row(segment: Segment, found: BatchFacts) -> dict[str, object]:
    header = found.header
    return {
        "segment": Path(segment.path).name,
        "position": found.position,
        "offsets": f"{header.base_offset}–{header.last_offset}",
        "records": header.count,
        "bytes": header.length,
        "epoch": header.leader_epoch,
        "time": _time(header.first_timestamp),
        "attributes": _attributes(header.attributes),
    }


def _record_rows(directory: Path, offset: int, key_file: Path | None) -> Any:
    from bascule.log.core.options import LogOptions
    from bascule.log.disk.master_keys import KeyFile
    from bascule.log.disk.sealing import sealer_for
    from bascule.log.recovery.inspection import open_segments, walk_batches
    from bascule.log.segments.damage import Damage

    keys = None if key_file is None else KeyFile(key_file).load()
    sealer = sealer_for(LogOptions(), keys, _identity(directory))
    for segment in open_segments(directory):
        for found in walk_batches(segment):
            if isinstance(found, Damage):
                yield {"damage": found.describe()}
            elif found.header.last_offset >= offset:
                yield from _records_of(segment, found, offset, sealer)


def _identity(directory: Path) -> LogIdentity:
    """Return what encrypted batches are bound to: the partition by the folder's name, the stream by the marker beside it."""
    from bascule.log.disk.encryption import LogIdentity
    from bascule.log.disk.operations import PosixDisk
    from bascule.log.disk.stream_marker import read_marker

    folder = directory.resolve()
    stream_id = read_marker(PosixDisk(read_only=True), folder.parent)
    return LogIdentity(stream_id or 0, int(folder.name) if folder.name.isdecimal() else 0)


def _records_of(segment: Segment, found: BatchFacts, offset: int, sealer: Sealer) -> Any:
    from bascule.kernels.records import records

    batch = sealer.open(segment.file.read(found.header.length, found.position))
    for record in records.decode(batch, offset):
        yield {
            "offset": record.offset,
            "time": _time(record.timestamp),
            "subject": _text(record.subject),
            "key": None if record.key is None else _text(record.key),
            "value": None if record.value is None else _text(record.value),
            "headers": {_text(name): _text(value) for name, value in record.headers},
        }


def _show_rows(rows: Any, limit: int, as_json: bool) -> None:
    for number, row in enumerate(rows):
        if number == limit:
            typer.echo(f"… more: raise --limit above {limit}, or give a later --offset", err=True)
            return
        if as_json:
            typer.echo(json.dumps(row, ensure_ascii=False))
        elif "damage" in row:
            typer.echo(row["damage"])
        else:
            typer.echo("  ".join(f"{name}={value}" for name, value in row.items() if value not in (None, "", {})))


def _document(report: LogInspection) -> dict[str, object]:
    from dataclasses import asdict

    return {
        "directory": report.directory,
        "segments": [asdict(segment) for segment in report.segments],
        "checkpoint": None if report.checkpoint is None else asdict(report.checkpoint),
        "notes": report.notes,
        "damaged": bool(report.damage),
    }


def _attributes(attributes: int) -> str:
    from bascule.kernels.records import records

    names = {
        records.CODEC_ZSTD: "zstd",
        records.ENCRYPTED: "encrypted",
        records.FOLLOWS_GAP: "follows-gap",
        records.PRODUCERS: "producers",
    }
    return ",".join(name for bit, name in names.items() if attributes & bit)


def _time(timestamp: int) -> str:
    if timestamp < 0:
        return ""
    return datetime.fromtimestamp(timestamp / 1e9, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _console() -> Console:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS)
