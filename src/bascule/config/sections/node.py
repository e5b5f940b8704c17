"""The settings of one server: its identity, its data directory, its log messages, its batching."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from bascule import limits
from bascule.config.values.duration import MINUTE_NS, SECOND_NS
from bascule.config.values.key import setting
from bascule.config.values.kinds import INT64_MAX, Boolean, Choice, Duration, FilePath, Integer, Name, Names


class Level(StrEnum):
    """The lowest severity that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Data directory"""

    dir: Path | None = setting(
        "data.dir",
        FilePath(),
        None,
        default_text="$XDG_DATA_HOME/bascule/<namespace>",
        example="/var/lib/bascule",
        flags=("--data-dir", "-d"),
        meaning="The directory of all data of this server: logs, Raft state, its id.",
        consequence="The default is `~/.local/share/bascule/<namespace>` unless `XDG_DATA_HOME` is set: it survives a reboot "
        "(Liftbridge's default in `/tmp` may not) and does not depend on the working directory.",
        advice="Set it in production, to a disk of its own. Two servers must not share one.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Logging:
    """Logging"""

    level: Level = setting(
        "logging.level",
        Choice(Level),
        Level.INFO,
        flags=("--level", "-l"),
        meaning="The lowest severity of messages that are logged.",
    )
    recovery: bool = setting(
        "logging.recovery",
        Boolean(),
        False,
        meaning="Log what the server does while it replays the Raft log at its start. Each such line begins with `--> `.",
        consequence="A long history makes a long log.",
    )
    raft: bool = setting("logging.raft", Boolean(), False, meaning="Log the events of Raft: votes, terms, snapshots.")
    nats: bool = setting("logging.nats", Boolean(), False, meaning="Log the output of the embedded nats-server.")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataCache:
    """Metadata cache"""

    cache_max_age_ns: int = setting(
        "metadata.cache.max.age",
        Duration(),
        2 * MINUTE_NS,
        meaning="How long the server caches the list of brokers that clients request.",
        consequence="A change of the cluster's members refreshes it at once. With 0 the server asks the members every time. In answers "
        "to clients it is at most `clustering.replica.max.leader.timeout` old, so that a server that is down is not listed for longer.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """Batching"""

    max_messages: int = setting(
        "batch.max.messages",
        Integer(minimum=1, maximum=limits.BATCH_RECORDS_MAX),
        1_024,
        meaning="The maximum number of messages in one append to a log.",
        consequence="Larger batches need less CPU per message and more memory per partition.",
    )
    max_time_ns: int = setting(
        "batch.max.time",
        Duration(),
        0,
        meaning="How long to wait for a batch to fill.",
        consequence="Adds up to this much latency to every message.",
        advice="Leave it at 0: messages that arrive together form one batch anyway.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerIdentity:
    """Identity and Raft storage"""

    server_id: str | None = setting(
        "clustering.server.id",
        Name(dots=True),
        None,
        default_text="a random id, kept in the data directory",
        example="broker-1",
        flags=("--server-id", "--id"),
        meaning="The name of this server in the cluster. It must be unique.",
        consequence="If the data directory already holds an id, the server uses that one and ignores this key.",
        advice="Set it when `clustering.raft.bootstrap.peers` has to name it.",
    )
    raft_snapshot_retain: int = setting(
        "clustering.raft.snapshot.retain",
        Integer(minimum=1),
        2,
        meaning="Accepted so that Liftbridge's files load, without effect: one Raft snapshot is kept on disk.",
    )
    raft_snapshot_threshold: int = setting(
        "clustering.raft.snapshot.threshold",
        Integer(minimum=1, maximum=INT64_MAX),
        8_192,
        meaning="The number of Raft entries after which a new snapshot is taken.",
        consequence="A lower number makes the server start faster and write more.",
    )
    raft_cache_size: int = setting(
        "clustering.raft.cache.size",
        Integer(),
        512,
        meaning="Accepted so that Liftbridge's files load, without effect: all Raft entries since the last snapshot are in memory.",
    )
    raft_bootstrap_seed: bool = setting(
        "clustering.raft.bootstrap.seed",
        Boolean(),
        False,
        flags=("--raft-bootstrap-seed",),
        meaning="If this server has no state yet, form a cluster of this server alone, which other servers join.",
        consequence="Two servers with this key form two clusters in one namespace.",
        advice="Set it on exactly one server, or name the servers in `clustering.raft.bootstrap.peers` instead.",
    )
    raft_bootstrap_peers: tuple[str, ...] = setting(
        "clustering.raft.bootstrap.peers",
        Names(),
        (),
        default_text="–",
        example="broker-2,broker-3",
        flags=("--raft-bootstrap-peers",),
        meaning="If this server has no state yet, form a cluster of this server and the servers with these ids.",
        consequence="The cluster starts once a majority of them is running.",
        advice="Set it to the same servers everywhere.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shutdown:
    """Stopping"""

    drain_timeout_ns: int = setting(
        "shutdown.drain.timeout",
        Duration(),
        20 * SECOND_NS,
        meaning="How long a stopping server may take to transfer its leaderships to other servers. Then it stops anyway. 0: do not "
        "transfer.",
        consequence="A partition whose leadership was not transferred has no leader until the other servers notice the loss: about "
        "`clustering.replica.max.leader.timeout`.",
        advice="Set it below the time after which your supervisor kills the process (systemd: `TimeoutStopSec`, Kubernetes: "
        "`terminationGracePeriodSeconds`).",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """Telemetry"""

    enabled: bool = setting(
        "telemetry.enabled",
        Boolean(),
        False,
        meaning="Accepted so that Liftbridge's files load, without effect: Bascule sends no telemetry.",
    )
    interval_seconds: int = setting(
        "telemetry.interval.seconds",
        Integer(maximum=INT64_MAX),
        86_400,
        meaning="Accepted so that Liftbridge's files load, without effect.",
    )
