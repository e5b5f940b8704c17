"""The loads of a Python client on our own kernels, in a process of its own: `python -m bench.client_load batches --port …`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import resource
import time
from array import array
from collections.abc import Awaitable, Callable
from importlib import import_module

from bascule.kernels.client_messages import MessageBatch
from bascule.kernels.client_streams import PublishAsyncClientStream, SubscribeClientStream
from bascule.kernels.publish_window import Ack, PublishColumns, PublishTarget
from bascule.net.grpc_channel import Channel
from bascule.proto import api_pb2

Counted = tuple[int, int]
"""How many messages, and how many of them failed."""


async def subscribe(channel: Channel, options: argparse.Namespace, look: Callable[[MessageBatch], object]) -> Counted:
    ready = asyncio.Event()
    request = api_pb2.SubscribeRequest(stream=options.stream, startPosition=api_pb2.EARLIEST)
    stream = SubscribeClientStream(request.SerializeToString(), ready.set)
    channel.start(stream, b"/proto.API/Subscribe")
    messages = 0
    while messages < options.messages:
        batch = stream.take()
        if batch is not None:
            look(batch)
            messages += len(batch)
        elif stream.finished:
            raise RuntimeError(f"the subscription ended: {stream.status_text}")
        else:
            ready.clear()
            await ready.wait()
    stream.cancel()
    return messages, 0


async def batches(channel: Channel, options: argparse.Namespace) -> Counted:
    """Offsets and values as columns; nobody looks at a single message."""
    return await subscribe(channel, options, lambda batch: (batch.offsets, batch.value_bytes))


async def objects(channel: Channel, options: argparse.Namespace) -> Counted:
    """An object for each message; its offset, key and value are looked at."""

    def look(batch: MessageBatch) -> None:
        for message in batch:
            _ = message.offset, message.key, message.value

    return await subscribe(channel, options, look)


def publisher(channel: Channel, options: argparse.Namespace) -> tuple[PublishAsyncClientStream, asyncio.Event]:
    writable = asyncio.Event()
    stream = PublishAsyncClientStream(options.window, on_writable=writable.set)
    channel.start(stream, b"/proto.API/PublishAsync")
    return stream, writable


async def columns(channel: Channel, options: argparse.Namespace) -> Counted:
    """All messages in one buffer; outcomes and offsets in arrays."""
    stream, _ = publisher(channel, options)
    done: asyncio.Future[PublishColumns] = asyncio.get_running_loop().create_future()
    ends = array("q", range(options.size, (options.messages + 1) * options.size, options.size))
    values = bytes(options.size * options.messages)
    stream.publish_columns(PublishColumns(PublishTarget(options.stream), values, ends, waiter=done))
    outcome = await done
    stream.half_close()
    return len(outcome), outcome.failed


async def futures(channel: Channel, options: argparse.Namespace) -> Counted:
    """A call and a Future for each message, as a publisher of single messages has it."""
    stream, writable = publisher(channel, options)
    create = asyncio.get_running_loop().create_future
    target, value = PublishTarget(options.stream), bytes(options.size)
    waiting: list[asyncio.Future[Ack]] = []
    for _ in range(options.messages):
        future = create()
        while stream.publish(target, value, waiter=future) < 0:
            writable.clear()
            await writable.wait()
        waiting.append(future)
    failed = 0
    for future in waiting:
        failed += (await future).error != 0
    stream.half_close()
    return options.messages, failed


MODES: dict[str, Callable[[Channel, argparse.Namespace], Awaitable[Counted]]] = {
    "batches": batches,
    "objects": objects,
    "columns": columns,
    "futures": futures,
}


async def load(options: argparse.Namespace) -> dict[str, float]:
    channel = Channel(f"127.0.0.1:{options.port}")
    await channel.connect()
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    messages, failed = await MODES[options.mode](channel, options)
    ended, after = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    await channel.close()
    return {
        "began": began,
        "ended": ended,
        "messages": messages,
        "failed": failed,
        "client_cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "p50_us": 0.0,
        "p99_us": 0.0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.client_load", description=__doc__)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--stream", required=True)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--window", type=int, default=8192)
    options = parser.parse_args()
    with contextlib.suppress(ImportError):
        asyncio.set_event_loop_policy(import_module("uvloop").EventLoopPolicy())
    print(json.dumps(asyncio.run(load(options))), flush=True)


if __name__ == "__main__":
    main()
