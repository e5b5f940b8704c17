"""`bascule cluster …`: the commands of this family, and `bascule cluster status`."""

from __future__ import annotations

import sys
from collections import Counter
from time import monotonic, sleep
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bascule.cli.cluster import election as cluster_election
from bascule.cli.cluster import moves as cluster_moves
from bascule.cli.cluster import servers as cluster_servers
from bascule.cli.cluster.watch import move_document
from bascule.cli.target import facts
from bascule.cli.target.target import Json, Target, connected
from bascule.cli.terminal import values
from bascule.cli.terminal.output import known, say, show_json, show_rows, warn
from bascule.config.values.address import Address
from bascule.config.values.shown import bytes_per_second, milliseconds, plural
from bascule.errors import BasculeError, InvalidOption, OperatorError, PermissionDenied, StateError, Unavailable

if TYPE_CHECKING:
    from bascule.client.admin.cluster import ClusterMember, ClusterStatus, Reassignment
    from bascule.client.client import Client
    from bascule.client.connection.metadata import BrokerInfo, StreamInfo

app = typer.Typer(help="Show and operate the servers of a cluster.", no_args_is_help=True)

_UNKNOWN: Final[dict[str, Any]] = {
    **dict.fromkeys(("role", "state", "version", "uptime_seconds", "groups")),
    "disk_full": False,
}
"""Fields of a server that does not report them, such as a Liftbridge server."""
TITLES: Final = (
    *("Broker", "Address", "Answers", "Latency", "Partitions", "Leads", "Role", "State", "Version", "Uptime"),
    "Lagging",
)
"""Columns in a pipe, in this order for good; new ones are added at the end."""
WAIT_SECONDS: Final = 0.5


@app.command()
@connected
def status(
    target: Target,
    moves: Annotated[bool, typer.Option("--moves", help="Show the moving partitions and their progress.")] = False,
    as_json: Json = False,
) -> None:
    """Show every broker and whether it answers, and every partition with a problem. Exits with code 3 if the cluster is not healthy.

    Healthy: every broker answers and has space on its disk, and all replicas of all partitions are in sync.
    """
    document = target.run(_status, target)
    if as_json:
        show_json(document)
    elif moves:
        _show_moves(document)
    else:
        _show(document)
    if document["unhealthy"]:
        raise typer.Exit(3)


@app.command()
@connected
def wait(
    target: Target,
    healthy: Annotated[
        bool, typer.Option("--healthy", help="Wait until every broker answers and all replicas are in sync.")
    ] = False,
    limit: Annotated[
        str, typer.Option("--for", metavar="DURATION", help="Give up after this time, with exit code 3.")
    ] = "5m",
) -> None:
    """Wait until the cluster is healthy, as `cluster status` judges it: between two restarts of a rolling upgrade, or in a script."""
    if not healthy:
        raise InvalidOption("it is not said what to wait for", hint="give `--healthy`")
    seconds = values.seconds("--for", limit) or 0.0
    reasons = _wait(target, seconds)
    if reasons:
        raise StateError(f"not healthy after {limit}: {'; '.join(reasons)}", hint="`bascule cluster status` shows more")
    say("The cluster is healthy.")


def _wait(target: Target, seconds: float) -> list[str]:
    """Why the cluster is not healthy at the end of the time; empty as soon as it is."""
    deadline = monotonic() + seconds
    while True:
        try:
            reasons: list[str] = target.run(_status, target)["unhealthy"]
        except Unavailable as error:
            reasons = [error.message]
        if not reasons or monotonic() >= deadline:
            return reasons
        sleep(min(WAIT_SECONDS, max(0.0, deadline - monotonic())))


for _command in (
    cluster_servers.drain,
    cluster_servers.add,
    cluster_servers.remove,
    cluster_moves.rebalance,
    cluster_moves.reassign,
    cluster_moves.cancel,
    cluster_election.elect,
    cluster_moves.throttle,
):
    app.command()(_command)


# ── printing ─────────────────────────────────────────────────────────────────────────────────────


def _show(document: dict[str, Any]) -> None:
    show_rows(
        TITLES,
        [
            (
                one["id"],
                one["address"],
                "ok" if one["answers"] else "failed",
                "" if one["latency_ms"] is None else milliseconds(one["latency_ms"] / 1000),
                one["partitions"],
                one["leads"],
                one["role"] or "",
                one["state"] or "",
                one["version"] or "",
                _uptime(one["uptime_seconds"]),
                one["lagging"],
            )
            for one in document["brokers"]
        ],
        right=("Latency", "Partitions", "Leads", "Uptime", "Lagging"),
        header=True,
        optional=("Version", "Uptime", "Latency", "Role", "Address"),
    )
    if not sys.stdout.isatty():
        for reason in document["unhealthy"]:
            warn(reason)
    if sys.stdout.isatty():
        _show_summary(document)


def _show_summary(document: dict[str, Any]) -> None:
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
    moving = document["reassignments"]
    if moving or document["waiting"]:
        say(f"{plural(len(moving), 'partition')} moving, {len(document['waiting'])} waiting.")
        _show_moves(document)
    if document["throttle_bytes_per_second"]:
        say(f"Catch-up of replicas is limited to {bytes_per_second(document['throttle_bytes_per_second'])} per server.")


def _show_moves(document: dict[str, Any]) -> None:
    """Print a row for each moving replica, and one for each partition whose move has not started."""
    rows: list[tuple[object, ...]] = []
    for one in document["reassignments"]:
        place = (one["stream"], one["partition"], ",".join(one["from"]), ",".join(one["to"]))
        rows += [
            (
                *place,
                replica["server"],
                known(replica["log_end_offset"]),
                known(one["log_end_offset"]),
                known(replica["lag_messages"]),
                "in sync" if replica["in_sync"] else one["stalled"] or "catching up",
            )
            for replica in one["replicas"]
            if replica["server"] in one["to"]
        ]
    for one in document["waiting"]:
        place = (one["stream"], one["partition"], ",".join(one["from"]), ",".join(one["to"]))
        rows.append((*place, "", "", "", "", "waiting"))
    if rows or not sys.stdout.isatty():
        titles = ("Stream", "Partition", "From", "To", "Replica", "Has", "Of", "Lag", "State")
        show_rows(titles, rows, right=("Partition", "Has", "Of", "Lag"))
    elif not document["reassignments"]:
        say("No partition is moving.")


def _uptime(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f}{unit}"
    return f"{seconds:.0f}s"


# ── collecting ───────────────────────────────────────────────────────────────────────────────────


async def _status(client: Client, target: Target) -> dict[str, Any]:
    import asyncio

    (metadata, streams), cluster = await asyncio.gather(facts.streams(client), _cluster_status(client))
    brokers = list(metadata.brokers.values())
    latencies = await asyncio.gather(*(_latency(target, one) for one in brokers))
    partitions = [(stream, one) for stream in streams for one in stream.partitions.values()]
    shown = [_broker(one, latency) for one, latency in zip(brokers, latencies, strict=True)]
    lagging = Counter(server for _, one in partitions for server in one.replicas if server not in one.in_sync_replicas)
    found = [{**one, "lagging": lagging[one["id"]]} for one in _with_members(shown, cluster)]
    problems = _problems(streams)
    return {
        "unhealthy": _unhealthy(found, problems, cluster),
        "server": target.server,
        "controller": None if cluster is None else cluster.controller,
        "brokers": found,
        "streams": len(streams),
        "partitions": {
            "total": len(partitions),
            "without_leader": sum(not one.leader for _, one in partitions),
            "under_replicated": sum(len(one.in_sync_replicas) < len(one.replicas) for _, one in partitions),
            "paused": sum(one.paused for stream, one in partitions if not facts.is_internal(stream.name)),
            "readonly": sum(one.readonly for _, one in partitions),
        },
        "problems": problems,
        "reassignments": [] if cluster is None else [_reassignment(one) for one in cluster.reassignments],
        "waiting": [] if cluster is None else [move_document(one) for one in cluster.waiting],
        "leaders_waiting": 0 if cluster is None else cluster.leaders_waiting,
        "throttle_bytes_per_second": 0 if cluster is None else cluster.throttle_bytes_per_second,
    }


async def _cluster_status(client: Client) -> ClusterStatus | None:
    """The cluster's status; None if the brokers do not support the call or deny it."""
    from bascule.client.admin.cluster import ClusterAdmin

    try:
        return await ClusterAdmin(client).status()
    except (OperatorError, PermissionDenied):
        return None


def _unhealthy(
    brokers: list[dict[str, Any]], problems: list[dict[str, Any]], cluster: ClusterStatus | None
) -> list[str]:
    """One sentence for each broker and partition that needs an operator; none if the cluster is healthy.

    A replica that a move has added is not in sync yet, and needs no operator.
    """
    moving = set() if cluster is None else {one.move.place for one in cluster.reassignments}
    reasons = [f"broker {one['id']} does not answer" for one in brokers if not one["answers"]]
    reasons += [f"the disk of broker {one['id']} is full" for one in brokers if one["disk_full"]]
    for one in problems:
        place = f"{one['stream']}/{one['partition']}"
        if place not in moving or one["state"] != "under-replicated":
            reasons.append(f"{place}: {one['state']}")
    return reasons


def _broker(broker: BrokerInfo, latency: float | None) -> dict[str, object]:
    return {
        "id": broker.id,
        "address": f"{broker.host}:{broker.port}",
        "answers": latency is not None,
        "latency_ms": None if latency is None else round(latency * 1000, 3),
        "partitions": broker.partition_count,
        "leads": broker.leader_count,
        **_UNKNOWN,
    }


def _with_members(shown: list[dict[str, Any]], cluster: ClusterStatus | None) -> list[dict[str, Any]]:
    """The brokers with what the controller reports of each, and members whose address is not known any more."""
    if cluster is None:
        return shown
    found = []
    for one in shown:
        member = cluster.member(one["id"])
        found.append(one if member is None else {**one, **_member(member)})
    known_ids = {one["id"] for one in shown}
    for member in cluster.members:
        if member.id not in known_ids:
            gone = {"id": member.id, "address": "", "answers": False, "latency_ms": None}
            found.append({**gone, "partitions": member.replicas, "leads": member.leaders, **_member(member)})
    return found


def _member(member: ClusterMember) -> dict[str, object]:
    return {
        "role": "controller" if member.is_controller else "voter" if member.is_voter else "learner",
        "state": member.state if member.answers else "down",
        "disk_full": member.disk_full,
        "version": member.version or None,
        "uptime_seconds": member.uptime_seconds,
        "groups": member.groups,
    }


def _reassignment(one: Reassignment) -> dict[str, object]:
    return {
        **move_document(one.move),
        "leader": one.leader,
        "log_end_offset": _known(one.log_end_offset),
        "high_watermark": _known(one.high_watermark),
        "stalled": one.stalled,
        "replicas": [
            {
                "server": replica.server,
                "log_end_offset": _known(replica.log_end_offset),
                "lag_messages": _known(replica.lag_messages),
                "in_sync": replica.in_sync,
            }
            for replica in one.replicas
        ],
    }


def _known(number: int) -> int | None:
    """The number, None for -1, which means unknown."""
    return None if number < 0 else number


def _problems(streams: list[StreamInfo]) -> list[dict[str, object]]:
    return [
        {"stream": stream.name, "partition": one.id, "state": facts.state(stream, one)}
        for stream in streams
        for one in stream.partitions.values()
        if not one.leader or len(one.in_sync_replicas) < max(len(one.replicas), facts.needed_in_sync(stream))
    ]


async def _latency(target: Target, broker: BrokerInfo) -> float | None:
    """Seconds until this broker answers at its advertised address; None if it does not answer."""
    import bascule

    try:
        async with bascule.connect(str(Address(broker.host, broker.port)), **target.client_options()) as client:
            started = monotonic()
            await client.fetch_metadata([])
            return monotonic() - started
    except BasculeError:
        return None
