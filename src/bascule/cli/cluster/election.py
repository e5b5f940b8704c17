"""`bascule cluster elect`: unclean election. It is the only command that can lose committed messages."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bascule.cli.cluster.watch import DryRun, Yes
from bascule.cli.target import completion
from bascule.cli.target.target import Json, Target, connected
from bascule.cli.terminal.output import say, show_json, show_rows
from bascule.config.values.shown import plural
from bascule.errors import CallerError

if TYPE_CHECKING:
    from bascule.client.admin.cluster import Election
    from bascule.client.client import Client


@connected
def elect(
    target: Target,
    stream: Annotated[
        str,
        typer.Argument(help="The stream.", show_default=False, autocompletion=completion.streams, metavar="STREAM"),
    ],
    partition: Annotated[int, typer.Argument(help="Its partition.", show_default=False, metavar="PARTITION", min=0)],
    replica: Annotated[
        str,
        typer.Argument(
            help="The server to make leader.", show_default=False, autocompletion=completion.servers, metavar="SERVER"
        ),
    ],
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Make a replica leader that is not in sync, when no in-sync replica will come back. Shows which messages are lost, and asks first.

    Refused while an in-sync replica answers, because it can lead without losing messages.
    """
    found = target.run(_elect, stream, partition, replica, False)
    if not as_json:
        _show(found)
    if not dry_run:
        _confirm(stream, partition, yes)
        found = target.run(_elect, stream, partition, replica, True)
    if as_json:
        show_json(_document(stream, partition, replica, found))
    elif found.elected:
        say(
            f"`{replica}` is now the leader of {stream}/{partition}; new messages start at offset {found.lost_from_offset}."
        )
    else:
        say("Nothing was changed.")


async def _elect(client: Client, stream: str, partition: int, replica: str, confirm: bool) -> Election:
    from bascule.client.admin.cluster import ClusterAdmin

    return await ClusterAdmin(client).elect_unclean(stream, partition, replica, confirm=confirm)


def _show(found: Election) -> None:
    show_rows(
        ("Server", "First", "End", "High watermark", "Latest epoch"),
        [
            (
                name,
                log["log_start_offset"],
                log["log_end_offset"],
                log["high_watermark"],
                max((one["epoch"] for one in log["epochs"]), default=0),
            )
            for name, log in found.logs.items()
        ],
        right=("First", "End", "High watermark", "Latest epoch"),
    )
    say(_loss(found))


def _loss(found: Election) -> str:
    if found.lost_messages:
        known = (
            f"Lost: offsets {found.lost_from_offset} to {found.lost_to_offset}, {plural(found.lost_messages, 'message')}, "
            f"{found.lost_committed_messages:,} of them known to be committed"
        )
    else:
        known = f"Lost: no message of a server that answers; the log ends at offset {found.lost_from_offset}"
    if found.silent:
        known += (
            f"; messages from offset {found.lost_from_offset} on that exist only on {', '.join(found.silent)}, "
            "which does not answer, are lost too"
        )
    return known + "."


def _confirm(stream: str, partition: int, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise CallerError(f"messages of {stream}/{partition} would be lost", hint="give `--yes` to confirm")
    if typer.prompt(f"Type `{stream}` to confirm the loss", err=True) != stream:
        raise typer.Exit(1)


def _document(stream: str, partition: int, replica: str, found: Election) -> dict[str, Any]:
    return {
        "stream": stream,
        "partition": partition,
        "replica": replica,
        "elected": found.elected,
        "lost": {
            "from_offset": found.lost_from_offset,
            "to_offset": found.lost_to_offset,
            "messages": found.lost_messages,
            "committed_messages": found.lost_committed_messages,
        },
        "silent": list(found.silent),
        "logs": [
            {
                "server": name,
                "log_start_offset": log["log_start_offset"],
                "log_end_offset": log["log_end_offset"],
                "high_watermark": log["high_watermark"],
                "in_sync": log["in_sync"],
            }
            for name, log in found.logs.items()
        ],
    }
