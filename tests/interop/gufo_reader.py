"""Run by the Python that has gufo-liftbridge: reads a stream for ever and prints the offset and value of each message.

It is told nothing of the brokers' life: it finds leaders by itself, and goes on by itself.
"""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module
from typing import Any

client: Any = import_module("gufo.liftbridge.client")


async def main(stream: str, brokers: list[str]) -> None:
    async with client.LiftbridgeClient(brokers) as lift:
        async for message in lift.subscribe(stream, partition=0, start_offset=0):
            print(message.offset, message.value.decode(), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
