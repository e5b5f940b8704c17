"""The ops that change the metadata. An op is an entry of the Raft log and carries everything that applying it needs.

It is encoded as canonical JSON with the op's name, so that people and later versions can read a log.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from types import MappingProxyType
from typing import Any

ConfigValue = int | bool | str


@dataclass(frozen=True, slots=True, order=True)
class BrokerPlace:
    """A broker that may host replicas."""

    id: str
    rack: str = ""


@dataclass(frozen=True, slots=True)
class CreateStream:
    name: str
    subject: str
    partitions: int
    replication_factor: int
    """−1: a replica on every broker."""
    brokers: tuple[BrokerPlace, ...]
    created_ns: int
    group: str = ""
    """The NATS queue group that the partitions subscribe with."""
    config: Mapping[str, ConfigValue] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class DeleteStream:
    name: str


@dataclass(frozen=True, slots=True)
class ShrinkIsr:
    stream: str
    partition: int
    replica: str
    leader: str
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class ExpandIsr:
    stream: str
    partition: int
    replica: str
    leader: str
    leader_epoch: int
    replica_epoch: int = 0
    """The replica epoch that the leader knows: a replica that has restarted since must catch up first. 0 for no unclean restart."""
    partition_epoch: int = 0
    """The partition epoch that the leader knows: the op applies to that in-sync set only. 0 applies to any."""


@dataclass(frozen=True, slots=True)
class ChangeLeader:
    stream: str
    partition: int
    leader: str
    """The leader to replace, and its epoch: a fence."""
    leader_epoch: int
    candidates: tuple[str, ...] | None = None
    """Candidates for its successor; None for any in-sync replica."""
    failed: bool = True
    """The old leader leaves the in-sync set. False for a leader that hands over in good health."""


@dataclass(frozen=True, slots=True)
class LeaveIsr:
    """A replica with a damaged log leaves the in-sync set before it fetches the whole log again."""

    stream: str
    partition: int
    replica: str
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class ElectUnclean:
    """An operator accepts the loss of records: this replica leads, in sync or not."""

    stream: str
    partition: int
    replica: str
    leader: str
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class Reassign:
    """Move the partition to these servers, the preferred leader first. Replaces a move that is in progress."""

    stream: str
    partition: int
    replicas: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CancelReassignment:
    stream: str
    partition: int


@dataclass(frozen=True, slots=True)
class CompleteReassignment:
    stream: str
    partition: int
    leader: str
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class RestartServer:
    """A server that did not stop cleanly starts; submitted before it runs any partition."""

    server: str
    intact: bool
    """The machine has not restarted: everything written is there, synced or not."""


@dataclass(frozen=True, slots=True)
class StopServer:
    """A server stops cleanly; submitted after it has handed over its leaderships."""

    server: str


@dataclass(frozen=True, slots=True)
class SetServerState:
    server: str
    state: str
    """`active` or `leaving`; a leaving server gets nothing new."""


@dataclass(frozen=True, slots=True)
class SetReplicationThrottle:
    bytes_per_second: int
    """Bytes per second that each server may fetch to catch up; 0 for no limit."""


@dataclass(frozen=True, slots=True)
class ForgetServer:
    """Remove all traces of a server that has left the cluster."""

    server: str


@dataclass(frozen=True, slots=True)
class PauseStream:
    stream: str
    at_ns: int
    partitions: tuple[int, ...] = ()
    """Empty for all."""
    resume_all: bool = False


@dataclass(frozen=True, slots=True)
class ResumeStream:
    stream: str
    at_ns: int
    partitions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SetStreamReadonly:
    stream: str
    at_ns: int
    readonly: bool
    partitions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SetStreamConfig:
    """Change settings of a stream; those that are not named stay."""

    stream: str
    config: Mapping[str, ConfigValue]


@dataclass(frozen=True, slots=True)
class JoinConsumerGroup:
    group: str
    consumer: str
    streams: tuple[str, ...]
    brokers: tuple[str, ...]
    """Candidates for the coordinator of a new group."""


@dataclass(frozen=True, slots=True)
class LeaveConsumerGroup:
    group: str
    consumer: str
    expired: bool = False
    coordinator: str = ""
    """Applies only while this broker coordinates the group: a fence against a replaced coordinator. Empty for any."""


@dataclass(frozen=True, slots=True)
class ChangeCoordinator:
    group: str
    coordinator: str
    """The coordinator to replace, and the group's epoch: a fence."""
    epoch: int
    brokers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GrantPolicies:
    """Add lines to the policy of the cluster."""

    lines: tuple[str, ...]
    """In canonical form, parsed by the server that proposes the op."""


@dataclass(frozen=True, slots=True)
class RevokePolicies:
    """Remove lines from the policy of the cluster."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PublishActivity:
    index: int


Op = (
    CreateStream
    | DeleteStream
    | ShrinkIsr
    | ExpandIsr
    | ChangeLeader
    | LeaveIsr
    | ElectUnclean
    | Reassign
    | CancelReassignment
    | CompleteReassignment
    | RestartServer
    | StopServer
    | SetServerState
    | SetReplicationThrottle
    | ForgetServer
    | PauseStream
    | ResumeStream
    | SetStreamReadonly
    | SetStreamConfig
    | JoinConsumerGroup
    | LeaveConsumerGroup
    | ChangeCoordinator
    | GrantPolicies
    | RevokePolicies
    | PublishActivity
)

_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in Op.__args__}


class MalformedOp(ValueError):
    """Bytes that are not an op that this version knows."""


def encode_op(op: Op) -> bytes:
    document = {"op": type(op).__name__, **_plain(op)}
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _plain(op: Op) -> dict[str, Any]:
    values = {item.name: getattr(op, item.name) for item in fields(op)}
    if isinstance(op, CreateStream):
        values["brokers"] = [asdict(broker) for broker in op.brokers]
    if isinstance(op, CreateStream | SetStreamConfig):
        values["config"] = dict(op.config)
    return values


def decode_op(data: bytes) -> Op:
    """The op in `data`; checks the type of every field. Raises MalformedOp with the reason."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise MalformedOp("not JSON") from None
    if not isinstance(document, dict) or not isinstance(document.get("op"), str):
        raise MalformedOp("not an object with the name of an op")
    kind = _KINDS.get(document.pop("op"))
    if kind is None:
        raise MalformedOp("an op that this version does not know")
    try:
        op: Op = kind(**{name: _value(kind, name, value) for name, value in document.items()})
    except TypeError as error:
        raise MalformedOp(str(error)) from None
    return op


_CHECKS = {
    "str": lambda value: isinstance(value, str),
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 64,
    "bool": lambda value: isinstance(value, bool),
    "tuple[int, ...]": lambda value: _is_list(value, "int"),
    "tuple[str, ...]": lambda value: _is_list(value, "str"),
    "tuple[str, ...] | None": lambda value: value is None or _is_list(value, "str"),
}


def _is_list(value: object, of: str) -> bool:
    return isinstance(value, list) and all(_CHECKS[of](item) for item in value)


def _value(kind: type[Any], name: str, value: Any) -> Any:
    annotations = {item.name: str(item.type) for item in fields(kind)}
    annotation = annotations.get(name)
    if annotation is None:
        raise MalformedOp(f"{kind.__name__} has no field {name!r}")
    if annotation == "tuple[BrokerPlace, ...]":
        return _brokers(value)
    if annotation.startswith("Mapping"):
        return _config(value)
    if not _CHECKS[annotation](value):
        raise MalformedOp(f"{kind.__name__}.{name} is not {annotation}")
    return tuple(value) if isinstance(value, list) else value


def _brokers(value: Any) -> tuple[BrokerPlace, ...]:
    if not isinstance(value, list):
        raise MalformedOp("brokers is not a list")
    for item in value:
        if (
            not isinstance(item, dict)
            or set(item) != {"id", "rack"}
            or not all(isinstance(v, str) for v in item.values())
        ):
            raise MalformedOp("a broker is not an id and a rack")
    return tuple(BrokerPlace(**item) for item in value)


def _config(value: Any) -> Mapping[str, ConfigValue]:
    if not isinstance(value, dict) or not all(isinstance(item, int | bool | str) for item in value.values()):
        raise MalformedOp("config is not a table of numbers, switches and words")
    return MappingProxyType(dict(value))
