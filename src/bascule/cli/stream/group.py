"""`bascule group …`: lists consumer groups and their lag, and reads as a member of a group."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bascule.cli.stream import group_positions
from bascule.cli.stream.group_positions import GroupPosition
from bascule.cli.stream.subscribe import Count, Few, Renderer, Template, chosen_renderer, write
from bascule.cli.target import completion, facts
from bascule.cli.target.target import Json, Target, connected
from bascule.cli.terminal import values
from bascule.cli.terminal.output import known, note, say, show_facts, show_json, show_rows
from bascule.cli.terminal.values import LastMessages
from bascule.errors import StateError, StreamNotFound

if TYPE_CHECKING:
    from bascule.client.client import Client

app = typer.Typer(help="Show consumer groups, or read as a member of one.", no_args_is_help=True)

GroupId = Annotated[str, typer.Argument(help="The consumer group.", show_default=False, metavar="GROUP")]


@app.command("list")
@connected
def list_groups(target: Target, as_json: Json = False) -> None:
    """List the groups that have written a checkpoint: state, streams, partitions and lag in messages."""
    found = target.run(_list)
    if as_json:
        show_json(found)
        return
    if not found and sys.stdout.isatty():
        say("No group has written a checkpoint yet; `bascule group consume GROUP STREAM` reads as a member of one.")
        return
    show_rows(
        ("Group", "State", "Streams", "Partitions", "Lag"),
        [(one["group"], one["state"], ",".join(one["streams"]), one["partitions"], one["lag"]) for one in found],
        right=("Partitions", "Lag"),
    )


async def _list(client: Client) -> list[dict[str, Any]]:
    cursors = await group_positions.read_cursors(client)
    _, streams = await facts.streams(client)
    by_group: dict[str, list[GroupPosition]] = {}
    for one in cursors.positions(streams):
        by_group.setdefault(one.group, []).append(one)
    active = (await client.fetch_metadata([], groups=list(by_group))).groups
    return [
        {
            "group": group,
            "state": "active" if group in active else "empty",
            "streams": sorted({one.stream for one in found}),
            "partitions": len(found),
            "lag": sum(one.lag or 0 for one in found),
        }
        for group, found in sorted(by_group.items())
    ]


@app.command()
@connected
def describe(target: Target, group: GroupId, as_json: Json = False) -> None:
    """Show a group: its coordinator, and for each partition the last processed offset and the lag in messages."""
    info, found = target.run(_describe, group)
    if as_json:
        show_json({**info, "partitions": [one.document() for one in found]})
        return
    show_facts([(name, value) for name, value in info.items() if value is not None])
    if found:
        if sys.stdout.isatty():
            say("")
        show_rows(
            ("Stream", "Partition", "Reached", "Newest", "Lag"),
            [(one.stream, one.partition, one.offset, known(one.newest), known(one.lag)) for one in found],
            right=("Partition", "Reached", "Newest", "Lag"),
        )


async def _describe(client: Client, group: str) -> tuple[dict[str, Any], list[GroupPosition]]:
    known = (await client.fetch_metadata([], groups=[group])).groups.get(group)
    found: list[GroupPosition] = []
    if facts.CURSORS_STREAM in (await client.fetch_metadata([facts.CURSORS_STREAM])).streams:
        cursors = await group_positions.read_cursors(client)
        _, streams = await facts.streams(client)
        found = cursors.positions(streams, group)
    if known is None and not found:
        raise StateError(
            f"group `{group}` does not exist",
            hint="`bascule group list` shows the groups with a checkpoint; a group without one exists while it has members",
        )
    info = {
        "group": group,
        "state": "empty" if known is None else "active",
        "coordinator": None if known is None else known.coordinator,
        "epoch": None if known is None else known.epoch,
        "lag": sum(one.lag or 0 for one in found),
    }
    return info, found


# ── consume ──────────────────────────────────────────────────────────────────────────────────────


@app.command()
@connected
def consume(
    target: Target,
    group: GroupId,
    streams: Annotated[
        list[str],
        typer.Argument(
            help="The streams to read.", show_default=False, autocompletion=completion.streams, metavar="STREAM..."
        ),
    ],
    consumer: Annotated[
        str | None,
        typer.Option("--consumer", metavar="ID", help="Id of this member. Default: a new one.", show_default=False),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from", "-o", metavar="WHERE", help="Start position in partitions without a checkpoint of the group."
        ),
    ] = "earliest",
    count: Count = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="FORMAT", help="Output: `raw`, `json`, `hex` or `pretty`.", show_default=False
        ),
    ] = None,
    template: Template = None,
    as_json: Json = False,
) -> None:
    """Read as a member of a group. The members share the partitions; printed messages count as processed.

    The group's checkpoint is written every five seconds and on exit, Ctrl-C included.
    """
    begin = values.start("--from", start)
    if isinstance(begin, LastMessages):
        raise values.wrong("--from", start, "`earliest`, `latest`, `new`, an offset or a time")
    target.run(_consume, group, streams, consumer, begin, count, chosen_renderer(form, template, as_json))


async def _consume(
    client: Client,
    group: str,
    streams: list[str],
    consumer: str | None,
    start: Any,
    count: int | None,
    renderer: Renderer,
) -> None:
    known = (await client.fetch_metadata(streams)).streams
    for name in streams:
        if name not in known:
            raise StreamNotFound(f"there is no stream `{name}`")
    render = renderer(sum(len(one.partitions) for one in known.values()) > 1)

    def noting(change: str) -> Any:
        return lambda places: note(f"{change} " + ", ".join(f"{one.stream}/{one.partition}" for one in places))

    member = client.consumer(
        group, streams, consumer_id=consumer, start=start, on_assigned=noting("Assigned"), on_revoked=noting("Revoked")
    )
    done = 0
    await member.open()
    try:
        async for message in member:
            write(render(Few([message])))
            done += 1
            if done == count:
                break
    finally:
        # Printed messages count as processed, also after an error.
        await member.close(processed=True)
