"""The loads of bench/client.py with our own client, in a process of its own: `python -m bench.client_load batches --port …`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import resource
import time
from collections.abc import Awaitable, Callable
from importlib import import_module

import bascule

Counted = tuple[int, int]
"""How many messages, and how many of them failed."""

PATIENCE_SECONDS = 120.0


async def batches(client: bascule.Client, options: argparse.Namespace) -> Counted:
    """Read offsets and values as columns, without looking at single messages."""
    messages = 0
    async with client.subscribe(options.stream, start="earliest") as subscription:
        async for batch in subscription.batches():
            _ = batch.offsets, batch.value_bytes
            messages += len(batch)
            if messages >= options.messages:
                break
    return messages, 0


async def objects(client: bascule.Client, options: argparse.Namespace) -> Counted:
    """An object for each message; its offset, key and value are looked at."""
    messages = 0
    async with client.subscribe(options.stream, start="earliest") as subscription:
        async for message in subscription:
            _ = message.offset, message.key, message.value
            messages += 1
            if messages == options.messages:
                break
    return messages, 0


async def publish_many(client: bascule.Client, options: argparse.Namespace) -> Counted:
    """All messages in one call."""
    published = await client.publish_many(
        options.stream, [bytes(options.size)] * options.messages, timeout=PATIENCE_SECONDS, raise_errors=False
    )
    return options.messages, len(published.errors)


async def publisher(client: bascule.Client, options: argparse.Namespace) -> Counted:
    """A call and a Future for each message."""
    value = bytes(options.size)
    async with client.publisher(options.stream, window=options.window, timeout=PATIENCE_SECONDS) as publisher:
        for _ in range(options.messages):
            await publisher.send(value)
        await publisher.flush()
    return publisher.sent, publisher.failed


MODES: dict[str, Callable[[bascule.Client, argparse.Namespace], Awaitable[Counted]]] = {
    "batches": batches,
    "objects": objects,
    "publish-many": publish_many,
    "publisher": publisher,
}


async def load(options: argparse.Namespace) -> dict[str, float]:
    async with bascule.connect(f"127.0.0.1:{options.port}") as client:
        before, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
        messages, failed = await MODES[options.mode](client, options)
        ended, after = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
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
