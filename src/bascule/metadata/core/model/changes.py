"""What an op changed. Subscribers of the feed then compare the metadata with what they run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StreamCreated:
    stream: str


@dataclass(frozen=True, slots=True)
class StreamRemoved:
    stream: str
    id: int


@dataclass(frozen=True, slots=True)
class PartitionChanged:
    """Its leader, replicas, in-sync set, pause or readonly flag."""

    stream: str
    partition: int


@dataclass(frozen=True, slots=True)
class GroupChanged:
    """Its members, coordinator or assignments; or it was removed."""

    group: str


@dataclass(frozen=True, slots=True)
class ServerChanged:
    """Its epoch, or whether it is leaving."""

    server: str


@dataclass(frozen=True, slots=True)
class ThrottleChanged:
    bytes_per_second: int


@dataclass(frozen=True, slots=True)
class PoliciesChanged:
    """Lines of the policy were granted or revoked."""


Change = (
    StreamCreated | StreamRemoved | PartitionChanged | GroupChanged | ServerChanged | ThrottleChanged | PoliciesChanged
)
