"""A few Raft nodes on a network that the test moves by hand: no clock, no event loop, no chance but the seeds of the nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from bascule.raft.core.model.effects import Effects, Proposed, ReadReady, Reason, Refused
from bascule.raft.core.model.entries import Entry, EntryKind, HardState, RaftSnapshot
from bascule.raft.core.model.events import Event, Propose, RaftTick, Receive
from bascule.raft.core.model.membership import RaftMembership
from bascule.raft.core.model.messages import RaftMessage
from bascule.raft.core.node import RaftNode
from bascule.raft.core.options import RaftOptions
from bascule.raft.core.state import Role

OPTIONS = RaftOptions(election_ticks=10, heartbeat_ticks=2, trailing_entries=2, promotion_lag_max=0)


def members(voters: Iterable[str], learners: Iterable[str] = ()) -> RaftMembership:
    return RaftMembership(frozenset(voters), frozenset(learners))


def entries_of(*terms: int) -> tuple[Entry, ...]:
    """A log whose entries have these terms."""
    return tuple(Entry(index, term, EntryKind.NOOP) for index, term in enumerate(terms, start=1))


@dataclass
class Stored:
    """What is durable of one node."""

    hard_state: HardState
    snapshot: RaftSnapshot
    entries: list[Entry] = field(default_factory=list)

    def save(self, effects: Effects) -> None:
        self.hard_state = effects.hard_state or self.hard_state
        if effects.snapshot_installed is not None:
            self.snapshot, self.entries = effects.snapshot_installed, []
        if effects.snapshot_taken is not None:
            self.snapshot = effects.snapshot_taken
            self.entries = [entry for entry in self.entries if entry.index > self.snapshot.index]
        if effects.entries:
            self.entries = [entry for entry in self.entries if entry.index < effects.entries[0].index]
            self.entries += effects.entries


class Cluster:
    def __init__(self, voters: Iterable[str], learners: Iterable[str] = (), options: RaftOptions = OPTIONS) -> None:
        self.membership = members(voters, learners)
        self.options = options
        self.nodes: dict[str, RaftNode] = {}
        self.stored: dict[str, Stored] = {}
        self.network: list[RaftMessage] = []
        self.applied: dict[str, list[Entry]] = {}
        self.effects: dict[str, list[Effects]] = {}
        self.cut: set[tuple[str, str]] = set()
        for server in self.membership.members:
            self.start(server)

    # ── servers ──────────────────────────────────────────────────────────────────────────────────

    def start(
        self, server: str, *, terms: Iterable[int] = (), term: int = 0, membership: RaftMembership | None = None
    ) -> RaftNode:
        """A server with a log of these terms, in this term."""
        log = list(entries_of(*terms))
        hard_state = HardState(max([term, *terms], default=term))
        self.stored[server] = Stored(hard_state, RaftSnapshot(0, 0, membership or self.membership), log)
        self.applied[server] = []
        self.effects[server] = []
        return self.restart(server)

    def restart(self, server: str) -> RaftNode:
        stored = self.stored[server]
        self.nodes[server] = RaftNode(
            server,
            options=self.options,
            seed=len(server) * 1000 + ord(server[-1]),
            hard_state=stored.hard_state,
            snapshot=stored.snapshot,
            entries=list(stored.entries),
        )
        return self.nodes[server]

    def join(self, server: str) -> RaftNode:
        return self.start(server, membership=members(()))

    def __getitem__(self, server: str) -> RaftNode:
        return self.nodes[server]

    # ── events ───────────────────────────────────────────────────────────────────────────────────

    def step(self, server: str, event: Event) -> Effects:
        effects = self.nodes[server].step(event)
        self.stored[server].save(effects)
        self.network += effects.messages
        self.applied[server] += effects.committed
        self.effects[server].append(effects)
        return effects

    def receive(self, message: RaftMessage) -> Effects:
        return self.step(message.to, Receive(message))

    def tick(self, *servers: str, times: int = 1) -> None:
        for _ in range(times):
            for server in servers or list(self.nodes):
                self.step(server, RaftTick())

    def propose(self, server: str, data: bytes = b"x", request: int = 1) -> Effects:
        return self.step(server, Propose(request, data))

    # ── the network ──────────────────────────────────────────────────────────────────────────────

    def isolate(self, *servers: str) -> None:
        """Nothing passes between these and the others."""
        inside = set(servers)
        self.cut = {(a, b) for a in self.nodes for b in self.nodes if (a in inside) != (b in inside)}

    def heal(self) -> None:
        self.cut = set()

    def passes(self, message: RaftMessage) -> bool:
        return message.to in self.nodes and (message.sender, message.to) not in self.cut

    def deliver(self, accept: Callable[[RaftMessage], bool] = lambda _: True) -> list[RaftMessage]:
        """Deliver what is on its way now and accepted; lose the rest."""
        messages, self.network = self.network, []
        delivered = [message for message in messages if self.passes(message) and accept(message)]
        for message in delivered:
            self.receive(message)
        return delivered

    def settle(self, accept: Callable[[RaftMessage], bool] = lambda _: True) -> None:
        """Deliver until nobody has anything more to say."""
        for _ in range(1000):
            if not self.deliver(accept):
                return
        raise AssertionError("the cluster does not come to rest")

    def run(self, ticks: int) -> None:
        for _ in range(ticks):
            self.tick()
            self.settle()

    def elect(self, server: str) -> RaftNode:
        """Let time pass for one server only, until it leads."""
        node = self.nodes[server]
        for _ in range(100):
            if node.is_leader:
                self.settle()
                return node
            others = [one for one in self.nodes if one != server]
            # The others no longer trust the old leader, and do not campaign themselves.
            for other in others:
                if not self.nodes[other].is_leader:
                    self.nodes[other]._state.elapsed_ticks = self.options.election_ticks
                    self.nodes[other]._state.timeout_ticks = 10_000
            self.tick(server)
            self.settle()
        raise AssertionError(f"{server} is not elected")

    # ── looking ──────────────────────────────────────────────────────────────────────────────────

    def terms(self, server: str) -> list[int]:
        node = self.nodes[server]
        return [node.entry(index).term for index in range(node.log_offset + 1, node.last_index + 1)]

    def role(self, server: str) -> Role:
        return self.nodes[server].role

    def reads(self, server: str) -> list[ReadReady]:
        return [read for effects in self.effects[server] for read in effects.reads]

    def refusals(self, server: str) -> list[Refused]:
        return [refused for effects in self.effects[server] for refused in effects.refused]

    def reasons(self, server: str) -> list[Reason]:
        return [refused.reason for refused in self.refusals(server)]

    def proposals(self, server: str) -> list[Proposed]:
        return [proposed for effects in self.effects[server] for proposed in effects.proposed]

    def data(self, server: str) -> list[bytes]:
        """Commands applied."""
        return [entry.data for entry in self.applied[server] if entry.kind is EntryKind.COMMAND]


def with_options(**changes: Any) -> RaftOptions:
    return replace(OPTIONS, **changes)
