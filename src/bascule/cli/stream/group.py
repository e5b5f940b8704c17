"""`bascule group …`: lists consumer groups and their lag, resets and deletes their positions, and reads as a member of a group."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bascule.cli.stream import group_reset
from bascule.cli.stream.group_positions import GroupPosition, from_log_starts, group_positions
from bascule.cli.stream.stored_positions import GROUP_PREFIX, HOLD_PREFIX, read_cursors
from bascule.cli.stream.subscribe import Count, Few, Renderer, Template, chosen_renderer, write
from bascule.cli.target import completion, facts
from bascule.cli.target.target import Json, Target, connected
from bascule.cli.terminal import values
from bascule.cli.terminal.output import confirm, known, note, say, show_facts, show_json, show_rows
from bascule.cli.terminal.values import LastMessages
from bascule.config.values.shown import plural
from bascule.errors import StateError, StreamNotFound

if TYPE_CHECKING:
    from bascule.client.client import Client
    from bascule.client.connection.metadata import GroupInfo

app = typer.Typer(
    help="Show consumer groups, reset or delete their positions, or read as a member.", no_args_is_help=True
)

GroupId = Annotated[str, typer.Argument(help="The consumer group.", show_default=False, metavar="GROUP")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


@app.command("list")
@connected
def list_groups(target: Target, as_json: Json = False) -> None:
    """List the groups that have members or a checkpoint: state, streams, partitions and lag in messages."""
    found = target.run(_list)
    if as_json:
        show_json(found)
        return
    if not found and sys.stdout.isatty():
        say("There is no consumer group yet; `bascule group consume GROUP STREAM` reads as a member of one.")
        return
    show_rows(
        ("Group", "State", "Streams", "Partitions", "Lag"),
        [(one["group"], one["state"], ",".join(one["streams"]), one["partitions"], one["lag"]) for one in found],
        right=("Partitions", "Lag"),
    )


async def _list(client: Client) -> list[dict[str, Any]]:
    cursors = await read_cursors(client)
    metadata, streams = await facts.streams(client, groups=None)
    by_group: dict[str, list[GroupPosition]] = {name: [] for name in metadata.groups}
    for one in await from_log_starts(client, group_positions(cursors, streams, metadata.groups)):
        by_group.setdefault(one.group, []).append(one)
    return [
        {
            "group": group,
            "state": "active" if group in metadata.groups else "empty",
            "members": len(metadata.groups[group].members) if group in metadata.groups else 0,
            "streams": sorted({one.stream for one in found}),
            "partitions": len(found),
            "lag": sum(one.lag or 0 for one in found),
        }
        for group, found in sorted(by_group.items())
    ]


@app.command()
@connected
def describe(target: Target, group: GroupId, as_json: Json = False) -> None:
    """Show a group: its members, and for each partition the last processed offset, the lag in messages and the owner.

    A group without an offset in a partition of its streams has processed no message there.
    """
    known_group, found = target.run(_describe, group)
    members = () if known_group is None else known_group.members
    info: dict[str, Any] = {
        "group": group,
        "state": "empty" if known_group is None else "active",
        "coordinator": None if known_group is None else known_group.coordinator,
        "epoch": None if known_group is None else known_group.epoch,
        "lag": sum(one.lag or 0 for one in found),
    }
    if as_json:
        listed = [
            {
                "consumer": one.id,
                "streams": list(one.streams),
                "partitions": {name: list(numbers) for name, numbers in one.assignments.items()},
            }
            for one in members
        ]
        show_json({**info, "members": listed, "partitions": [one.document() for one in found]})
        return
    if members:
        info["members"] = ", ".join(one.id if one.assignments else f"{one.id} (no partitions)" for one in members)
    show_facts([(name, value) for name, value in info.items() if value is not None])
    if found:
        if sys.stdout.isatty():
            say("")
        show_rows(
            ("Stream", "Partition", "Reached", "Newest", "Lag", "Owner"),
            [
                (one.stream, one.partition, known(one.offset), known(one.newest), known(one.lag), one.owner or "")
                for one in found
            ],
            right=("Partition", "Reached", "Newest", "Lag"),
        )


async def _describe(client: Client, group: str) -> tuple[GroupInfo | None, list[GroupPosition]]:
    metadata, streams = await facts.streams(client, groups=[group])
    has_cursors = any(one.name == facts.CURSORS_STREAM for one in streams)
    cursors = await read_cursors(client) if has_cursors else ()
    known_group = metadata.groups.get(group)
    found = [one for one in group_positions(cursors, streams, metadata.groups) if one.group == group]
    if known_group is None and not found:
        raise no_group(group)
    return known_group, await from_log_starts(client, found)


def no_group(group: str) -> StateError:
    return StateError(
        f"group `{group}` does not exist",
        hint="`bascule group list` shows the groups that have members or a checkpoint",
    )


# ── reset and delete ─────────────────────────────────────────────────────────────────────────────


@app.command()
@connected
def reset(
    target: Target,
    group: GroupId,
    streams: Annotated[
        list[str] | None,
        typer.Argument(
            help="Only these streams. Default: all that the group has read.",
            show_default=False,
            autocompletion=completion.streams,
            metavar="STREAM",
        ),
    ] = None,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="WHERE",
            help="The next message to read: `earliest`, `latest` (after the newest message), an offset, or a time "
            "such as `2026-01-31T12:00` or `2h` ago.",
            show_default=False,
        ),
    ] = ...,  # type: ignore[assignment]
    partition: Annotated[
        list[str] | None,
        typer.Option(
            "--partition", "-p", metavar="NUMBER", help="Only this partition; may be repeated.", show_default=False
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the new positions, and change nothing.")] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Move a group to another position. The group must have no members: stop them first, or wait until they expire.

    An offset or a time outside of the stored messages moves the group to the oldest message, or after the newest one.
    """
    where = group_reset.wanted("--to", to)
    numbers = values.partitions("--partition", partition or ())
    planned = target.run(group_reset.plan, group, streams or [], numbers, where)
    if not dry_run:
        if not yes:
            confirm(
                f"Move group `{group}` in {plural(len(planned), 'partition')}?", "`--dry-run` shows the new positions"
            )
        target.run(group_reset.carry_out, planned)
    if as_json:
        show_json([one.document() for one in planned])
        return
    show_rows(
        ("Stream", "Partition", "Reached", "Next", "Lag"),
        [(one.stream, one.partition, known(one.before), one.following, one.lag) for one in planned],
        right=("Partition", "Reached", "Next", "Lag"),
    )
    if dry_run:
        note("Nothing was changed: this was a dry run.")


@app.command()
@connected
def delete(target: Target, group: GroupId, yes: Yes = False) -> None:
    """Delete the positions of a group without members: if it is used again, it begins as a new group."""
    if not yes:
        confirm(f"Delete all positions of group `{group}`?")
    count = target.run(_delete, group)
    say(f"Deleted group `{group}` with {plural(count, 'position')}.")


async def _delete(client: Client, group: str) -> int:
    await group_reset.require_no_members(client, group)
    names = (GROUP_PREFIX + group, HOLD_PREFIX + group)
    places = [one.place for one in await read_cursors(client) if one.place.cursor in names]
    if not places:
        raise no_group(group)
    for place in places:
        await client.delete_cursor(*place)
    return sum(place.cursor.startswith(GROUP_PREFIX) for place in places)


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
