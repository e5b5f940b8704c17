"""What one server keeps to itself: its identity, its directory, its logs, its appetite."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from bascule import limits
from bascule.config.values.duration import MINUTE_NS, SECOND_NS
from bascule.config.values.key import setting
from bascule.config.values.kinds import INT64_MAX, Boolean, Choice, Duration, FilePath, Integer, Name, Names


class Level(StrEnum):
    """How much is logged."""

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
        meaning="The directory of everything this server keeps: logs, Raft state, its id.",
        consequence="The default is `~/.local/share/bascule/<namespace>` unless `XDG_DATA_HOME` says otherwise: it survives a "
        "reboot (Liftbridge's default lies in `/tmp` and may not) and does not depend on the working directory.",
        advice="Set it in production, to a disk of its own. Two servers never share one.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Logging:
    """Logging"""

    level: Level = setting(
        "logging.level",
        Choice(Level),
        Level.INFO,
        flags=("--level", "-l"),
        meaning="The least important message that is still logged.",
    )
    recovery: bool = setting(
        "logging.recovery",
        Boolean(),
        False,
        meaning="Log while the Raft log is replayed at the start, each line behind `--> `.",
        consequence="A long history makes a long log.",
    )
    raft: bool = setting("logging.raft", Boolean(), False, meaning="Log what Raft does: votes, terms, snapshots.")
    nats: bool = setting("logging.nats", Boolean(), False, meaning="Log what the embedded nats-server says.")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataCache:
    """Metadata cache"""

    cache_max_age_ns: int = setting(
        "metadata.cache.max.age",
        Duration(),
        2 * MINUTE_NS,
        meaning="How long the list of brokers that clients ask for is kept.",
        consequence="A change of the cluster's members refreshes it at once. 0 asks the members every time.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """Batching"""

    max_messages: int = setting(
        "batch.max.messages",
        Integer(minimum=1, maximum=limits.BATCH_RECORDS_MAX),
        1_024,
        meaning="The most messages that go to a log in one append.",
        consequence="Larger batches take less CPU for a message and more memory for a partition.",
    )
    max_time_ns: int = setting(
        "batch.max.time",
        Duration(),
        0,
        meaning="How long to wait for a batch to fill.",
        consequence="Adds up to this much latency to every message.",
        advice="Leave it at 0: whatever has arrived together is one batch already.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerIdentity:
    """Identity and Raft storage"""

    server_id: str | None = setting(
        "clustering.server.id",
        Name(),
        None,
        default_text="a random id, kept in the data directory",
        example="broker-1",
        flags=("--server-id", "--id"),
        meaning="The name of this server in the cluster. Every server has another one.",
        consequence="An id that the data directory already holds wins over this key.",
        advice="Set it when `clustering.raft.bootstrap.peers` has to name it.",
    )
    raft_snapshot_retain: int = setting(
        "clustering.raft.snapshot.retain",
        Integer(minimum=1),
        2,
        meaning="How many Raft snapshots are kept on disk.",
    )
    raft_snapshot_threshold: int = setting(
        "clustering.raft.snapshot.threshold",
        Integer(minimum=1, maximum=INT64_MAX),
        8_192,
        meaning="After how many Raft entries a new snapshot is taken.",
        consequence="Fewer make a faster start and more writing.",
    )
    raft_cache_size: int = setting(
        "clustering.raft.cache.size",
        Integer(),
        512,
        meaning="How many recent Raft entries are kept in memory for followers that are a little behind.",
    )
    raft_bootstrap_seed: bool = setting(
        "clustering.raft.bootstrap.seed",
        Boolean(),
        False,
        flags=("--raft-bootstrap-seed",),
        meaning="Form a cluster of this server alone when it has no state yet; others join it.",
        consequence="Two seeds make two clusters in one namespace.",
        advice="Set it on exactly one server, or name the servers in `clustering.raft.bootstrap.peers` instead.",
    )
    raft_bootstrap_peers: tuple[str, ...] = setting(
        "clustering.raft.bootstrap.peers",
        Names(),
        (),
        default_text="–",
        example="broker-2,broker-3",
        flags=("--raft-bootstrap-peers",),
        meaning="Form a cluster of this server and the servers with these ids when it has no state yet.",
        consequence="The cluster starts once most of them are there.",
        advice="Give every server the same set.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shutdown:
    """Stopping"""

    drain_timeout_ns: int = setting(
        "shutdown.drain.timeout",
        Duration(),
        20 * SECOND_NS,
        meaning="How long a server that is to stop may take to hand over what it leads, before it stops anyway. 0: not at all.",
        consequence="What was not handed over is led by nobody until the other servers miss this one: about "
        "`clustering.replica.max.leader.timeout`.",
        advice="Keep it below the time that your supervisor waits before it kills (systemd: `TimeoutStopSec`, Kubernetes: "
        "`terminationGracePeriodSeconds`).",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """Telemetry"""

    enabled: bool = setting(
        "telemetry.enabled",
        Boolean(),
        False,
        meaning="Accepted so that Liftbridge's files load. Bascule sends nothing to anybody, whatever it says.",
    )
    interval_seconds: int = setting(
        "telemetry.interval.seconds",
        Integer(maximum=INT64_MAX),
        86_400,
        meaning="Accepted, does nothing.",
    )
