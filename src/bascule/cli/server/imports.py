"""`bascule import …`: copies the data of another system into a new data directory."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bascule.cli.terminal.output import note, say, show_json, show_rows
from bascule.config.values.shown import plural
from bascule.errors import InvalidOption

if TYPE_CHECKING:
    from bascule.config import ServerConfig
    from bascule.liftbridge.importing import ImportReport
    from bascule.liftbridge.plan import ImportPlan
    from bascule.log.disk.master_keys import MasterKeys

app = typer.Typer(help="Copy the data of Liftbridge into a new data directory.", no_args_is_help=True)


@app.callback()
def imports() -> None:
    """Copy the data of Liftbridge into a new data directory."""


@app.command()
def liftbridge(
    directories: Annotated[
        list[Path],
        typer.Argument(
            help="The data directory of a Go Liftbridge server that does not run. Of a cluster, give those of all servers.",
            show_default=False,
            metavar="DIR...",
        ),
    ],
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", "-d", help="The new data directory; it must be empty.", show_default=False),
    ] = None,
    config_file: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="The configuration file of the new server.", show_default=False),
    ] = None,
    streams: Annotated[
        list[str] | None,
        typer.Option("--stream", metavar="NAME", help="Import only this stream. May be repeated.", show_default=False),
    ] = None,
    subjects: Annotated[
        list[str] | None,
        typer.Option(
            "--subject",
            metavar="STREAM=SUBJECT",
            help="Attach a stream to another subject. May be repeated.",
            show_default=False,
        ),
    ] = None,
    encrypted: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STREAM",
            help="The values of this stream are encrypted by `streams.encryption` of the server. May be repeated.",
            show_default=False,
        ),
    ] = None,
    without_metadata: Annotated[
        bool,
        typer.Option(
            "--without-metadata",
            help="Take the streams from the names of directories: the Raft state is lost or damaged.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read and check everything, and write nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Copy streams, messages with their offsets and timestamps, and cursors.

    The result is the data directory of a new cluster of one server; start it with the same configuration and
    --raft-bootstrap-seed. The directories of Liftbridge are not changed. An interrupted import can be repeated.
    """
    from bascule.config import load
    from bascule.liftbridge.importing import check_messages, check_target, run_import
    from bascule.liftbridge.plan import ImportOptions, make_plan

    config = load(config_file, {"data.dir": data_dir})
    check_target(config.data_dir)
    plan = make_plan(
        ImportOptions(
            sources=tuple(directories),
            namespace=config.cluster.replication.namespace,
            streams=frozenset(streams or ()),
            subjects=_subjects(subjects or []),
            encrypted=frozenset(encrypted or ()),
            without_metadata=without_metadata,
            keys=_liftbridge_keys(),
        )
    )
    keys = _new_keys(config, plan)
    report = check_messages(plan, note)
    if not dry_run:
        report = run_import(plan, config, keys, note)
    _show(config, plan, report, dry_run, as_json)


def _subjects(given: list[str]) -> dict[str, str]:
    found = {}
    for one in given:
        name, equals, subject = one.partition("=")
        if not equals or not name or not subject:
            raise InvalidOption(f"--subject is `{one}`", hint="write STREAM=SUBJECT, for example `orders=shop.orders`")
        found[name] = subject
    return found


def _liftbridge_keys() -> MasterKeys | None:
    from bascule.log.disk.master_keys import KEY_VARIABLES, MasterKeys

    found = next((os.environb[name.encode()] for name in reversed(KEY_VARIABLES) if name in os.environ), None)
    return None if found is None else MasterKeys(found)


def _new_keys(config: ServerConfig, plan: ImportPlan) -> MasterKeys | None:
    """The keys that encrypt the new logs, as the broker will load them; None if no stream is encrypted."""
    from bascule.log.disk.master_keys import KeyCommand, KeyFile, master_keys_from_environment

    if not any(one.stream.overrides.encryption for one in plan.streams) and not config.cluster.streams.encryption:
        return None
    if config.encryption.key_file is not None:
        return KeyFile(config.encryption.key_file).load()
    if config.encryption.key_command is not None:
        return KeyCommand(tuple(shlex.split(config.encryption.key_command))).load()
    return master_keys_from_environment()


def _show(config: ServerConfig, plan: ImportPlan, report: ImportReport, dry_run: bool, as_json: bool) -> None:
    subjects = {one.stream.name: one.stream.subject for one in plan.streams}
    rows: list[dict[str, Any]] = [
        {
            "stream": one.stream,
            "partition": one.partition,
            "subject": subjects[one.stream],
            "messages": one.messages,
            "first_offset": one.first_offset,
            "last_offset": one.last_offset,
            "torn_bytes": one.torn_bytes,
            "raised_timestamps": one.raised_timestamps,
        }
        for one in report.partitions
    ]
    if as_json:
        show_json(
            {
                "data_dir": str(config.data_dir),
                "imported": not dry_run,
                "partitions": rows,
                "cursors": report.cursors,
                "left_out": dict(plan.left_out),
            }
        )
        return
    titles = ("Stream", "Partition", "Subject", "Messages", "First", "Last")
    right = ("Partition", "Messages", "First", "Last")
    show_rows(titles, [tuple(row.values())[:6] for row in rows], right=right)
    for name, reason in plan.left_out.items():
        say(f"Stream '{name}' is left out: {reason}.")
    for one in report.partitions:
        if one.torn_bytes:
            say(
                f"{one.stream}/{one.partition}: an incomplete message of {one.torn_bytes} bytes at the end is left out."
            )
        if one.raised_timestamps:
            say(f"{one.stream}/{one.partition}: {one.raised_timestamps} timestamps that went backwards were raised.")
    what = f"{plural(report.messages, 'message')} of {plural(len(plan.streams), 'stream')} and {plural(report.cursors, 'cursor')}"
    if dry_run:
        say(f"{what} can be imported into {config.data_dir}. Nothing was written.")
    else:
        say(
            f"{what} are in {config.data_dir}. Start a broker there: `bascule server -d {config.data_dir} --raft-bootstrap-seed`"
        )
