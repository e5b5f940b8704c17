"""One server of a simulated Raft group, its state machine, and the clients: production node, production log, production sessions.

raft_simulator.py decides what happens to them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from bascule.raft.core.model.effects import Effects
from bascule.raft.core.model.entries import Entry
from bascule.raft.core.model.events import Event
from bascule.raft.core.model.membership import RaftMembership
from bascule.raft.core.model.messages import RaftMessage
from bascule.raft.core.node import RaftNode
from bascule.raft.core.options import RaftOptions
from bascule.raft.core.sessions import Applied, RaftSessions
from bascule.raft.disk import Wal, create_wal, open_wal
from tests.simulation.log.simulated_disk import SimulatedDisk

CLUSTER: Final = "simulated"
DIRECTORY: Final = "/raft"


class Violation(AssertionError):
    """An invariant does not hold."""


class Ledger:
    """The state machine: every command that took effect, in order, and a digest of all of that."""

    __slots__ = ("commands", "digest", "seen")

    def __init__(self) -> None:
        self.commands: list[bytes] = []
        self.seen: set[bytes] = set()
        self.digest = 0

    def apply(self, index: int, command: bytes) -> bytes:
        if command in self.seen:
            raise Violation(f"{command!r} takes effect twice, at {index} for the second time")
        self.seen.add(command)
        self.commands.append(command)
        self.digest = hash((self.digest, index, command)) & (1 << 63) - 1
        return b"%d" % len(self.commands)

    def snapshot(self) -> bytes:
        return b"%d;" % self.digest + b",".join(self.commands)

    def restore(self, data: bytes) -> None:
        digest, _, rest = data.partition(b";")
        self.commands = rest.split(b",") if rest else []
        self.seen = set(self.commands)
        self.digest = int(digest or 0)


@dataclass(slots=True)
class Write:
    """A command of a client, proposed once or more often."""

    data: bytes
    session: int
    sequence: int
    floor: int
    """How many commands had been observed when it began."""

    is_done: bool = False


@dataclass(slots=True)
class Client:
    name: str
    session: int = 0
    sequence: int = 0
    pending: list[Write] = field(default_factory=list)


class World(Protocol):
    """The network, the conditions and the checks around a server."""

    rng: random.Random
    options: RaftOptions
    tick_rates: Sequence[float]
    segment_bytes: int
    sessions_max: int
    counts: dict[str, int]

    def send(self, server: Server, messages: tuple[RaftMessage, ...]) -> None: ...
    def check_step(self, server: Server) -> None: ...
    def check_saved(self, server: Server, effects: Effects) -> None: ...
    def check_applied(self, server: Server, entry: Entry, applied: Applied) -> None: ...
    def check_digest(self, server: Server, index: int) -> None: ...
    def check_read(self, server: Server, floor: int) -> None: ...


class Server:
    """One server: the shell around a node, as the driver is."""

    __slots__ = (
        "applied_index",
        "asked",
        "batch",
        "disk",
        "id",
        "is_up",
        "ledger",
        "node",
        "opening",
        "reads",
        "sessions",
        "simulation",
        "terms",
        "tick_rate",
        "wal",
    )

    def __init__(self, simulation: World, server_id: str, membership: RaftMembership) -> None:
        self.simulation = simulation
        self.id = server_id
        self.disk = SimulatedDisk(simulation.rng.randrange(1 << 32))
        create_wal(self.disk, DIRECTORY, cluster_id=CLUSTER, server_id=server_id, membership=membership)
        self.tick_rate = simulation.rng.choice(simulation.tick_rates)
        self.is_up = False
        self.start()

    def start(self) -> None:
        simulation = self.simulation
        self.wal: Wal
        self.wal, recovered = open_wal(
            self.disk, DIRECTORY, cluster_id=CLUSTER, server_id=self.id, segment_bytes=simulation.segment_bytes
        )
        self.node = RaftNode(
            self.id,
            options=simulation.options,
            seed=simulation.rng.randrange(1 << 32),
            hard_state=recovered.hard_state,
            snapshot=recovered.snapshot,
            entries=recovered.entries,
        )
        self.ledger = Ledger()
        self.sessions = RaftSessions(self.ledger, sessions_max=simulation.sessions_max, window=4)
        self.sessions.restore(recovered.snapshot.data)
        self.applied_index = recovered.snapshot.index
        self.batch: list[Effects] = []
        self.asked: dict[tuple[int, int], Write] = {}
        self.opening: dict[bytes, Client] = {}
        self.reads: dict[int, int] = {}
        self.terms = {recovered.snapshot.index: recovered.snapshot.term}
        self.terms.update((entry.index, entry.term) for entry in recovered.entries)
        self.is_up = True

    # ── stopping ─────────────────────────────────────────────────────────────────────────────────

    def kill(self) -> None:
        self.is_up = False
        self.disk = self.disk.kill()

    def lose_power(self) -> None:
        self.is_up = False
        self.disk = self.disk.crash(self.simulation.rng)

    # ── running ──────────────────────────────────────────────────────────────────────────────────

    def step(self, event: Event) -> None:
        effects = self.node.step(event)
        self.simulation.counts["node steps"] += 1
        self.simulation.check_step(self)
        self.batch.append(effects)

    def flush(self) -> None:
        """Persist, then send, then apply."""
        batch, self.batch = self.batch, []
        self.wal.save(*batch)
        for effects in batch:
            self.simulation.check_saved(self, effects)
            self.simulation.send(self, effects.messages)
        for effects in batch:
            self._apply(effects)

    def term_before(self, index: int) -> int | None:
        """Of the entry before this one, if this process has saved it."""
        return self.terms.get(index - 1)

    def _apply(self, effects: Effects) -> None:
        snapshot = effects.snapshot_installed
        if snapshot is not None:
            self.sessions.restore(snapshot.data)
            self.applied_index = snapshot.index
            self.simulation.check_digest(self, snapshot.index)
            self.simulation.counts["snapshots installed"] += 1
        for entry in effects.committed:
            if entry.index != self.applied_index + 1:
                raise Violation(f"{self.id} applies {entry.index} after {self.applied_index}")
            self.applied_index = entry.index
            applied = self.sessions.apply(entry)
            self.simulation.check_applied(self, entry, applied)
        for read in effects.reads:
            if self.applied_index < read.index:
                raise Violation(f"{self.id} may read at {read.index} but has applied {self.applied_index}")
            if read.request in self.reads:
                self.simulation.check_read(self, self.reads.pop(read.request))
