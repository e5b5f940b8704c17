"""Shell completion of streams, servers and contexts. Errors are ignored: completion must not print anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer


def streams(context: typer.Context, incomplete: str) -> Iterator[str]:
    """Names of the streams, from the broker that the options so far select."""
    try:
        yield from (name for name in _stream_names(context.params) if name.startswith(incomplete))
    except Exception:
        return


def _stream_names(given: dict[str, Any]) -> list[str]:
    return _ask(given, _streams)


async def _streams(client: Any) -> list[str]:
    return sorted((await client.fetch_metadata()).streams)


def _ask(given: dict[str, Any], question: Any) -> list[str]:
    from bascule.cli.target.target import choose

    chosen = {name: given.get(name) for name in ("server", "context", "tls", "tls_ca", "tls_cert", "tls_key")}
    found: list[str] = choose(**chosen, timeout="1s").run(question)
    return found


def servers(context: typer.Context, incomplete: str) -> Iterator[str]:
    """Ids of the servers, from the broker that the options so far select."""
    try:
        yield from (name for name in _ask(context.params, _servers) if name.startswith(incomplete))
    except Exception:
        return


async def _servers(client: Any) -> list[str]:
    return sorted((await client.fetch_metadata([])).brokers)


def contexts(incomplete: str) -> Iterator[str]:
    from bascule.cli.target.saved_clusters import load

    try:
        yield from (name for name in load().contexts if name.startswith(incomplete))
    except Exception:
        return
