"""`bascule cluster …`: the brokers, what they carry, and what needs somebody."""

from __future__ import annotations

import sys
from time import monotonic
from typing import TYPE_CHECKING, Any

import typer

from bascule.cli import facts
from bascule.cli.output import milliseconds, plural, say, show_json, show_rows
from bascule.cli.target import Json, Target, connected
from bascule.errors import BasculeError

if TYPE_CHECKING:
    from bascule.client.client import Client
    from bascule.client.metadata import BrokerInfo, StreamInfo

app = typer.Typer(help="Look at the brokers of a cluster.", no_args_is_help=True)


@app.command()
@connected
def status(target: Target, as_json: Json = False) -> None:
    """Show every broker and whether it answers, and every partition that needs somebody. Exit code 3 if one has no leader."""
    document = target.run(_status, target)
    if as_json:
        show_json(document)
    else:
        _show(document)
    if document["partitions"]["without_leader"]:
        raise typer.Exit(3)


def _show(document: dict[str, Any]) -> None:
    show_rows(
        ("Broker", "Address", "Answers", "Latency", "Partitions", "Leads"),
        [
            (
                one["id"],
                one["address"],
                "ok" if one["answers"] else "failed",
                "" if one["latency_ms"] is None else milliseconds(one["latency_ms"] / 1000),
                one["partitions"],
                one["leads"],
            )
            for one in document["brokers"]
        ],
        right=("Latency", "Partitions", "Leads"),
    )
    if sys.stdout.isatty():
        counts = document["partitions"]
        say("")
        words = [plural(document["streams"], "stream"), plural(counts["total"], "partition")]
        words += [
            f"{counts[kind]} {kind.replace('_', ' ')}"
            for kind in ("without_leader", "under_replicated", "paused", "readonly")
            if counts[kind]
        ]
        say(", ".join(words) + ".")
        for one in document["problems"]:
            say(f"  {one['stream']}/{one['partition']}: {one['state']}")


async def _status(client: Client, target: Target) -> dict[str, Any]:
    import asyncio

    metadata, streams = await facts.streams(client)
    brokers = list(metadata.brokers.values())
    latencies = await asyncio.gather(*(_latency(target, one) for one in brokers))
    partitions = [(stream, one) for stream in streams for one in stream.partitions.values()]
    return {
        "server": target.server,
        "brokers": [_broker(one, latency) for one, latency in zip(brokers, latencies, strict=True)],
        "streams": len(streams),
        "partitions": {
            "total": len(partitions),
            "without_leader": sum(not one.leader for _, one in partitions),
            "under_replicated": sum(len(one.in_sync_replicas) < len(one.replicas) for _, one in partitions),
            "paused": sum(one.paused for _, one in partitions),
            "readonly": sum(one.readonly for _, one in partitions),
        },
        "problems": _problems(streams),
    }


def _broker(broker: BrokerInfo, latency: float | None) -> dict[str, object]:
    return {
        "id": broker.id,
        "address": f"{broker.host}:{broker.port}",
        "answers": latency is not None,
        "latency_ms": None if latency is None else round(latency * 1000, 3),
        "partitions": broker.partition_count,
        "leads": broker.leader_count,
    }


def _problems(streams: list[StreamInfo]) -> list[dict[str, object]]:
    return [
        {"stream": stream.name, "partition": one.id, "state": facts.state(one)}
        for stream in streams
        for one in stream.partitions.values()
        if not one.leader or len(one.in_sync_replicas) < len(one.replicas)
    ]


async def _latency(target: Target, broker: BrokerInfo) -> float | None:
    """How long this broker takes to answer at the address it tells clients, or None."""
    import bascule

    host = f"[{broker.host}]" if ":" in broker.host else broker.host
    try:
        async with bascule.connect(f"{host}:{broker.port}", **target.client_options()) as client:
            started = monotonic()
            await client.fetch_metadata([])
            return monotonic() - started
    except BasculeError:
        return None
