"""Metadata of brokers, streams, partitions and groups, as brokers report it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from bascule.client.connection import wire
from bascule.client.connection.options import DURATIONS, WIRE_NAMES
from bascule.client.connection.wire import Fields


@dataclass(frozen=True, slots=True)
class EventTimes:
    """The first and the latest time of an event; None for never."""

    first: datetime | None
    latest: datetime | None


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    id: str
    host: str
    port: int
    partition_count: int
    leader_count: int
    flight_port: int = 0
    """Port of its Arrow Flight service; 0 without one."""
    answers_pings: bool = False
    """It accepts an HTTP/2 PING every few seconds."""

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """`high_watermark` and `newest_offset` are what the answering broker knows; `Client.fetch_partition_metadata` asks the leader."""

    id: int
    leader: str
    replicas: tuple[str, ...]
    in_sync_replicas: tuple[str, ...]
    high_watermark: int
    newest_offset: int
    """-1 while the partition is empty."""
    paused: bool
    readonly: bool
    messages_received: EventTimes
    pause_changes: EventTimes
    readonly_changes: EventTimes


@dataclass(frozen=True, slots=True)
class SettingsInfo:
    """The settings that a stream's partitions use: what its creator chose, the server's defaults of that time for the rest.

    Names and meanings are those of the arguments of `Client.create_stream`.
    """

    retention_max_bytes: int
    retention_max_messages: int
    retention_max_age: timedelta
    cleaner_interval: timedelta
    segment_max_bytes: int
    segment_max_age: timedelta
    compact: bool
    compact_min_lag: timedelta
    tombstone_retention: timedelta
    auto_pause_time: timedelta
    auto_pause_disable_if_subscribers: bool
    min_insync_replicas: int
    optimistic_concurrency_control: bool
    encryption: bool
    compression: str
    sync: str
    sync_interval: timedelta


@dataclass(frozen=True, slots=True)
class StreamInfo:
    name: str
    subject: str
    created: datetime
    partitions: dict[int, PartitionInfo]
    settings: SettingsInfo | None = None
    """None when the broker does not tell them, as Liftbridge's brokers do not."""
    id: int = 0
    """Identity: a stream that is created again under its name has another one. 0 from Liftbridge's brokers."""


@dataclass(frozen=True, slots=True)
class GroupMemberInfo:
    id: str
    streams: tuple[str, ...]
    assignments: dict[str, tuple[int, ...]]
    """The partitions that it reads, by stream."""


@dataclass(frozen=True, slots=True)
class GroupInfo:
    id: str
    coordinator: str
    epoch: int
    members: tuple[GroupMemberInfo, ...] = ()
    """Empty unless they were requested."""


@dataclass(frozen=True, slots=True)
class Metadata:
    """Streams and groups that do not exist are left out."""

    brokers: dict[str, BrokerInfo]
    streams: dict[str, StreamInfo]
    groups: dict[str, GroupInfo]


def parse(data: bytes) -> Metadata:
    fields = wire.decode("FetchMetadataResponse", data)
    brokers = [_broker(entry) for entry in fields["brokers"]]
    streams = [_stream(entry) for entry in fields["streamMetadata"] if entry["error"] == 0]
    groups = [_group(entry) for entry in fields["groupMetadata"] if entry["error"] == 0]
    return Metadata(
        {broker.id: broker for broker in brokers},
        {stream.name: stream for stream in streams},
        {group.id: group for group in groups},
    )


def parse_partition(data: bytes) -> PartitionInfo:
    return partition(
        wire.decode("FetchPartitionMetadataResponse", data)["metadata"] or wire.decode("PartitionMetadata", b"")
    )


def _broker(fields: Fields) -> BrokerInfo:
    return BrokerInfo(
        fields["id"],
        fields["host"],
        fields["port"],
        fields["partitionCount"],
        fields["leaderCount"],
        fields["flightPort"],
        fields["answersPings"],
    )


def _stream(fields: Fields) -> StreamInfo:
    partitions = {entry["key"]: partition(entry["value"]) for entry in fields["partitions"] if entry["value"]}
    created = moment(fields["creationTimestamp"])
    settings = None if fields["settings"] is None else _settings(fields["settings"])
    return StreamInfo(
        fields["name"], fields["subject"], created, dict(sorted(partitions.items())), settings, fields["id"]
    )


def _settings(fields: Fields) -> SettingsInfo:
    found = {name: fields[wire_name] for name, wire_name in WIRE_NAMES.items()}
    return SettingsInfo(**found | {name: timedelta(milliseconds=found[name]) for name in DURATIONS})


def _group(fields: Fields) -> GroupInfo:
    members = tuple(_member(entry) for entry in fields["members"])
    return GroupInfo(fields["groupId"], fields["coordinator"], fields["epoch"], members)


def _member(fields: Fields) -> GroupMemberInfo:
    assignments = {entry["stream"]: tuple(entry["partitions"]) for entry in fields["assignments"]}
    return GroupMemberInfo(fields["consumerId"], tuple(fields["streams"]), assignments)


def partition(fields: Fields) -> PartitionInfo:
    return PartitionInfo(
        fields["id"],
        fields["leader"],
        tuple(fields["replicas"]),
        tuple(fields["isr"]),
        fields["highWatermark"],
        fields["newestOffset"],
        fields["paused"],
        fields["readonly"],
        _times(fields["messagesReceivedTimestamps"]),
        _times(fields["pauseTimestamps"]),
        _times(fields["readonlyTimestamps"]),
    )


def _times(fields: Fields | None) -> EventTimes:
    if fields is None:
        return EventTimes(None, None)
    first, latest = fields["firstTimestamp"], fields["latestTimestamp"]
    return EventTimes(moment(first) if first else None, moment(latest) if latest else None)


def moment(timestamp_ns: int) -> datetime:
    """Nanoseconds since 1970 as a datetime, which knows microseconds."""
    try:
        return datetime.fromtimestamp(timestamp_ns // 1_000_000_000, UTC).replace(
            microsecond=timestamp_ns // 1000 % 1_000_000
        )
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC)
