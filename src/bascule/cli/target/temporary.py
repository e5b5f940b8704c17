"""Streams that a command makes for itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from bascule.cli.terminal.output import note
from bascule.errors import OutcomeUnknown

if TYPE_CHECKING:
    from bascule.client.client import Client


@asynccontextmanager
async def temporary_stream(client: Client, prefix: str, partitions: int = 1) -> AsyncIterator[str]:
    """The name of a new stream, which is deleted on exit, also if the command is interrupted before the broker has answered."""
    import asyncio
    import secrets

    name = f"{prefix}-{secrets.token_hex(4)}"
    creating = asyncio.create_task(client.create_stream(name, partitions=partitions))
    try:
        await asyncio.shield(creating)
        yield name
    finally:
        try:
            await creating
            await client.delete_stream(name)
        except OutcomeUnknown:
            note(f"Stream `{name}` may still exist: delete it with `bascule stream delete {name}`.")
