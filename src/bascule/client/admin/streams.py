"""Streams as an operator sees them: their settings, what their leaders store, and changes of settings. Used by the command line.

async with bascule.connect(…) as client:
    streams = StreamAdmin(client)
    await streams.set("orders", retention_max_age=timedelta(days=7))
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from bascule.client.connection import options, wire
from bascule.client.connection.core import ClientCore
from bascule.client.connection.metadata import moment
from bascule.client.connection.options import Duration
from bascule.client.connection.wire import Fields

SERVICE: Final = "bascule.Streams"

_NUMBERS: Final = ("retention_max_bytes", "retention_max_messages", "segment_max_bytes")
_DURATIONS: Final = {
    "retention_max_age": "retention_max_age_ms",
    "cleaner_interval": "cleaner_interval_ms",
    "segment_max_age": "segment_max_age_ms",
    "compact_min_lag": "compact_min_lag_ms",
    "tombstone_retention": "compact_tombstone_retention_ms",
    "auto_pause_time": "auto_pause_time_ms",
    "sync_interval": "sync_interval_ms",
}


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """A partition, and what its leader stores of it."""

    partition: int
    leader: str
    replicas: tuple[str, ...]
    in_sync_replicas: tuple[str, ...]
    paused: bool
    readonly: bool
    error: str
    """Why the leader's values are not known; empty if they are."""
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    size_bytes: int
    messages: int
    first_message: datetime | None
    last_message: datetime | None


@dataclass(frozen=True, slots=True)
class StreamDescription:
    name: str
    subject: str
    group: str
    created: datetime
    settings: dict[str, str]
    """By their names in the API; durations in milliseconds."""
    partitions: tuple[PartitionDescription, ...]


class StreamAdmin:
    """What the leaders of a stream store, and changes of its settings."""

    def __init__(self, client: ClientCore) -> None:
        self._brokers = client._brokers

    async def describe(self, name: str, *, timeout: float | None = None) -> StreamDescription:
        """The settings of a stream, and what the leader of each partition stores. Raises StreamNotFound."""
        request = wire.encode("DescribeStreamRequest", name=options.stream_name(name, "name"))
        data = await self._brokers.call(f"{SERVICE}/DescribeStream", request, timeout=timeout)
        found = wire.decode("DescribeStreamResponse", data)
        return StreamDescription(
            found["name"],
            found["subject"],
            found["group"],
            moment(found["creation_timestamp"]),
            {entry["key"]: entry["value"] for entry in found["settings"]},
            tuple(_partition(one) for one in found["partitions"]),
        )

    async def set(
        self,
        name: str,
        *,
        retention_max_bytes: int | None = None,
        retention_max_messages: int | None = None,
        retention_max_age: Duration | None = None,
        cleaner_interval: Duration | None = None,
        segment_max_bytes: int | None = None,
        segment_max_age: Duration | None = None,
        compact_min_lag: Duration | None = None,
        tombstone_retention: Duration | None = None,
        auto_pause_time: Duration | None = None,
        auto_pause_disable_if_subscribers: bool | None = None,
        sync_interval: Duration | None = None,
        timeout: float | None = None,
    ) -> None:
        """Change settings of a stream; None leaves a setting as it is. Their meanings are those of `Client.create_stream`.

        All replicas apply the new limits at once: messages beyond them are removed. Raises StreamNotFound.
        """
        given = {
            "retention_max_bytes": retention_max_bytes,
            "retention_max_messages": retention_max_messages,
            "retention_max_age": retention_max_age,
            "cleaner_interval": cleaner_interval,
            "segment_max_bytes": segment_max_bytes,
            "segment_max_age": segment_max_age,
            "compact_min_lag": compact_min_lag,
            "tombstone_retention": tombstone_retention,
            "auto_pause_time": auto_pause_time,
            "auto_pause_disable_if_subscribers": auto_pause_disable_if_subscribers,
            "sync_interval": sync_interval,
        }
        request = wire.encode("SetStreamSettingsRequest", name=options.stream_name(name, "name"), **_settings(given))
        await self._brokers.call(f"{SERVICE}/SetStreamSettings", request, timeout=timeout)


def _settings(given: dict[str, Any]) -> Fields:
    fields: Fields = {}
    for option, value in given.items():
        if value is None:
            continue
        if option in _NUMBERS:
            fields[option] = {"value": options.integer(option, value, 0)}
        elif option in _DURATIONS:
            fields[_DURATIONS[option]] = {"value": round(options.seconds(option, value, zero=True) * 1000)}
        else:
            fields[option] = {"value": options.flag(option, value)}
    return fields


def _partition(fields: Fields) -> PartitionDescription:
    first, last = fields.pop("first_timestamp"), fields.pop("last_timestamp")
    made: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    return PartitionDescription(
        **made, first_message=moment(first) if first else None, last_message=moment(last) if last else None
    )
