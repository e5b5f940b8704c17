"""A Raft directory on a simulated disk, beside the state it should hold."""

from __future__ import annotations

import random
from typing import Final

from bascule.raft.core.model.codec import encode_membership
from bascule.raft.core.model.effects import Effects
from bascule.raft.core.model.entries import Entry, EntryKind, HardState, RaftSnapshot
from bascule.raft.disk import Recovered, Wal, create_wal, open_wal
from tests.simulation.log.simulated_disk import SimulatedDisk
from tests.support.raft_cluster import Stored, members

DIRECTORY: Final = "/data/raft"
ABC: Final = members("ABC")


def new_disk(seed: int = 0) -> SimulatedDisk:
    disk = SimulatedDisk(seed)
    disk.make_directory("/data")
    disk.sync_directory("/")
    return disk


def create(disk: SimulatedDisk) -> None:
    create_wal(disk, DIRECTORY, cluster_id="cluster", server_id="A", membership=ABC)


def reopen(disk: SimulatedDisk, segment_bytes: int = 300) -> tuple[Wal, Recovered]:
    return open_wal(disk, DIRECTORY, cluster_id="cluster", server_id="A", segment_bytes=segment_bytes)


def fresh() -> Stored:
    return Stored(HardState(), RaftSnapshot(0, 0, ABC))


def state_of(recovered: Recovered) -> tuple[HardState, RaftSnapshot, tuple[Entry, ...]]:
    return recovered.hard_state, recovered.snapshot, recovered.entries


def stored_state(stored: Stored) -> tuple[HardState, RaftSnapshot, tuple[Entry, ...]]:
    return stored.hard_state, stored.snapshot, tuple(stored.entries)


def random_effects(rng: random.Random, stored: Stored) -> Effects:
    """What a node might ask for next: a new term, a vote, entries with or without a conflict, a snapshot of either kind."""
    kind = rng.random()
    last = stored.entries[-1].index if stored.entries else stored.snapshot.index
    if kind < 0.2:
        return Effects(hard_state=HardState(stored.hard_state.term + rng.randint(1, 2), rng.choice(("A", "B", None))))
    if kind < 0.28 and stored.entries:
        entry = rng.choice(stored.entries)
        return Effects(snapshot_taken=RaftSnapshot(entry.index, entry.term, ABC, rng.randbytes(rng.randint(0, 60))))
    if kind < 0.33 and stored.hard_state.term > 0:
        index = last + rng.randint(1, 5)
        term = max(stored.hard_state.term, 1)
        return Effects(snapshot_installed=RaftSnapshot(index, term, members("AB"), rng.randbytes(rng.randint(0, 60))))
    hard_state = stored.hard_state
    if hard_state.term == 0 or rng.random() < 0.2:
        hard_state = HardState(hard_state.term + 1)
    first = last + 1
    if stored.entries and rng.random() < 0.25:
        first = rng.choice(stored.entries).index
        hard_state = HardState(hard_state.term + 1)
    entries = tuple(random_entry(rng, first + n, hard_state.term) for n in range(rng.randint(1, 4)))
    return Effects(hard_state=hard_state if hard_state != stored.hard_state else None, entries=entries)


def random_entry(rng: random.Random, index: int, term: int) -> Entry:
    kind = rng.choice((EntryKind.NOOP, EntryKind.COMMAND, EntryKind.COMMAND, EntryKind.MEMBERSHIP))
    if kind is EntryKind.NOOP:
        return Entry(index, term, kind)
    if kind is EntryKind.MEMBERSHIP:
        return Entry(index, term, kind, encode_membership(members("AB", "C")))
    return Entry(index, term, kind, rng.randbytes(rng.randint(0, 40)), rng.randint(0, 3), rng.randint(0, 9))
