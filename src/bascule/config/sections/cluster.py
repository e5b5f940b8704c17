"""The settings that must be equal on all brokers of a cluster.

A leader that allows a lag of 15 s does not work with a follower that polls every 20 s, and a new stream must get the same settings
whichever broker creates it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from bascule import limits
from bascule.config.sections.streams import PAUSE_NS_MIN, StreamDefaults
from bascule.config.values.duration import HOUR_NS, MILLISECOND_NS, MINUTE_NS, SECOND_NS
from bascule.config.values.key import setting
from bascule.config.values.kinds import Boolean, Choice, Duration, FilePath, Integer, Kind, Name, Size, Unfit
from bascule.names import NAMESPACE_DEFAULT


class PublishAckPolicy(StrEnum):
    """Which replicas must have a message before its publisher gets an ack."""

    NONE = "none"
    LEADER = "leader"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replication:
    """Membership and replication"""

    namespace: str = setting(
        "clustering.namespace",
        Name(dots=True),
        NAMESPACE_DEFAULT,
        flags=("--namespace", "--ns"),
        meaning="The prefix of all internal subjects.",
        consequence="Servers with the same namespace on the same NATS are one cluster. The data directory stores the namespace, and "
        "a server without this key uses the stored one. A server does not start in the namespace of a Liftbridge cluster.",
        advice="Two clusters that share NATS need two namespaces.",
    )
    raft_max_quorum_size: int = setting(
        "clustering.raft.max.quorum.size",
        Integer(),
        0,
        meaning="The maximum number of servers that vote on metadata; further servers replicate it without a vote. 0: all vote.",
        advice="Set 3 or 5 in larger clusters.",
    )
    replica_max_lag_time_ns: int = setting(
        "clustering.replica.max.lag.time",
        Duration(minimum_ns=MILLISECOND_NS),
        5 * SECOND_NS,
        meaning="How long a follower may lag before the leader removes it from the in-sync replicas.",
        consequence="An ALL ack can wait this long for a follower that is down.",
    )
    replica_max_leader_timeout_ns: int = setting(
        "clustering.replica.max.leader.timeout",
        Duration(minimum_ns=MILLISECOND_NS),
        5 * SECOND_NS,
        meaning="How long a follower waits for a message of its leader before it requests an election.",
        consequence="A partition whose leader is down accepts no messages for about this time.",
    )
    replica_max_idle_wait_ns: int = setting(
        "clustering.replica.max.idle.wait",
        Duration(minimum_ns=MILLISECOND_NS),
        2 * SECOND_NS,
        meaning="How long a leader holds a follower's request when there is nothing to send.",
        consequence="Must be shorter than `clustering.replica.max.lag.time`; otherwise idle followers would count as lagging.",
    )
    replica_fetch_timeout_ns: int = setting(
        "clustering.replica.fetch.timeout",
        Duration(minimum_ns=MILLISECOND_NS),
        3 * SECOND_NS,
        meaning="How long a follower waits for an answer, in addition to the idle wait, before it repeats its request.",
    )
    min_insync_replicas: int = setting(
        "clustering.min.insync.replicas",
        Integer(minimum=1),
        1,
        meaning="How many replicas must be in sync for a message to be committed.",
        consequence="With fewer in-sync replicas, ALL acks and readers wait. With 2 of 3, the loss of any one server loses no acked "
        "message. New streams have one replica more than this number if it is above 1; fewer replicas than this number are refused.",
        advice="Set 2 in a cluster of three servers or more.",
    )
    replication_max_bytes: int = setting(
        "clustering.replication.max.bytes",
        Size(minimum=limits.KIB, maximum=limits.RECORD_VALUE_BYTES_MAX),
        1 * limits.MIB,
        meaning="The maximum size of a replication response, and therefore of a message.",
        consequence="Larger messages are refused on publish. Must not exceed `max_payload` of the NATS servers.",
    )
    partitions_max: int = setting(
        "clustering.partitions.max",
        Integer(minimum=1),
        10_000,
        meaning="The maximum number of partitions of all streams of the cluster.",
        consequence="CreateStream fails with RESOURCE_EXHAUSTED if the cluster would have more. Existing streams keep theirs. "
        "Each server counts on its own: concurrent calls to several servers can exceed the maximum by a few streams.",
        advice="One server is designed for 10,000 partitions; raise it for clusters of many servers.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBounds:
    """Bounds of streams"""

    partitions_max: int = setting(
        "streams.partitions.max",
        Integer(minimum=1, maximum=limits.STREAM_PARTITIONS_MAX),
        1_000,
        meaning="The maximum number of partitions of a new stream.",
        consequence="CreateStream with more partitions fails with INVALID_ARGUMENT. Existing streams keep their partitions.",
        advice="Every partition costs a directory, a NATS subscription and memory on each of its replicas.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Activity stream"""

    stream_enabled: bool = setting(
        "activity.stream.enabled",
        Boolean(),
        False,
        meaning="Publish the events of streams and consumer groups to the stream `__activity`.",
    )
    stream_publish_timeout_ns: int = setting(
        "activity.stream.publish.timeout",
        Duration(minimum_ns=MILLISECOND_NS),
        5 * SECOND_NS,
        meaning="How long to wait for the ack of an activity event before it is published again.",
    )
    stream_publish_ack_policy: PublishAckPolicy = setting(
        "activity.stream.publish.ack.policy",
        Choice(PublishAckPolicy),
        PublishAckPolicy.ALL,
        meaning="The ack policy of activity events.",
        consequence="`all` delivers each event at least once; `leader` and `none` may lose some.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditStream:
    """Audit stream"""

    stream_enabled: bool = setting(
        "security.audit.stream.enabled",
        Boolean(),
        False,
        meaning="Publish the audit records of all servers to the stream `__audit`, beside or instead of `security.audit.file`.",
        consequence="No client can write, pause or delete the stream; reading it needs the right `ReadAudit`. Each server has its own "
        "chain of hashes and MACs, which `bascule audit verify --stream` checks. Needs a cluster secret.",
    )
    stream_replication_factor: int = setting(
        "security.audit.stream.replication.factor",
        Integer(minimum=-1, hole=0),
        -1,
        meaning="The number of replicas of the audit stream. −1: every server.",
        consequence="In a cluster with fewer servers the stream has fewer replicas, and gets more as servers join. "
        "A lower value removes no replica.",
    )
    stream_retention_max_age_ns: int = setting(
        "security.audit.stream.retention.max.age",
        Duration(),
        365 * 24 * HOUR_NS,
        meaning="How long audit records are kept in the stream. 0: for ever.",
        consequence="Fixed once the stream exists: a later change of this key removes no record.",
        advice="A refused client causes at most 20 records of about 600 bytes a minute, all of them together 500.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorStream:
    """Cursors"""

    stream_partitions: int = setting(
        "cursors.stream.partitions",
        Integer(),
        1,
        meaning="The number of partitions of the stream that stores cursors. 0: no cursors, and so no consumer groups of Bascule's "
        "client.",
        consequence="Fixed once the stream exists. With more partitions, several servers share the work for cursors.",
    )
    stream_replication_factor: int = setting(
        "cursors.stream.replication.factor",
        Integer(minimum=-1, hole=0),
        -1,
        meaning="The number of replicas of the stream that stores cursors. −1: every server.",
        consequence="In a cluster with fewer servers the stream has fewer replicas, and gets more as servers join. "
        "A lower value removes no replica.",
    )
    stream_auto_pause_time_ns: int = setting(
        "cursors.stream.auto.pause.time",
        Duration(floor_ns=PAUSE_NS_MIN),
        1 * MINUTE_NS,
        meaning="Idle time after which a cursor partition is paused, at least 100ms. 0: never.",
        consequence="The first request after a pause takes a little longer. The server reads this key again at every start.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Consumer groups"""

    consumer_timeout_ns: int = setting(
        "groups.consumer.timeout",
        Duration(minimum_ns=MILLISECOND_NS),
        15 * SECOND_NS,
        meaning="How long a member of a group may send no heartbeat before its partitions are assigned to other members.",
    )
    coordinator_timeout_ns: int = setting(
        "groups.coordinator.timeout",
        Duration(minimum_ns=MILLISECOND_NS),
        15 * SECOND_NS,
        meaning="How long members wait for an answer of their coordinator before they request another one.",
    )


SECRETS_MAX: Final = 2
"""Cluster secrets that are valid at the same time: the present one and, during a rotation, another one."""
_SECRET_CHARACTERS_MIN: Final = 16


def split_secrets(text: str) -> tuple[str, ...]:
    """Return the secrets in the text, separated by commas or line breaks; empty if they are too many, too short or equal."""
    found = tuple(one.strip() for one in text.replace(",", "\n").splitlines() if one.strip())
    if (
        len(found) > SECRETS_MAX
        or len(set(found)) < len(found)
        or any(len(one) < _SECRET_CHARACTERS_MIN for one in found)
    ):
        return ()
    return found


@dataclass(frozen=True, slots=True)
class ClusterSecrets(Kind[str]):
    """One or two secrets."""

    name = "text"

    def parse(self, text: str) -> str:
        if not split_secrets(text):
            raise Unfit(
                f"1 to {SECRETS_MAX} different secrets of at least {_SECRET_CHARACTERS_MIN} characters, separated by commas"
            )
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """Cluster secret"""

    secret: str | None = setting(
        "cluster.secret",
        ClusterSecrets(),
        None,
        default_text="with the embedded nats-server a random one, kept in the data directory; otherwise none",
        example="9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822c",
        is_secret=True,
        meaning="The secret with which brokers authenticate their messages to each other. All brokers of a cluster need the same one.",
        consequence="A broker with a secret ignores internal messages of brokers with another secret or none. Without a secret, every "
        "NATS client that may publish to `<namespace>.>` can control the cluster, and the broker warns of it at its start.",
        advice="Set it in every cluster with a NATS of its own: `openssl rand -hex 32`. To change it without downtime, give two "
        "secrets, separated by a comma: the first one signs, both are accepted. Prefer the environment variable or "
        "`cluster.secret.file`. The value is never shown or logged.",
    )
    secret_file: Path | None = setting(
        "cluster.secret.file",
        FilePath(),
        None,
        example="/etc/bascule/cluster.secret",
        meaning="A file with the cluster secret, or with two of them on two lines, instead of `cluster.secret`.",
        consequence="The broker reads it at its start and on SIGHUP.",
        advice="Make the file readable by the broker's user only.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """The settings that must be equal on all brokers of a cluster."""

    replication: Replication = field(default_factory=Replication)
    secret: Secret = field(default_factory=Secret)
    streams: StreamDefaults = field(default_factory=StreamDefaults)
    stream_bounds: StreamBounds = field(default_factory=StreamBounds)
    activity: Activity = field(default_factory=Activity)
    audit: AuditStream = field(default_factory=AuditStream)
    cursors: CursorStream = field(default_factory=CursorStream)
    groups: Groups = field(default_factory=Groups)
