"""`bascule subscribe`: reads a stream from one position to another, or follows it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bascule.cli.target import completion, facts
from bascule.cli.target.target import Json, Target, connected
from bascule.cli.terminal import messages, values
from bascule.cli.terminal.output import note, warn
from bascule.cli.terminal.values import LastMessages
from bascule.errors import EndOfPartition, InvalidOption
from bascule.exits import wants_colour
from bascule.lake.delta.place import storage_options

if TYPE_CHECKING:
    import asyncio

    from bascule.client.client import Client
    from bascule.client.consume.subscription import Subscription
    from bascule.client.messages import Message, MessageBatch

Renderer = Callable[[bool], Callable[[messages.Messages], bytes]]
"""Returns the function that renders messages as bytes; the argument says whether the stream has several partitions."""

BATCHES_AHEAD: Final = 16
"""Maximum number of batches that are received ahead of printing, with several partitions."""


@dataclass(frozen=True, slots=True)
class SubscribeOptions:
    """The options of the command."""

    stream: str
    partitions: list[int] | None
    start: values.Start
    stop: str | int | datetime | None
    reverse: bool
    resume: bool
    read_replica: bool
    count: int | None
    key: bytes | None
    headers: dict[str, bytes | None]
    history: str | None = None
    storage: dict[str, str] = field(default_factory=dict, repr=False)
    on_data_loss: str = "fail"


Count = Annotated[
    int | None, typer.Option("--count", "-n", min=1, help="Exit after this number of messages.", show_default=False)
]
Template = Annotated[
    str | None,
    typer.Option(
        "--template",
        "-t",
        metavar="TEXT",
        help=r"Output template, such as `{offset} {key}: {value}\n`.",
        show_default=False,
    ),
]

Stop = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="WHERE",
        help="Last message: `latest`, an offset, a time, or `15m` for 15 minutes ago.",
        show_default=False,
    ),
]
Key = Annotated[str | None, typer.Option("--key", "-k", help="Only messages with this key.", show_default=False)]
HeaderFilter = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        "-H",
        metavar="NAME[=VALUE]",
        help="Only messages with this header; may be repeated.",
        show_default=False,
    ),
]

History = Annotated[
    str | None,
    typer.Option(
        "--history",
        metavar="PATH",
        help="An archive of the stream, which is read first: a folder, or a path such as `s3://bucket/orders`.",
        show_default=False,
    ),
]
StorageOption = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="KEY=VALUE",
        help="An option of the object store of `--history`; may be repeated.",
        show_default=False,
    ),
]
OnDataLoss = Annotated[
    str,
    typer.Option(
        "--on-data-loss",
        metavar="WHAT",
        help="With `--history`, when neither the archive nor the log has a message: `fail` or `skip`.",
    ),
]


@connected
def subscribe(
    target: Target,
    stream: Annotated[
        str, typer.Argument(help="The stream.", show_default=False, autocompletion=completion.streams, metavar="STREAM")
    ],
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            "-o",
            metavar="WHERE",
            help="Start: `earliest`, `latest`, `new`, an offset, `-10` for the last ten, a time, or `15m` for 15 minutes ago.",
            show_default=False,
        ),
    ] = None,
    stop: Stop = None,
    count: Count = None,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", "-f/-e", help="Wait for new messages, or exit at the current end.")
    ] = True,
    partition: Annotated[
        list[str] | None,
        typer.Option(
            "--partition",
            "-p",
            metavar="NUMBER",
            help="A partition, several separated by commas, or `all`. Default: all.",
            show_default=False,
        ),
    ] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="Read from the newest message to the oldest.")] = False,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="`raw` (the value and a line break), `json` (one object per line), `hex`, or `pretty`. "
            "Default: `pretty` on a terminal, `raw` in a pipe.",
            show_default=False,
        ),
    ] = None,
    template: Template = None,
    key: Key = None,
    header: HeaderFilter = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume paused partitions.")] = False,
    replica: Annotated[
        bool, typer.Option("--replica", help="Read from any in-sync replica, not only from the leader.")
    ] = False,
    history: History = None,
    storage_option: StorageOption = None,
    on_data_loss: OnDataLoss = "fail",
    as_json: Json = False,
) -> None:
    r"""Read a stream from the beginning and follow it. Ends at `--to`, after `--count` messages, or with Ctrl-C.

    When a broker restarts, it reconnects and continues without gaps or duplicates. Fields of a template: offset, partition, stream,
    subject, reply, key, value, timestamp, time, headers, and one header as `headers\[name]`.
    """
    render = chosen_renderer(form, template, as_json)
    wanted = SubscribeOptions(
        stream,
        values.partitions("--partition", partition or ()),
        values.start("--from", start if start is not None else ("latest" if reverse else "earliest")),
        values.stop("--to", stop) if stop is not None else (None if follow or reverse else "latest"),
        reverse,
        resume,
        replica,
        count,
        None if key is None else key.encode("utf-8", "surrogateescape"),
        values.wanted_headers("--header", header or ()),
        history,
        storage_options(storage_option),
        values.choice("--on-data-loss", on_data_loss, ("fail", "skip")),
    )
    _check(wanted)
    received = target.run(_subscribe, wanted, render)
    if received == 0:
        note("No messages.")


def chosen_renderer(form: str | None, template: str | None, as_json: bool) -> Renderer:
    given = [name for name, value in (("--format", form), ("--template", template), ("--json", as_json)) if value]
    if len(given) > 1:
        raise InvalidOption(f"`{given[0]}` and `{given[1]}` are given together", hint="choose one of them")
    is_terminal = sys.stdout.isatty()
    chosen = "json" if as_json else form or ("pretty" if is_terminal else "raw")
    values.choice("--format", chosen, messages.FORMATS)
    # Refuses a wrong template before connecting.
    messages.renderer(chosen, template, colour=False, partitions=False)
    return lambda several: messages.renderer(
        chosen, template, colour=is_terminal and wants_colour(), partitions=several
    )


def _check(wanted: SubscribeOptions) -> None:
    if wanted.history is None and (wanted.storage or wanted.on_data_loss != "fail"):
        named = "--storage-option" if wanted.storage else "--on-data-loss"
        raise InvalidOption(f"`{named}` is given without `--history`", hint="it says how an archive is read: give both")
    if wanted.history is not None and wanted.reverse:
        raise InvalidOption("`--reverse` and `--history` are given together", hint="an archive is read forward")
    if wanted.reverse and isinstance(wanted.start, LastMessages):
        raise InvalidOption(
            f"`--from` is `-{wanted.start.count}` with `--reverse`",
            hint=f"use `--reverse --count {wanted.start.count}`",
        )
    if wanted.reverse and wanted.start in ("new", "earliest"):
        raise values.wrong("--from", wanted.start, "`latest`, an offset or a time with `--reverse`")
    if isinstance(wanted.start, int) and isinstance(wanted.stop, int):
        backward = wanted.stop > wanted.start if wanted.reverse else wanted.stop < wanted.start
        if backward:
            side = "at or before" if wanted.reverse else "at or after"
            raise values.wrong("--to", wanted.stop, f"{side} `--from`, which is {wanted.start}")


async def _subscribe(client: Client, wanted: SubscribeOptions, renderer: Renderer) -> int:
    stream = await facts.one_stream(client, wanted.stream)
    numbers = wanted.partitions if wanted.partitions is not None else list(stream.partitions)
    for number in numbers:
        if number not in stream.partitions:
            raise values.no_partition(number, facts.partitions_of(stream))
    if (reason := facts.shortage(stream)) is not None:
        warn(f"{reason}; {facts.SHORTAGE_HINT.replace('NAME', stream.name)}")
    render = renderer(len(stream.partitions) > 1)
    starts = {number: await _start(client, wanted, number) for number in numbers}
    left = wanted.count
    received = 0
    async with AsyncExitStack() as stack:
        async for batch in _batches(client, wanted, starts, stack):
            if left is not None and len(batch) >= left:
                write(render(Few([batch[place] for place in range(left)])))
                return received + left
            write(render(batch))
            received += len(batch)
            left = None if left is None else left - len(batch)
    return received


class Few:
    """A part of a batch, with the interface that renderers use."""

    def __init__(self, found: list[Message]) -> None:
        self._found = found

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Message]:
        return iter(self._found)

    def values(self) -> list[bytes | None]:
        return [message.value for message in self._found]


def write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


async def _start(client: Client, wanted: SubscribeOptions, number: int) -> str | int | datetime:
    if not isinstance(wanted.start, LastMessages):
        return wanted.start
    newest = (await client.fetch_partition_metadata(wanted.stream, number)).newest_offset
    return max(0, newest + 1 - wanted.start.count)


async def _batches(
    client: Client, wanted: SubscribeOptions, starts: dict[int, str | int | datetime], stack: AsyncExitStack
) -> AsyncIterator[MessageBatch]:
    if len(starts) == 1:
        subscription = await stack.enter_async_context(_one(client, wanted, list(starts), next(iter(starts.values()))))
        async for batch in _until_end(subscription):
            yield batch
        return
    import asyncio

    # One subscription per partition: the end of a readonly partition must not end the others. Batches are printed as they arrive.
    queue: asyncio.Queue[MessageBatch | BaseException | None] = asyncio.Queue(BATCHES_AHEAD)
    subscriptions = [
        await stack.enter_async_context(_one(client, wanted, [number], start)) for number, start in starts.items()
    ]
    tasks = [asyncio.create_task(_forward(one, queue)) for one in subscriptions]
    try:
        running = len(tasks)
        while running:
            found = await queue.get()
            if isinstance(found, BaseException):
                raise found
            if found is None:
                running -= 1
            else:
                yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _one(client: Client, wanted: SubscribeOptions, numbers: list[int], start: str | int | datetime) -> Subscription:
    return client.subscribe(
        wanted.stream,
        partition=numbers,
        start=start,
        stop=wanted.stop,
        reverse=wanted.reverse,
        resume=wanted.resume,
        read_replica=wanted.read_replica,
        key=wanted.key,
        headers=wanted.headers,
        history=wanted.history,
        storage_options=wanted.storage or None,
        on_data_loss=wanted.on_data_loss,
    )


async def _until_end(subscription: Subscription) -> AsyncIterator[MessageBatch]:
    """The batches of a subscription. The end of a readonly partition is not an error."""
    try:
        async for batch in subscription.batches():
            yield batch
    except EndOfPartition:
        note("The partition is readonly, and all its messages have been read.")


async def _forward(subscription: Subscription, queue: asyncio.Queue[MessageBatch | BaseException | None]) -> None:
    try:
        async for batch in _until_end(subscription):
            await queue.put(batch)
    except Exception as error:
        await queue.put(error)
    else:
        await queue.put(None)
