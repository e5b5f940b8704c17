"""`bascule bench …`: measures a cluster from this machine, on a given stream or on a temporary one."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bascule.cli.target import completion, facts
from bascule.cli.target.target import Json, Target, connected
from bascule.cli.target.temporary import temporary_stream
from bascule.cli.terminal import values
from bascule.cli.terminal.output import show_facts, show_json
from bascule.cli.terminal.progress import ProgressBar
from bascule.config.values.shown import bytes_per_second, milliseconds
from bascule.errors import NotEnoughReplicas, Unavailable

if TYPE_CHECKING:
    from bascule.client.client import Client

app = typer.Typer(help="Measure publishing, subscribing and latency.", no_args_is_help=True)

CHUNK: Final = 10_000
"""Messages per call of the client."""

ARRIVAL_SECONDS_MAX: Final = 30.0
"""Maximum time from the last ack until the subscriber has the last message."""

Stream = Annotated[
    str | None,
    typer.Argument(
        help="The stream. Default: a temporary stream, deleted afterwards.",
        show_default=False,
        autocompletion=completion.streams,
        metavar="[STREAM]",
    ),
]
Count = Annotated[int, typer.Option("--messages", "-n", min=1, help="Number of messages.")]
Size = Annotated[str, typer.Option("--size", metavar="SIZE", help="Size of each message.")]
Partitions = Annotated[int, typer.Option("--partitions", "-p", min=1, help="Partitions of the temporary stream.")]
AckPolicy = Annotated[str, typer.Option("--ack", metavar="POLICY", help="Ack policy: `leader` or `all`.")]


@app.command()
@connected
def publish(
    target: Target,
    stream: Stream = None,
    count: Count = 100_000,
    size: Size = "128B",
    partitions: Partitions = 1,
    ack: AckPolicy = "leader",
    as_json: Json = False,
) -> None:
    """Measure the throughput of publishing, with an ack for every message."""
    values.choice("--ack", ack, ("leader", "all"))
    _show(target.run(_publish, stream, count, values.size("--size", size) or 0, partitions, ack), as_json)


@app.command()
@connected
def subscribe(
    target: Target,
    stream: Stream = None,
    count: Count = 100_000,
    size: Size = "128B",
    partitions: Partitions = 1,
    objects: Annotated[bool, typer.Option("--objects", help="Read single messages instead of batches.")] = False,
    as_json: Json = False,
) -> None:
    """Measure the throughput of reading a stream from its beginning. A temporary stream is filled first."""
    _show(target.run(_subscribe, stream, count, values.size("--size", size) or 0, partitions, objects), as_json)


@app.command()
@connected
def latency(
    target: Target,
    stream: Stream = None,
    count: Count = 1_000,
    size: Size = "128B",
    ack: AckPolicy = "leader",
    as_json: Json = False,
) -> None:
    """Publish one message at a time, and measure the time until its ack and until its delivery to a subscriber."""
    values.choice("--ack", ack, ("leader", "all"))
    _show(target.run(_latency, stream, count, values.size("--size", size) or 0, ack), as_json)


def _show(document: dict[str, Any], as_json: bool) -> None:
    if as_json:
        show_json(document)
        return
    shown: list[tuple[str, object]] = []
    for name, value in document.items():
        title = name.removesuffix("_seconds").replace("_", " ")
        if name.endswith("_seconds") and name != "elapsed_seconds":
            shown.append((title, milliseconds(value)))
        elif name == "elapsed_seconds":
            shown.append((title, f"{value:.3f} s"))
        elif name == "bytes_per_second":
            shown.append(("throughput", bytes_per_second(value)))
        else:
            shown.append((title, round(value) if isinstance(value, float) else value))
    show_facts(shown)


@asynccontextmanager
async def _stream(client: Client, name: str | None, partitions: int) -> AsyncIterator[tuple[str, list[int]]]:
    """The stream's name and partitions; without a name a temporary stream, deleted on exit."""
    if name is not None:
        found = await facts.one_stream(client, name)
        if (reason := facts.shortage(found)) is not None:
            raise NotEnoughReplicas(reason)
        yield name, list(found.partitions)
        return
    async with temporary_stream(client, "bascule-bench", partitions) as own:
        yield own, list(range(partitions))


async def _fill(client: Client, name: str, partitions: list[int], count: int, size: int, ack: str) -> float:
    """Publish `count` messages; returns the elapsed seconds."""
    values_of_one = [os.urandom(size)] * CHUNK
    started = perf_counter()
    with ProgressBar("Publishing", count) as bar:
        for turn, done in enumerate(range(0, count, CHUNK)):
            chunk = values_of_one[: min(CHUNK, count - done)]
            place = partitions[turn % len(partitions)]
            await client.publish_many(name, chunk, partition=place, ack=ack, timeout=60.0)  # type: ignore[arg-type]
            bar.update(done + len(chunk))
    return perf_counter() - started


def _rates(name: str, count: int, size: int, seconds: float) -> dict[str, Any]:
    return {
        "stream": name,
        "messages": count,
        "message_bytes": size,
        "elapsed_seconds": seconds,
        "messages_per_second": count / seconds,
        "bytes_per_second": count * size / seconds,
    }


async def _publish(
    client: Client, stream: str | None, count: int, size: int, partitions: int, ack: str
) -> dict[str, Any]:
    async with _stream(client, stream, partitions) as (name, numbers):
        seconds = await _fill(client, name, numbers, count, size, ack)
    return {**_rates(name, count, size, seconds), "ack": ack}


async def _subscribe(
    client: Client, stream: str | None, count: int, size: int, partitions: int, objects: bool
) -> dict[str, Any]:
    async with _stream(client, stream, partitions) as (name, numbers):
        if stream is None:
            await _fill(client, name, numbers, count, size, "leader")
        started = perf_counter()
        read = total = 0
        subscription = client.subscribe(name, partition="all", start="earliest", stop="latest")
        with ProgressBar("Reading") as bar:
            async with subscription:
                if objects:
                    async for message in subscription:
                        read += 1
                        total += len(message.value or b"")
                        if not read % CHUNK:
                            bar.update(read)
                else:
                    async for batch in subscription.batches():
                        read += len(batch)
                        total += len(batch.value_bytes)
                        bar.update(read)
        seconds = perf_counter() - started
    found = _rates(name, read, total // max(1, read), seconds)
    return {**found, "bytes_per_second": total / seconds, "read_as": "objects" if objects else "batches"}


async def _arrival(client: Client, name: str, is_there: Callable[[], bool]) -> None:
    """Wait until the subscriber has the last message. Raises Unavailable with the reason why it does not get it."""
    import asyncio

    try:
        async with asyncio.timeout(ARRIVAL_SECONDS_MAX):
            while not is_there():
                await asyncio.sleep(0.001)
    except TimeoutError:
        reason = facts.shortage(await facts.one_stream(client, name))
        if reason is not None:
            raise NotEnoughReplicas(reason) from None
        raise Unavailable(f"the last message did not reach the subscriber within {ARRIVAL_SECONDS_MAX:g} s") from None


async def _latency(client: Client, stream: str | None, count: int, size: int, ack: str) -> dict[str, Any]:
    import asyncio

    acked, sent_at, arrived_at = [], {}, {}
    async with (
        _stream(client, stream, 1) as (name, _),
        client.subscribe(name, partition=0, start="new") as subscription,
    ):

        async def read() -> None:
            async for message in subscription:
                arrived_at[message.offset] = perf_counter()

        value = os.urandom(size)
        reading = asyncio.create_task(read())
        with ProgressBar("Measuring", count) as bar:
            for number in range(count):
                started = perf_counter()
                answer = await client.publish(name, value, partition=0, ack=ack)  # type: ignore[call-overload]
                acked.append(perf_counter() - started)
                if answer is not None:
                    sent_at[answer.offset] = started
                bar.update(number + 1)
        await _arrival(client, name, lambda: reading.done() or max(sent_at) in arrived_at)
        reading.cancel()
    delivered = [arrived_at[offset] - started for offset, started in sent_at.items()]
    document: dict[str, Any] = {"stream": name, "messages": count, "message_bytes": size, "ack": ack}
    for what, found in (("ack", sorted(acked)), ("delivery", sorted(delivered))):
        for label, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0)):
            document[f"{what}_{label}_seconds"] = found[min(len(found) - 1, int(len(found) * share))]
    return document
