"""What an op changed: enough for whoever runs partitions and groups to compare with what it runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StreamCreated:
    stream: str


@dataclass(frozen=True, slots=True)
class StreamDeleted:
    stream: str
    id: int


@dataclass(frozen=True, slots=True)
class PartitionChanged:
    """Leader, replicas, in-sync set, paused or readonly: the broker compares it with what it runs."""

    stream: str
    partition: int


@dataclass(frozen=True, slots=True)
class GroupChanged:
    """Members, coordinator, assignments, or gone."""

    group: str


@dataclass(frozen=True, slots=True)
class ServerChanged:
    """Its epoch, or whether it is leaving."""

    server: str


@dataclass(frozen=True, slots=True)
class ThrottleChanged:
    bytes_per_second: int


Change = StreamCreated | StreamDeleted | PartitionChanged | GroupChanged | ServerChanged | ThrottleChanged
