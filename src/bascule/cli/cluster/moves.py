"""`bascule cluster rebalance|reassign|cancel|throttle`: moves replicas and leaderships between servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bascule.cli.cluster.watch import (
    DryRun,
    Throttle,
    Wait,
    carry_out,
    move_document,
    throttle_bytes,
)
from bascule.cli.target import completion
from bascule.cli.target.target import Json, Target, connected
from bascule.cli.terminal import values
from bascule.cli.terminal.output import say, show_json
from bascule.config.values.shown import bytes_per_second, plural
from bascule.errors import InvalidOption

if TYPE_CHECKING:
    from bascule.client.admin.cluster import Move
    from bascule.client.client import Client

Stream = Annotated[
    str,
    typer.Argument(help="The stream.", show_default=False, autocompletion=completion.streams, metavar="STREAM"),
]
Partitions = Annotated[
    list[str] | None,
    typer.Option(
        "--partition",
        "-p",
        metavar="N",
        help="Only this partition, or several separated by commas.",
        show_default=False,
    ),
]


@connected
def rebalance(
    target: Target,
    streams: Annotated[
        list[str] | None,
        typer.Argument(
            help="Move only these streams. Default: all.",
            show_default=False,
            autocompletion=completion.streams,
            metavar="[STREAM]...",
        ),
    ] = None,
    leaders_only: Annotated[bool, typer.Option("--leaders-only", help="Move only leaderships, not replicas.")] = False,
    throttle: Throttle = None,
    dry_run: DryRun = False,
    wait: Wait = True,
    as_json: Json = False,
) -> None:
    """Spread replicas and leaderships evenly over the servers, with as few moves as possible."""
    target.run(
        carry_out,
        lambda admin, dry: admin.rebalance(streams or (), leaders_only=leaders_only, dry_run=dry),
        throttle,
        dry_run=dry_run,
        wait=wait,
        as_json=as_json,
        leaders=True,
    )


@connected
def reassign(
    target: Target,
    stream: Stream,
    partition: Partitions = None,
    replicas: Annotated[
        str | None,
        typer.Option(
            "--replicas",
            metavar="ID,ID,…",
            help="The servers that get the replicas, the preferred leader first.",
            show_default=False,
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor",
            "-r",
            metavar="N",
            help="Number of replicas of each partition, -1 for one on every server.",
            show_default=False,
        ),
    ] = None,
    throttle: Throttle = None,
    dry_run: DryRun = False,
    wait: Wait = True,
    as_json: Json = False,
) -> None:
    """Move the partitions of a stream to the given servers, or change their number of replicas."""
    if (replicas is None) == (replication_factor is None):
        raise InvalidOption(
            "the new placement is missing or ambiguous",
            hint="give either `--replicas a,b,c` or `--replication-factor 3`",
        )
    servers = [] if replicas is None else [one.strip() for one in replicas.split(",")]
    if replicas is not None and not all(servers):
        raise values.wrong("--replicas", replicas, "ids of servers separated by commas, such as `a,b,c`")
    if replication_factor is not None and not (replication_factor == -1 or replication_factor >= 1):
        raise values.wrong("--replication-factor", replication_factor, "1 or more, or -1 for all servers")
    numbers = values.partitions("--partition", partition or []) or []
    factor = replication_factor or 0
    target.run(
        carry_out,
        lambda admin, dry: admin.reassign(stream, numbers, replicas=servers, replication_factor=factor, dry_run=dry),
        throttle,
        dry_run=dry_run,
        wait=wait,
        as_json=as_json,
    )


@connected
def cancel(
    target: Target,
    stream: Annotated[
        str | None,
        typer.Argument(help="The stream.", show_default=False, autocompletion=completion.streams, metavar="[STREAM]"),
    ] = None,
    partition: Partitions = None,
    every: Annotated[bool, typer.Option("--all", help="Cancel the moves of all streams.")] = False,
    as_json: Json = False,
) -> None:
    """Cancel moves that are in progress or waiting. The partitions stay where they were."""
    if (stream is None) != every or (every and partition):
        raise InvalidOption("the moves to cancel are missing or ambiguous", hint="give either a stream or `--all`")
    found = target.run(_cancel, stream or "", values.partitions("--partition", partition or []) or [])
    if as_json:
        show_json({"cancelled": [move_document(one) for one in found]})
        return
    for one in found:
        say(f"{one.place} stays on {', '.join(one.before if one.after == () else one.after)}")
    say(f"Cancelled {plural(len(found), 'move')}." if found else "No partition is moving.")


async def _cancel(client: Client, stream: str, partitions: list[int]) -> tuple[Move, ...]:
    from bascule.client.admin.cluster import ClusterAdmin

    return await ClusterAdmin(client).cancel(stream, partitions)


@connected
def throttle(
    target: Target,
    limit: Annotated[
        str | None,
        typer.Argument(
            help="Bytes per second, such as `50MB`, or `off` for no limit. Default: show the current limit.",
            show_default=False,
            metavar="[SIZE]",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Limit the bytes per second that each server sends to replicas that catch up. In-sync replicas are never throttled."""
    wanted = None if limit is None else throttle_bytes("SIZE", limit)
    found = target.run(_throttle, wanted)
    if as_json:
        show_json({"throttle_bytes_per_second": found})
    else:
        say("There is no limit." if not found else f"The limit is {bytes_per_second(found)} for each server.")


async def _throttle(client: Client, wanted: int | None) -> int:
    from bascule.client.admin.cluster import ClusterAdmin

    admin = ClusterAdmin(client)
    if wanted is None:
        return (await admin.status()).throttle_bytes_per_second
    await admin.set_throttle(wanted)
    return wanted
