"""`bascule cursor …`: offsets that the cluster stores for readers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bascule.cli.target import completion
from bascule.cli.target.target import Json, Target, connected
from bascule.cli.terminal import values
from bascule.cli.terminal.output import say, show_json
from bascule.errors import BasculeError, StateError

if TYPE_CHECKING:
    from bascule.client.client import Client

app = typer.Typer(help="Show and set the cursors of readers.", no_args_is_help=True)

CursorId = Annotated[
    str,
    typer.Argument(
        help="The cursor's id; that of a consumer group is `__group:ID`.", show_default=False, metavar="CURSOR"
    ),
]
Stream = Annotated[
    str, typer.Argument(help="The stream.", show_default=False, autocompletion=completion.streams, metavar="STREAM")
]
Partition = Annotated[int, typer.Option("--partition", "-p", min=0, help="The partition.")]


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
        str, typer.Argument(help="The offset, or `earliest` or `latest`.", show_default=False, metavar="OFFSET")
    ],
    partition: Partition = 0,
    as_json: Json = False,
) -> None:
    """Set a cursor, by convention to the offset of the last processed message."""
    known = offset in ("earliest", "latest")
    if not known and not (offset.isascii() and offset.isdigit() and len(offset) < 20 and int(offset) < 1 << 63):
        raise values.wrong("OFFSET", offset, "an offset such as `42`, `earliest` or `latest`")
    reached = target.run(_set, cursor, stream, partition, offset if known else int(offset))
    if as_json:
        show_json({"cursor": cursor, "stream": stream, "partition": partition, "offset": reached})
    else:
        say(f"Cursor `{cursor}` is at offset {reached} of partition {partition} of stream `{stream}`.")


async def _get(client: Client, cursor: str, stream: str, partition: int) -> int | None:
    await client.fetch_partition_metadata(stream, partition)
    try:
        return await client.fetch_cursor(cursor, stream, partition)
    except BasculeError as error:
        raise _explained(error) from None


async def _set(client: Client, cursor: str, stream: str, partition: int, offset: int | str) -> int:
    newest = (await client.fetch_partition_metadata(stream, partition)).newest_offset
    wanted = offset if isinstance(offset, int) else max(0, newest) if offset == "latest" else 0
    try:
        await client.set_cursor(cursor, stream, partition, wanted)
    except BasculeError as error:
        raise _explained(error) from None
    return wanted


def _explained(error: BasculeError) -> BasculeError:
    """The error with a hint if the cluster is configured without cursors."""
    if "cursors.stream.partitions" in error.message:
        error.hint = "set it on the brokers, for example to 1, and restart them"
    return error
