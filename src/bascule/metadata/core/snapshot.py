"""The whole state as canonical JSON and back: equal states are equal bytes.

Version 2 added server epochs, leaving servers, the throttle, moves, data-loss epochs and replica epochs; version 3 added policies.
Versions 1 and 2, without these, can be read.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Final

from bascule.errors import FormatTooNew, StorageError
from bascule.metadata.core.model.activity import ActivityEvent
from bascule.metadata.core.model.groups import ConsumerGroup, GroupMember
from bascule.metadata.core.model.streams import EventTimestamps, Partition, Stream
from bascule.metadata.core.state import ClusterMetadata

VERSION: Final = 3
_READ: Final = (1, 2, VERSION)


def encode_snapshot(state: ClusterMetadata) -> bytes:
    document = {
        "version": VERSION,
        "applied_index": state.applied_index,
        "activity_index": state.activity_index,
        "activity": [asdict(event) for event in state.activity],
        "streams": [asdict(state.streams[name]) for name in sorted(state.streams)],
        "server_epochs": state.server_epochs,
        "leaving": sorted(state.leaving),
        "replication_throttle": state.replication_throttle,
        "policies": sorted(state.policies),
        "groups": [_group_document(state.groups[name]) for name in sorted(state.groups)],
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _group_document(group: ConsumerGroup) -> dict[str, Any]:
    members = [asdict(group.members[name]) for name in sorted(group.members)]
    return {"id": group.id, "coordinator": group.coordinator, "epoch": group.epoch, "members": members}


def decode_snapshot(data: bytes) -> ClusterMetadata:
    """The state in `data`. Raises FormatTooNew for a later version and StorageError for anything else."""
    try:
        document = json.loads(data)
        version = document["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise StorageError("the metadata snapshot cannot be read: it is not what Bascule writes") from None
    if version not in _READ:
        raise FormatTooNew(
            f"the metadata snapshot has version {version!r}, this Bascule knows {VERSION}",
            hint="use the version of Bascule that wrote it, or a later one",
        )
    try:
        return _state(document)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(f"the metadata snapshot cannot be read: {error!r}") from None


def _state(document: dict[str, Any]) -> ClusterMetadata:
    state = ClusterMetadata()
    state.applied_index = int(document["applied_index"])
    state.activity_index = int(document["activity_index"])
    state.activity.extend(_event(item) for item in document.get("activity", ()))
    state.server_epochs = {server: int(epoch) for server, epoch in document.get("server_epochs", {}).items()}
    state.leaving = set(document.get("leaving", ()))
    state.replication_throttle = int(document.get("replication_throttle", 0))
    state.policies = {str(line) for line in document.get("policies", ())}
    for item in document["streams"]:
        stream = _stream(item)
        state.streams[stream.name] = stream
        state.load.add_stream(stream)
    for item in document["groups"]:
        members = {member["id"]: GroupMember(**member) for member in item["members"]}
        state.groups[item["id"]] = ConsumerGroup(item["id"], item["coordinator"], item["epoch"], members)
    return state


def _event(item: dict[str, Any]) -> ActivityEvent:
    return ActivityEvent(**{**item, "partitions": tuple(item["partitions"]), "streams": tuple(item["streams"])})


def _stream(item: dict[str, Any]) -> Stream:
    partitions = [_partition(part) for part in item["partitions"]]
    return Stream(**{**item, "partitions": partitions})


def _partition(item: dict[str, Any]) -> Partition:
    times = {name: EventTimestamps(**item[name]) for name in ("pause_times", "readonly_times")}
    partition = Partition(**{**item, **times})
    if partition.leader not in partition.in_sync_replicas:
        # No op produces such a state: a leader outside its in-sync set could neither commit nor be replaced.
        partition.in_sync_replicas.append(partition.leader)
    return partition
