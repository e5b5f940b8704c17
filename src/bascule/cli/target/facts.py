"""Facts about a cluster that several commands show: streams with the offsets of their leaders, and their states."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from bascule.errors import BasculeError, StreamNotFound, Unavailable

if TYPE_CHECKING:
    from bascule.client.client import Client
    from bascule.client.connection.metadata import Metadata, PartitionInfo, StreamInfo

CURSORS_STREAM: Final = "__cursors"
QUESTIONS_AT_ONCE: Final = 64
"""Maximum number of requests in flight to leaders."""
UNLIMITED_AT_ZERO: Final = frozenset(
    {"retention_max_bytes", "retention_max_messages", "retention_max_age", "segment_max_age"}
)
LEADER_SECONDS_MAX: Final = 1.5
"""Timeout of a request to a leader. A leader that takes longer is treated as down."""


async def streams(
    client: Client, names: Iterable[str] | None = None, *, groups: Iterable[str] | None = ()
) -> tuple[Metadata, list[StreamInfo]]:
    """All streams, or the named ones, with each partition as its leader reports it. If the leader is down, `leader` is empty.
    `groups` are the groups in the metadata, None for all that have members.

    Raises StreamNotFound if a named stream does not exist.
    """
    import asyncio
    from dataclasses import replace

    wanted = None if names is None else list(names)
    metadata = await client.fetch_metadata(wanted, groups=groups)
    for name in wanted or ():
        if name not in metadata.streams:
            raise StreamNotFound(f"there is no stream `{name}`")
    asked = next(iter(metadata.brokers), "")
    gate = asyncio.Semaphore(QUESTIONS_AT_ONCE)

    async def known_to_leader(stream: str, partition: PartitionInfo) -> PartitionInfo:
        # The broker that answered has reported the offsets of its own partitions; a paused partition has no offsets to report.
        if partition.paused or not partition.leader or partition.leader == asked:
            return partition
        async with gate:
            try:
                return await client.fetch_partition_metadata(stream, partition.id, timeout=LEADER_SECONDS_MAX)
            except Unavailable:
                return replace(partition, leader="")  # no leader until this one returns or another is elected
            except BasculeError:
                return partition

    found = []
    for name in sorted(metadata.streams):
        info = metadata.streams[name]
        partitions = await asyncio.gather(*(known_to_leader(name, one) for one in info.partitions.values()))
        found.append(replace(info, partitions={one.id: one for one in partitions}))
    return metadata, found


async def one_stream(client: Client, name: str) -> StreamInfo:
    return (await streams(client, [name]))[1][0]


def is_internal(name: str) -> bool:
    """Whether the cluster keeps this stream for itself."""
    return name.startswith("__")


def needed_in_sync(stream: StreamInfo) -> int:
    """Replicas that have to be in sync so that messages are committed and readers get them; 1 if the broker does not tell."""
    return 1 if stream.settings is None else stream.settings.min_insync_replicas


def cannot_commit(stream: StreamInfo) -> list[PartitionInfo]:
    """The partitions that store messages and deliver none, because too few replicas are in sync."""
    return [one for one in stream.partitions.values() if len(one.in_sync_replicas) < needed_in_sync(stream)]


def shortage(stream: StreamInfo) -> str | None:
    """Why new messages of some partitions are not delivered, as a sentence; None if enough replicas are in sync."""
    short = cannot_commit(stream)
    if not short:
        return None
    one = short[0]
    others = f" (and {len(short) - 1} more)" if len(short) > 1 else ""
    return (
        f"partition {one.id}{others} of stream `{stream.name}` has {len(one.in_sync_replicas)} of the {needed_in_sync(stream)} in-sync "
        "replicas that its `min.insync.replicas` requires: new messages are stored, but neither committed nor delivered"
    )


SHORTAGE_HINT: Final = (
    "start the servers that `bascule cluster status` shows as down, or add replicas: "
    "`bascule cluster reassign NAME --replication-factor N`"
)


def state(stream: StreamInfo, partition: PartitionInfo) -> str:
    """The partition's state as one or more words, separated by commas, the worst first."""
    found = []
    if not partition.leader:
        found.append("no leader")
    if len(partition.in_sync_replicas) < needed_in_sync(stream):
        found.append("cannot commit")
    if len(partition.in_sync_replicas) < len(partition.replicas):
        found.append("under-replicated")
    if partition.paused:
        found.append("paused")
    if partition.readonly:
        found.append("readonly")
    return ", ".join(found) or "ok"


def stream_state(stream: StreamInfo) -> str:
    """The states of all partitions; a state of only some partitions is followed by their number."""
    counts: dict[str, int] = {}
    for partition in stream.partitions.values():
        for word in state(stream, partition).split(", "):
            counts[word] = counts.get(word, 0) + 1
    everyone = len(stream.partitions)
    words = [
        word for word in ("no leader", "cannot commit", "under-replicated", "paused", "readonly") if word in counts
    ]
    return (
        ", ".join(word if counts[word] == everyone else f"{word} {counts[word]}/{everyone}" for word in words) or "ok"
    )


def received(stream: StreamInfo) -> int | None:
    """Number of messages ever appended to all partitions; None if it is not known because a partition is paused."""
    if any(partition.paused and partition.newest_offset < 0 for partition in stream.partitions.values()):
        return None
    return sum(partition.newest_offset + 1 for partition in stream.partitions.values())


def partitions_of(stream: StreamInfo) -> str:
    """The partition numbers of a stream, as a sentence for hints."""
    last = len(stream.partitions) - 1
    return f"`{stream.name}` has partitions 0 to {last}" if last else f"`{stream.name}` has only partition 0"


def partition_document(stream: StreamInfo, partition: PartitionInfo) -> dict[str, object]:
    return {
        "partition": partition.id,
        "state": state(stream, partition),
        "leader": partition.leader,
        "replicas": list(partition.replicas),
        "in_sync_replicas": list(partition.in_sync_replicas),
        "high_watermark": partition.high_watermark,
        "newest_offset": partition.newest_offset,
        "paused": partition.paused,
        "readonly": partition.readonly,
        "last_message": partition.messages_received.latest,
    }


def settings_document(stream: StreamInfo) -> dict[str, object] | None:
    """Durations as `stream create` takes them. None when the broker does not tell the settings."""
    from dataclasses import asdict

    from bascule.config.values.duration import format_duration

    if stream.settings is None:
        return None
    return {
        name: format_duration(value // timedelta(microseconds=1) * 1000) if isinstance(value, timedelta) else value
        for name, value in asdict(stream.settings).items()
    }


def shown_settings(stream: StreamInfo) -> list[tuple[str, object]]:
    """For people: a limit of 0 is none."""
    found = []
    for name, value in (settings_document(stream) or {}).items():
        if isinstance(value, bool):
            text: object = "yes" if value else "no"
        elif name in UNLIMITED_AT_ZERO and value in (0, "0"):
            text = "no limit"
        elif name == "auto_pause_time" and value in (0, "0"):
            text = "never"
        else:
            text = value
        found.append((name.replace("_", " "), text))
    return found


def stream_document(stream: StreamInfo) -> dict[str, object]:
    return {
        "name": stream.name,
        "subject": stream.subject,
        "created": stream.created,
        "state": stream_state(stream),
        "settings": settings_document(stream),
        "partitions": [partition_document(stream, one) for one in stream.partitions.values()],
    }
