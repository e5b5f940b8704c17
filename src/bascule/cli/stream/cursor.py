"""`bascule cursor …`: offsets that the cluster stores for readers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from bascule.cli.stream.stored_positions import GROUP_PREFIX, HOLD_PREFIX, ListedCursor, read_cursors
from bascule.cli.target import completion
from bascule.cli.target.target import Json, Target, connected
from bascule.cli.terminal import values
from bascule.cli.terminal.output import confirm, say, show_json, show_rows
from bascule.config.values.shown import plural
from bascule.errors import BasculeError, StateError

if TYPE_CHECKING:
    from bascule.client.client import Client

app = typer.Typer(help="List, show, set and delete the cursors of readers.", no_args_is_help=True)

CursorId = Annotated[str, typer.Argument(help="The cursor's id.", show_default=False, metavar="CURSOR")]
Stream = Annotated[
    str, typer.Argument(help="The stream.", show_default=False, autocompletion=completion.streams, metavar="STREAM")
]
Partition = Annotated[int, typer.Option("--partition", "-p", min=0, help="The partition.")]


@app.command("list")
@connected
def list_cursors(
    target: Target,
    streams: Annotated[
        list[str] | None,
        typer.Argument(
            help="Only cursors of these streams.",
            show_default=False,
            autocompletion=completion.streams,
            metavar="STREAM",
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Include the cursors of consumer groups.")] = False,
    as_json: Json = False,
) -> None:
    """List cursors: id, stream, partition, offset and state.

    A cursor of a `former stream` counts as never set, because the stream was deleted and created again since.
    """
    rows = [
        (*one.place, one.offset, state)
        for one, state in target.run(_list)
        if (not streams or one.place.stream in streams) and (everything or not _is_of_group(one.place.cursor))
    ]
    titles = ("Cursor", "Stream", "Partition", "Offset", "State")
    if as_json:
        show_json([dict(zip((title.lower() for title in titles), row, strict=True)) for row in rows])
    elif not rows and sys.stdout.isatty():
        say("There is no cursor; `bascule group list` shows the positions of consumer groups.")
    else:
        show_rows(titles, rows, right=("Partition", "Offset"))


@app.command()
@connected
def get(target: Target, cursor: CursorId, stream: Stream, partition: Partition = 0, as_json: Json = False) -> None:
    """Print the offset of a cursor. Exits with code 3 if the cursor was never set."""
    offset = target.run(_get, cursor, stream, partition)
    if as_json:
        show_json({"cursor": cursor, "stream": stream, "partition": partition, "offset": offset})
    elif offset is not None:
        say(str(offset))
    if offset is None:
        raise StateError(
            f"cursor `{cursor}` was never set on partition {partition} of stream `{stream}`",
            hint=f"`bascule cursor set {cursor} {stream} OFFSET` sets it",
        )


@app.command("set")
@connected
def set_cursor(
    target: Target,
    cursor: CursorId,
    stream: Stream,
    offset: Annotated[
        str,
        typer.Argument(
            help="The offset of the last processed message, `latest`, or `earliest` (no message is processed).",
            show_default=False,
            metavar="OFFSET",
        ),
    ],
    partition: Partition = 0,
    as_json: Json = False,
) -> None:
    """Set a cursor to the offset of the last processed message. `earliest` deletes it: its reader begins at the oldest message."""
    known = offset in ("earliest", "latest")
    if not known and not (offset.isascii() and offset.isdigit() and len(offset) < 20 and int(offset) < 1 << 63):
        raise values.wrong("OFFSET", offset, "an offset such as `42`, `earliest` or `latest`")
    _refuse_group(cursor, f"bascule group reset {{group}} {stream} --to …")
    reached = target.run(_set, cursor, stream, partition, offset if known else int(offset))
    if as_json:
        show_json({"cursor": cursor, "stream": stream, "partition": partition, "offset": reached})
        return
    where = f"partition {partition} of stream `{stream}`"
    said = "before the first message" if reached is None else f"at offset {reached}"
    say(f"Cursor `{cursor}` is {said} of {where}.")


@app.command()
@connected
def delete(
    target: Target,
    cursor: CursorId,
    stream: Annotated[
        str | None,
        typer.Argument(
            help="Only in this stream. Default: in all streams.",
            show_default=False,
            autocompletion=completion.streams,
            metavar="STREAM",
        ),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", min=0, help="Only in this partition. Default: in all.", show_default=False),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete a cursor. Its reader begins as if the cursor had never been set."""
    _refuse_group(cursor, "bascule group delete {group}")
    if not yes:
        listing = " ".join(("bascule cursor list --all", *([stream] if stream else [])))
        confirm(f"Delete cursor `{cursor}`?", f"`{listing}` shows the cursors")
    count = target.run(_delete, cursor, stream, partition)
    say(f"Deleted cursor `{cursor}` in {plural(count, 'partition')}.")


def _is_of_group(cursor: str) -> bool:
    return cursor.startswith((GROUP_PREFIX, HOLD_PREFIX))


def _refuse_group(cursor: str, command: str) -> None:
    if _is_of_group(cursor):
        group = cursor.removeprefix(GROUP_PREFIX).removeprefix(HOLD_PREFIX)
        raise StateError(
            f"cursor `{cursor}` belongs to consumer group `{group}`", hint=f"use `{command.format(group=group)}`"
        )


async def _list(client: Client) -> list[tuple[ListedCursor, str]]:
    streams = (await client.fetch_metadata()).streams
    return [(one, one.state(streams.get(one.place.stream))) for one in await read_cursors(client)]


async def _get(client: Client, cursor: str, stream: str, partition: int) -> int | None:
    await client.fetch_partition_metadata(stream, partition)
    try:
        return await client.fetch_cursor(cursor, stream, partition)
    except BasculeError as error:
        raise _explained(error) from None


async def _set(client: Client, cursor: str, stream: str, partition: int, offset: int | str) -> int | None:
    newest = (await client.fetch_partition_metadata(stream, partition)).newest_offset
    reached = offset if isinstance(offset, int) else newest if offset == "latest" and newest >= 0 else None
    try:
        if reached is None:
            await client.delete_cursor(cursor, stream, partition)
        else:
            await client.set_cursor(cursor, stream, partition, reached)
    except BasculeError as error:
        raise _explained(error) from None
    return reached


async def _delete(client: Client, cursor: str, stream: str | None, partition: int | None) -> int:
    places = [
        one.place
        for one in await read_cursors(client)
        if one.place.cursor == cursor
        and stream in (None, one.place.stream)
        and partition in (None, one.place.partition)
    ]
    if not places:
        raise StateError(f"there is no cursor `{cursor}` to delete", hint="`bascule cursor list` shows all cursors")
    for place in places:
        await client.delete_cursor(*place)
    return len(places)


def _explained(error: BasculeError) -> BasculeError:
    """The error with a hint if the cluster is configured without cursors."""
    if "cursors.stream.partitions" in error.message:
        error.hint = "set it on the brokers, for example to 1, and restart them"
    return error
