"""Builds and starts a controller from the data directory or, in an empty one, from the bootstrap options."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass

from bascule.errors import BasculeError
from bascule.log.disk.operations import Disk
from bascule.metadata.bootstrap import Beginning, as_peer, as_seed, by_joining
from bascule.metadata.controller import Controller, ControllerOptions
from bascule.metadata.core.snapshot import decode_snapshot
from bascule.metadata.feed import MetadataFeed
from bascule.metadata.machine import MetadataMachine
from bascule.net.nats.subjects import ControlSubjects
from bascule.raft.core.node import RaftNode
from bascule.raft.core.options import RaftOptions
from bascule.raft.core.sessions import machine_snapshot
from bascule.raft.disk import create_wal, open_wal, wal_exists
from bascule.raft.disk.superblock import read_superblock
from bascule.raft.transport import Bus

_logger = logging.getLogger(__name__)

TICK_SECONDS = 0.1
ELECTION_TICKS = 8
HEARTBEAT_TICKS = 2
"""A follower starts an election after 0.8 to 1.6 s without its leader, so that three heartbeats may be lost. Each tick wakes up every
server, also an idle one."""


@dataclass(frozen=True, slots=True)
class ControllerStart:
    namespace: str
    server_id: str
    is_seed: bool = False
    peers: tuple[str, ...] = ()
    voters_max: int = 0
    snapshot_entries: int = 8192
    leader_timeout_ns: int = 5_000_000_000
    coordinator_timeout_ns: int = 15_000_000_000


async def start_controller(
    bus: Bus,
    disk: Disk,
    data_directory: str,
    options: ControllerStart,
    *,
    feed: MetadataFeed | None = None,
    on_rival_seed: Callable[[str, bool], None] | None = None,
    on_failure: Callable[[BaseException], None] | None = None,
) -> Controller:
    """Open this server's member of the metadata group and start it. State on disk takes precedence over the options."""
    subjects = ControlSubjects(options.namespace)
    directory = f"{data_directory}/raft"
    has_state = wal_exists(disk, directory)
    if not has_state:
        disk.make_directory(data_directory)
        beginning = await _begin(bus, subjects, options)
        create_wal(
            disk,
            directory,
            cluster_id=beginning.cluster_id,
            server_id=options.server_id,
            membership=beginning.membership,
        )
    cluster_id = read_superblock(disk, directory).cluster_id
    wal, recovered = open_wal(disk, directory, cluster_id=cluster_id, server_id=options.server_id)
    node = RaftNode(
        options.server_id,
        options=RaftOptions(
            election_ticks=ELECTION_TICKS,
            heartbeat_ticks=HEARTBEAT_TICKS,
            voters_max=options.voters_max,
            is_snapshot=_is_snapshot,
        ),
        seed=int.from_bytes(os.urandom(8), "big"),
        hard_state=recovered.hard_state,
        snapshot=recovered.snapshot,
        entries=recovered.entries,
    )
    controller = Controller(
        node,
        wal,
        bus,
        subjects,
        cluster_id,
        MetadataMachine(feed or MetadataFeed()),
        ControllerOptions(
            tick_seconds=TICK_SECONDS,
            election_ticks=ELECTION_TICKS,
            snapshot_entries=options.snapshot_entries,
            leader_timeout_ns=options.leader_timeout_ns,
            coordinator_timeout_ns=options.coordinator_timeout_ns,
            is_seed=options.is_seed,
            has_state=has_state,
        ),
        on_rival_seed,
        on_failure,
    )
    await controller.start()
    return controller


def _is_snapshot(data: bytes) -> bool:
    """Whether this version can restore a snapshot of the leader. One that it cannot must not replace the state on disk."""
    try:
        machine = machine_snapshot(data)
        if machine:
            decode_snapshot(machine)
    except BasculeError as error:
        _logger.error("a snapshot of the metadata from the leader was refused: %s", error.message)
        return False
    return True


async def _begin(bus: Bus, subjects: ControlSubjects, options: ControllerStart) -> Beginning:
    if options.peers:
        return as_peer(options.namespace, options.server_id, options.peers, options.voters_max)
    if options.is_seed:
        return as_seed(options.server_id)
    return await by_joining(bus, subjects, options.server_id)
