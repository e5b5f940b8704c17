"""`bascule publish`: publishes messages from arguments, a pipe or a file, through a broker or directly over NATS."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bascule.cli.target import completion, facts
from bascule.cli.target.target import Target, connected
from bascule.cli.terminal import message_input, values
from bascule.cli.terminal.message_input import InputMessage
from bascule.cli.terminal.output import json_line, note, say
from bascule.cli.terminal.progress import ProgressBar
from bascule.config.values.shown import iso_ns, plural
from bascule.errors import BasculeError, InvalidOption, PartitionReadonly

if TYPE_CHECKING:
    import asyncio

    from bascule.client.client import Client
    from bascule.client.connection.metadata import StreamInfo
    from bascule.client.messages import Ack
    from bascule.client.publish.publisher import BasePublisher

ACKS: Final = ("leader", "all", "none")
PARTITIONERS: Final = ("key", "round-robin")
PIECES_AHEAD: Final = 8
"""Maximum number of pieces of input that are read ahead of publishing."""


@dataclass(frozen=True, slots=True)
class PublishOptions:
    """The options of the command."""

    stream: str
    ack: str
    partition: int | None
    partitioner: str
    key: bytes | None
    headers: dict[str, bytes]
    expected_offset: int | None
    rate: float | None
    repeat: int
    nats: str | None
    as_json: bool


@dataclass(slots=True)
class PublishResult:
    """The number of messages sent and stored so far, and the first error."""

    sent: int = 0
    stored: int = 0
    offsets: dict[int, list[int]] = field(default_factory=dict)
    """The first and the last offset by partition."""
    failed_at: int = 0
    error: BasculeError | None = None

    def note(self, partition: int, ack: Ack | None) -> None:
        self.stored += 1
        if ack is not None:
            known = self.offsets.setdefault(partition, [ack.offset, ack.offset])
            known[0], known[1] = min(known[0], ack.offset), max(known[1], ack.offset)

    def fail(self, number: int, error: BasculeError) -> None:
        if self.error is None:
            self.failed_at, self.error = number, error


Stream = Annotated[
    str, typer.Argument(help="The stream.", show_default=False, autocompletion=completion.streams, metavar="STREAM")
]
Texts = Annotated[
    list[str] | None,
    typer.Argument(help="The messages. Default: read them from stdin.", show_default=False, metavar="[VALUE]..."),
]
File = Annotated[Path | None, typer.Option("--file", "-F", help="Read messages from this file.", show_default=False)]
Input = Annotated[
    str,
    typer.Option(
        "--input",
        "-i",
        metavar="FORMAT",
        help="`lines`: one message per line. `json`: one object per line with value, key, headers, partition. `whole`: one message.",
    ),
]
Header = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header; may be repeated.", show_default=False),
]
AckPolicy = Annotated[
    str,
    typer.Option(metavar="POLICY", help="Ack once the `leader` or `all` in-sync replicas have stored it, or `none`."),
]
How = Annotated[
    str, typer.Option(metavar="HOW", help="How to choose a partition if none is given: by `key`, or `round-robin`.")
]


@connected
def publish(
    target: Target,
    stream: Stream,
    texts: Texts = None,
    file: File = None,
    form: Input = "lines",
    key: Annotated[
        str | None, typer.Option("--key", "-k", help="Key of messages without one.", show_default=False)
    ] = None,
    header: Header = None,
    tombstone: Annotated[
        bool, typer.Option("--tombstone", help="Publish one message without a value, which deletes its key.")
    ] = False,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Publish to this partition.", show_default=False)
    ] = None,
    partitioner: How = "key",
    ack: AckPolicy = "leader",
    expected_offset: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Refuse the first message unless it gets this offset, the second unless it gets the next one, …",
            show_default=False,
        ),
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Maximum messages per second.", show_default=False)] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Publish the whole input this number of times.")] = 1,
    nats: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Publish directly to this NATS server instead of a broker.", show_default=False
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each ack as a line of JSON.")] = False,
) -> None:
    """Publish messages and wait for their acks. Stops at the first refused message.

    `bascule publish orders lamp desk`, `tail -f app.log | bascule publish logs`, `bascule publish orders -i json -F orders.jsonl`.
    """
    if rate is not None and not 0 < rate <= 1e9:
        raise values.wrong("--rate", rate, "greater than 0")
    if partition is not None and partitioner != "key":
        raise InvalidOption("`--partition` and `--partitioner` are given together", hint="choose one of them")
    if texts and file is not None:
        raise InvalidOption(f"both messages and `--file {file}` are given", hint="choose one of them")
    if tombstone and (texts or file is not None or key is None):
        raise InvalidOption(
            "`--tombstone` is given " + ("without `--key`" if key is None else "together with messages"),
            hint="`bascule publish STREAM --key KEY --tombstone` deletes a key",
        )
    wanted = PublishOptions(
        stream,
        values.choice("--ack", ack, ACKS),
        partition,
        values.choice("--partitioner", partitioner, PARTITIONERS),
        None if key is None else key.encode("utf-8", "surrogateescape"),
        values.headers("--header", header or ()),
        expected_offset,
        rate,
        repeat,
        nats,
        as_json,
    )
    values.choice("--input", form, message_input.INPUTS)
    with (
        nullcontext([[InputMessage(None)]] * repeat)
        if tombstone
        else _source(texts or [], file, form, repeat) as pieces
    ):
        outcome = target.run(_publish, wanted, pieces)
    if not (quiet or as_json):
        say(_summary(wanted, outcome))


@contextmanager
def _source(texts: list[str], file: Path | None, form: str, repeat: int) -> Iterator[Iterable[list[InputMessage]]]:
    if texts:
        arguments = enumerate(texts, 1)
        if form == "json":
            found = [
                message_input.parse(text.encode("utf-8", "surrogateescape"), f"argument {number}")
                for number, text in arguments
            ]
        else:
            found = list(message_input.from_arguments(texts))
        yield [found] * repeat
        return
    name = "stdin" if file is None or str(file) == "-" else f"`{file}`"
    if name == "stdin" and sys.stdin.isatty():
        note("Type one message per line; Ctrl-D ends.")
    with message_input.opened(file) as descriptor:
        pieces = message_input.read(descriptor, form, name)
        # Keep the input in memory only if it is published again.
        yield pieces if repeat == 1 else list(pieces) * repeat


def _summary(wanted: PublishOptions, outcome: PublishResult) -> str:
    count = plural(outcome.stored, "message")
    if wanted.ack == "none":
        return f"Sent {count} to `{wanted.stream}` without acks."
    if not outcome.stored:
        return f"Published no message to `{wanted.stream}`."
    places = []
    for partition, (first, last) in sorted(outcome.offsets.items()):
        offsets = f"offset {first}" if first == last else f"offsets {first} to {last}"
        places.append(offsets if len(outcome.offsets) == 1 and partition == 0 else f"partition {partition} {offsets}")
    return f"Published {count} to `{wanted.stream}`: {', '.join(places)}."


# ── publishing ───────────────────────────────────────────────────────────────────────────────────


async def _publish(client: Client, wanted: PublishOptions, pieces: Iterable[list[InputMessage]]) -> PublishResult:
    stream = await facts.one_stream(client, wanted.stream)
    if wanted.partition is not None and wanted.partition not in stream.partitions:
        raise values.no_partition(wanted.partition, facts.partitions_of(stream))
    outcome = PublishResult()
    sender = _Sender(wanted, stream, outcome)
    try:
        async with _publisher(client, wanted) as publisher:
            with ProgressBar(f"Publishing to {wanted.stream}") as bar:
                async for piece in _arriving(pieces):
                    if not await sender.send_all(publisher, piece):
                        break
                    bar.update(outcome.sent)
                await publisher.flush()
            sender.settle()
    except BasculeError as error:
        sender.settle()
        outcome.fail(outcome.sent + 1, error)
    if outcome.error is not None:
        raise _explained(outcome.error, wanted.stream, outcome)
    return outcome


def _publisher(client: Client, wanted: PublishOptions) -> BasePublisher:
    options: dict[str, Any] = {"ack": wanted.ack, "on_error": lambda _: None}
    if wanted.nats is not None:
        return client.nats_publisher(wanted.stream, nats=wanted.nats, **options)
    return client.publisher(wanted.stream, **options)


def _explained(error: BasculeError, stream: str, outcome: PublishResult) -> BasculeError:
    if isinstance(error, PartitionReadonly):
        error.message = f"stream `{stream}` is readonly"
    if error.hint is not None and "client.publisher" in error.hint:
        error.hint = "publish through a broker: leave out `--nats`"
    if outcome.sent > 1:
        before = f"message {outcome.failed_at}: {error.message}" if outcome.failed_at <= outcome.sent else error.message
        error.message = f"{before} ({outcome.stored:,} of {plural(outcome.sent, 'message')} were stored)"
    return error


class _Sender:
    """Sends messages at the requested rate, and records their acks in order."""

    def __init__(self, wanted: PublishOptions, stream: StreamInfo, outcome: PublishResult) -> None:
        from bascule.client.publish.partitioner import partitioner

        self._wanted = wanted
        self._stream = stream
        self._partitions = len(stream.partitions)
        self._outcome = outcome
        self._choose = partitioner(wanted.partitioner)
        self._waiting: deque[tuple[int, int, asyncio.Future[Any]]] = deque()
        self._due = monotonic()

    async def send_all(self, publisher: BasePublisher, piece: list[InputMessage]) -> bool:
        """Send the messages; returns False after one was refused, without sending the rest."""
        wanted, outcome = self._wanted, self._outcome
        for message in piece:
            if wanted.rate is not None:
                await self._pace(wanted.rate)
            partition = self._partition(message)
            future = await publisher.send(
                message.value,
                key=wanted.key if message.key is None else message.key,
                headers={**wanted.headers, **message.headers} or None,
                partition=partition,
                expected_offset=None if wanted.expected_offset is None else wanted.expected_offset + outcome.sent,
            )
            outcome.sent += 1
            self._waiting.append((outcome.sent, partition, future))
            self.settle(only_done=True)
            if outcome.error is not None:
                return False
        return True

    def _partition(self, message: InputMessage) -> int:
        found = self._wanted.partition if message.partition is None else message.partition
        if found is None:
            key = self._wanted.key if message.key is None else message.key
            return self._choose(key, message.value or b"", self._partitions)
        if found >= self._partitions:
            raise values.no_partition(found, facts.partitions_of(self._stream))
        return found

    async def _pace(self, rate: float) -> None:
        import asyncio

        now = monotonic()
        # After a delay, continue at the same rate instead of catching up in a burst.
        self._due = max(self._due, now - 1 / rate)
        if self._due > now:
            await asyncio.sleep(self._due - now)
        self._due += 1 / rate

    def settle(self, *, only_done: bool = False) -> None:
        """Record the results of sent messages, the oldest first."""
        while self._waiting and (self._waiting[0][2].done() or not only_done):
            number, partition, future = self._waiting.popleft()
            if not future.done() or future.cancelled():
                continue
            error = future.exception()
            if isinstance(error, BasculeError):
                self._outcome.fail(number, error)
            elif error is not None:
                raise error
            else:
                self._stored(partition, future.result())

    def _stored(self, partition: int, ack: Ack | None) -> None:
        self._outcome.note(partition, ack)
        if self._wanted.as_json:
            document: dict[str, object] = {"stream": self._wanted.stream, "partition": partition}
            if ack is not None:
                document |= {
                    "offset": ack.offset,
                    "timestamp": ack.reception_timestamp,
                    "time": iso_ns(ack.reception_timestamp),
                }
            typer.echo(json_line(document))


async def _arriving(pieces: Iterable[list[InputMessage]]) -> AsyncIterator[list[InputMessage]]:
    """Yield the pieces, read by a thread: the event loop must receive acks while a pipe is idle."""
    if isinstance(pieces, list):
        for piece in pieces:
            yield piece
        return
    import asyncio
    import threading

    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[list[InputMessage] | BaseException | None] = asyncio.Queue()
    room = threading.Semaphore(PIECES_AHEAD)

    def deliver(found: list[InputMessage] | BaseException | None) -> None:
        with suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(queue.put_nowait, found)

    def read() -> None:
        try:
            for piece in pieces:
                room.acquire()
                deliver(piece)
        except BaseException as error:
            deliver(error)
        else:
            deliver(None)

    # A daemon thread, because a thread that is blocked in a read cannot be stopped.
    threading.Thread(target=read, name="input", daemon=True).start()
    while (found := await queue.get()) is not None:
        if isinstance(found, BaseException):
            raise found
        room.release()
        yield found
