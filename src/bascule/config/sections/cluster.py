"""What all brokers of a cluster must agree on.

A leader that forgives a lag of 15 s and a follower that polls every 20 s do not make a cluster, and a stream created through one
broker must be the stream another one would have created. Give every server the same values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from bascule import limits
from bascule.config.sections.streams import StreamDefaults
from bascule.config.values.duration import MILLISECOND_NS, MINUTE_NS, SECOND_NS
from bascule.config.values.key import setting
from bascule.config.values.kinds import Boolean, Choice, Duration, Integer, Name, Size


class PublishAckPolicy(StrEnum):
    """Whose acknowledgement a publisher waits for."""

    NONE = "none"
    LEADER = "leader"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replication:
    """Membership and replication"""

    namespace: str = setting(
        "clustering.namespace",
        Name(),
        "liftbridge-default",
        flags=("--namespace", "--ns"),
        meaning="The prefix of all internal subjects.",
        consequence="Servers with the same namespace on the same NATS are one cluster.",
        advice="Two clusters that share NATS need two namespaces.",
    )
    raft_max_quorum_size: int = setting(
        "clustering.raft.max.quorum.size",
        Integer(),
        0,
        meaning="The most servers that vote on metadata; more servers follow without a vote. 0: all vote.",
        advice="3 or 5 in clusters larger than that.",
    )
    replica_max_lag_time_ns: int = setting(
        "clustering.replica.max.lag.time",
        Duration(minimum_ns=MILLISECOND_NS),
        15 * SECOND_NS,
        meaning="How long a follower may be behind before it leaves the in-sync replicas.",
        consequence="An ALL ack can wait that long for a follower that died.",
    )
    replica_max_leader_timeout_ns: int = setting(
        "clustering.replica.max.leader.timeout",
        Duration(minimum_ns=MILLISECOND_NS),
        15 * SECOND_NS,
        meaning="How long a follower goes without a word from the leader before it asks for another one.",
        consequence="A partition whose leader died takes no messages for about so long.",
    )
    replica_max_idle_wait_ns: int = setting(
        "clustering.replica.max.idle.wait",
        Duration(minimum_ns=MILLISECOND_NS),
        10 * SECOND_NS,
        meaning="How long a leader holds a follower's request when there is nothing to send.",
        consequence="Must be shorter than `clustering.replica.max.lag.time`, or idle followers would count as lagging.",
    )
    replica_fetch_timeout_ns: int = setting(
        "clustering.replica.fetch.timeout",
        Duration(minimum_ns=MILLISECOND_NS),
        3 * SECOND_NS,
        meaning="How long a follower waits for an answer, beyond the idle wait, before it asks again.",
    )
    min_insync_replicas: int = setting(
        "clustering.min.insync.replicas",
        Integer(minimum=1),
        1,
        meaning="How many replicas must be in sync for a message to be committed.",
        consequence="With fewer, ALL acks wait. 2 of 3 survives the loss of any one server, with nothing acked lost.",
        advice="2 for streams with three replicas.",
    )
    replication_max_bytes: int = setting(
        "clustering.replication.max.bytes",
        Size(minimum=limits.KIB, maximum=limits.RECORD_VALUE_BYTES_MAX),
        1 * limits.MIB,
        meaning="The largest replication response, and with it the largest message.",
        consequence="Larger messages are refused when they are published. Must not exceed `max_payload` of the NATS servers.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Activity stream"""

    stream_enabled: bool = setting(
        "activity.stream.enabled",
        Boolean(),
        False,
        meaning="Publish what happens to streams and groups to the stream `__activity`.",
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
        meaning="Whose ack an activity event waits for.",
        consequence="`all` delivers each event at least once; `leader` and `none` may lose some.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorStream:
    """Cursors"""

    stream_partitions: int = setting(
        "cursors.stream.partitions",
        Integer(),
        0,
        meaning="The partitions of the stream that keeps cursors. 0: no cursors.",
        consequence="Fixed once the stream exists.",
    )
    stream_replication_factor: int = setting(
        "cursors.stream.replication.factor",
        Integer(minimum=-1, hole=0),
        -1,
        meaning="The replicas of the stream that keeps cursors. −1: every server.",
        consequence="While there are fewer servers it has fewer, and gets more as servers join. It never loses one by this key.",
    )
    stream_auto_pause_time_ns: int = setting(
        "cursors.stream.auto.pause.time",
        Duration(),
        1 * MINUTE_NS,
        meaning="Pause a cursor partition that nobody used for so long. 0: never.",
        consequence="The first cursor behind a pause takes a little longer. Read again at every start.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Consumer groups"""

    consumer_timeout_ns: int = setting(
        "groups.consumer.timeout",
        Duration(minimum_ns=MILLISECOND_NS),
        15 * SECOND_NS,
        meaning="How long a member of a group may be silent before its partitions go to the others.",
    )
    coordinator_timeout_ns: int = setting(
        "groups.coordinator.timeout",
        Duration(minimum_ns=MILLISECOND_NS),
        15 * SECOND_NS,
        meaning="How long members wait for their coordinator before they report it.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """What all brokers of a cluster must agree on."""

    replication: Replication = field(default_factory=Replication)
    streams: StreamDefaults = field(default_factory=StreamDefaults)
    activity: Activity = field(default_factory=Activity)
    cursors: CursorStream = field(default_factory=CursorStream)
    groups: Groups = field(default_factory=Groups)
