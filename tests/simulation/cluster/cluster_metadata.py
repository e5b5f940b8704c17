"""Where the ops of a simulated cluster come into one order: by a log that simply is in order, or by real Raft nodes.

Either way a server applies ops later than they were decided, a controller may change at any time and forgets what was reported to
it, and a proposer gets the result of its own copy of the metadata, or, after a while, an unknown outcome. Then the op may still be
done, once, or never.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from bascule.metadata.core.model.ops import Op, decode_op, encode_op
from bascule.metadata.core.model.refusal import Refusal
from bascule.metadata.core.snapshot import encode_snapshot
from bascule.metadata.core.state import Change, ClusterMetadata
from bascule.metadata.feed import MetadataFeed
from bascule.metadata.machine import MetadataMachine, decode_verdict
from bascule.partition.core.leader_events import ProposalOutcome
from bascule.raft.core.model.effects import Effects
from bascule.raft.core.model.entries import Entry, EntryKind, HardState, RaftSnapshot
from bascule.raft.core.model.events import Event, Propose, RaftTick, Receive, TakeSnapshot, TransferLeadership
from bascule.raft.core.model.membership import RaftMembership
from bascule.raft.core.model.messages import RaftMessage
from bascule.raft.core.node import RaftNode
from bascule.raft.core.options import RaftOptions
from bascule.raft.core.sessions import ApplyOutcome as SessionOutcome
from bascule.raft.core.sessions import RaftSessions

if TYPE_CHECKING:
    from tests.simulation.cluster.cluster_server import Server
    from tests.simulation.cluster.cluster_simulator import ClusterSimulation

MS: Final = 1_000_000
Settle = Callable[[ProposalOutcome], None]


class MetadataLog(Protocol):
    @property
    def truth(self) -> ClusterMetadata:
        """After every op that was decided."""

    @property
    def controller(self) -> str | None: ...

    def start(self, server: Server) -> None:
        """The server's process has started: `server.metadata` is what it finds."""

    def stop(self, server: Server) -> None: ...

    def propose(self, server: Server, op: Op, settle: Settle) -> None:
        """`settle` is called once, if the process lives."""

    def disturb(self) -> None:
        """Something happens to it: another controller, an outage."""

    def calm(self) -> None: ...


@dataclass(slots=True)
class _Proposal:
    server: Server
    life: int
    op: Op
    settle: Settle
    is_settled: bool = False

    def tell(self, outcome: ProposalOutcome) -> None:
        if not self.is_settled:
            self.is_settled = True
            self.server.run(self.life, self.settle, (outcome,))


# ── a log that is in order ───────────────────────────────────────────────────────────────────────


class OrderedLog:
    """Every op gets the next index when it arrives; servers apply it after a lag of their own."""

    def __init__(self, world: ClusterSimulation) -> None:
        self.world = world
        self.truth = ClusterMetadata()
        self.entries: list[tuple[int, Op, _Proposal | None]] = []
        self.controller: str | None = "a"
        self.is_out = False
        self.lag_ns = world.rng.choice((1, 20, 200)) * MS
        self.loss = world.rng.choice((0, 0.05, 0.3))
        self.lateness = world.rng.choice((0, 0.1, 0.5))
        self.timeout_ns = world.rng.choice((150, 800)) * MS

    def start(self, server: Server) -> None:
        self._catch_up(server, server.life)

    def stop(self, server: Server) -> None:
        if server.id == self.controller:
            self.world.at(self.world.rng.choice((100, 900)) * MS, self._replace, server.id)

    def _replace(self, failed: str) -> None:
        """Those who are left elect another one, if they are a majority."""
        if self.controller != failed:
            return
        world = self.world
        up = [server.id for server in world.servers.values() if server.is_up and not server.is_paused]
        if 2 * len(up) > len(world.servers):
            self._set_controller(world.rng.choice(up))
        else:
            world.at(500 * MS, self._replace, failed)

    def _set_controller(self, controller: str) -> None:
        if self.controller is not None:
            self.world.servers[self.controller].forget_reports()
        self.controller = controller
        self.world.servers[controller].forget_reports()
        self.world.trace("controller is %s", controller)

    # ── proposals ────────────────────────────────────────────────────────────────────────────────

    def propose(self, server: Server, op: Op, settle: Settle) -> None:
        world, rng = self.world, self.world.rng
        proposal = _Proposal(server, server.life, op, settle)
        fate = rng.random()
        if self._is_reachable(server) and fate >= self.loss:
            self._arrive_in(world.delay_ns(), proposal)
        elif fate < self.loss / 4:
            world.at(
                world.delay_ns(), proposal.tell, ProposalOutcome.UNKNOWN
            )  # it was never sent on, but earlier ones may have been
            return
        elif rng.random() < 0.5:
            self._arrive_in(rng.randint(100, 3000) * MS, proposal)
        world.at(self.timeout_ns, proposal.tell, ProposalOutcome.UNKNOWN)

    def _is_reachable(self, server: Server) -> bool:
        if self.is_out or self.controller is None:
            return False
        controller = self.world.servers[self.controller]
        return controller.is_up and not controller.is_paused and not self.world.is_cut(server.id, self.controller)

    def _arrive_in(self, delay_ns: int, proposal: _Proposal) -> None:
        rng = self.world.rng
        if rng.random() < self.lateness:
            delay_ns += rng.randint(0, 1500) * MS
        self.world.at(delay_ns, self._decide, proposal)

    def _decide(self, proposal: _Proposal) -> None:
        if self.is_out:
            self.world.at(200 * MS, self._decide, proposal)
            return
        index = self.truth.applied_index + self.world.rng.choice((1, 1, 2))
        outcome = self.truth.apply(index, proposal.op)
        self.world.decided(index, proposal.op, outcome)
        self.entries.append((index, proposal.op, proposal))
        for server in self.world.servers.values():
            if server.is_up:
                server.call(self._lag_of(server, proposal), self._catch_up, server, server.life)

    def _lag_of(self, server: Server, proposal: _Proposal) -> int:
        rng = self.world.rng
        lag_ns = rng.randint(0, self.lag_ns)
        return lag_ns // 8 if server is proposal.server else lag_ns

    # ── applying ─────────────────────────────────────────────────────────────────────────────────

    def _catch_up(self, server: Server, life: int) -> None:
        if server.life != life or server.metadata.applied_index >= self.truth.applied_index:
            return
        if self.controller is None or (server.id != self.controller and self.world.is_cut(self.controller, server.id)):
            server.call(100 * MS, self._catch_up, server, life)
            return
        first = bisect_right(self.entries, server.metadata.applied_index, key=lambda entry: entry[0])
        for index, op, proposal in self.entries[first:]:
            outcome = server.metadata.apply(index, op)
            server.applied(op, () if isinstance(outcome, Refusal) else outcome)
            if not server.is_up:
                return
            if proposal is not None and proposal.server is server:
                proposal.tell(ProposalOutcome.REFUSED if isinstance(outcome, Refusal) else ProposalOutcome.DONE)

    # ── disturbing ───────────────────────────────────────────────────────────────────────────────

    def disturb(self) -> None:
        rng = self.world.rng
        if rng.random() < 0.5:
            up = [server.id for server in self.world.servers.values() if server.is_up and not server.is_paused]
            if up:
                self._set_controller(rng.choice(up))
        else:
            self.is_out = True
            self.world.at(rng.randint(200, 2500) * MS, self._end_outage)

    def _end_outage(self) -> None:
        self.is_out = False

    def calm(self) -> None:
        self.is_out = False
        self.loss = self.lateness = 0
        self.timeout_ns = 800 * MS
        for server in self.world.servers.values():
            if server.is_up:
                server.call(1, self._catch_up, server, server.life)
        self._set_controller(self.controller or "a")


# ── Raft ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Attempt:
    proposal: _Proposal
    data: bytes
    session: int
    sequence: int
    until_ns: int


class RaftMember:
    """A server's Raft node, what it has on disk, and its session. The production node, sessions and metadata machine."""

    def __init__(self, log: RaftLog, server: Server, membership: RaftMembership) -> None:
        self.log = log
        self.server = server
        self.hard_state = HardState()
        self.snapshot = RaftSnapshot(0, 0, membership, b"")
        self.entries: list[Entry] = []
        self.is_up = False
        self.life = -1

    def start(self) -> None:
        self.is_up = True
        self.life = self.server.life
        feed = MetadataFeed()
        feed.subscribe(self)
        self.machine = MetadataMachine(feed)
        self.sessions = RaftSessions(self.machine)
        self.sessions.restore(self.snapshot.data)
        self.server.metadata = self.machine.state
        self.node = RaftNode(
            self.server.id,
            options=self.log.options,
            seed=self.log.world.rng.randrange(1 << 32),
            hard_state=self.hard_state,
            snapshot=self.snapshot,
            entries=tuple(self.entries),
        )
        self.session = 0
        self.sequence = 0
        self.nonces: set[bytes] = set()
        self.waiting: list[_Proposal] = []
        self.attempts: dict[tuple[int, int], _Attempt] = {}
        self.changes: tuple[Change, ...] = ()
        self.was_leader = False
        self._tick()

    def on_changes(self, _index: int, changes: tuple[Change, ...]) -> None:
        self.changes = changes

    def reload(self) -> None:
        """`start` and `step` take the restored state from the machine."""

    def _tick(self) -> None:
        self.server.call(self.log.tick_ns, self._tick)
        self.step(RaftTick())
        if self.session == 0 and self.waiting:
            nonce = b"%d" % self.log.number()
            self.nonces.add(nonce)
            self.step(Propose(self.log.number(), nonce, kind=EntryKind.OPEN_SESSION))
        for key, attempt in list(self.attempts.items()):
            if self.log.world.now_ns > attempt.until_ns:
                del self.attempts[key]
                attempt.proposal.tell(ProposalOutcome.UNKNOWN)
            elif self.log.world.rng.random() < 0.2:
                self._propose(attempt)

    def submit(self, proposal: _Proposal) -> None:
        if self.session == 0:
            self.waiting.append(proposal)
            return
        self.sequence += 1
        until_ns = self.log.world.now_ns + self.log.timeout_ns
        attempt = _Attempt(proposal, encode_op(proposal.op), self.session, self.sequence, until_ns)
        self.attempts[(attempt.session, attempt.sequence)] = attempt
        self._propose(attempt)

    def _propose(self, attempt: _Attempt) -> None:
        self.step(Propose(self.log.number(), attempt.data, attempt.session, attempt.sequence))

    def step(self, event: Event) -> None:
        effects = self.node.step(event)
        self._persist(effects)
        for message in effects.messages:
            self.log.send(message)
        if self.node.is_leader != self.was_leader:
            self.was_leader = self.node.is_leader
            self.server.forget_reports()
        self._apply(effects)

    def _persist(self, effects: Effects) -> None:
        self.hard_state = effects.hard_state or self.hard_state
        if effects.snapshot_installed is not None:
            self.snapshot, self.entries = effects.snapshot_installed, []
        if effects.entries:
            first = effects.entries[0].index
            self.entries = [entry for entry in self.entries if entry.index < first] + list(effects.entries)
        if effects.snapshot_taken is not None:
            self.snapshot = effects.snapshot_taken
            self.entries = [entry for entry in self.entries if entry.index > self.snapshot.index]

    def _apply(self, effects: Effects) -> None:
        if effects.snapshot_installed is not None:
            self.sessions.restore(effects.snapshot_installed.data)
            self.server.metadata = self.machine.state
            self.server.restored()
        for entry in effects.committed:
            self._apply_entry(entry)
            if not self.server.is_up or self.server.life != self.life:
                return

    def _apply_entry(self, entry: Entry) -> None:
        self.changes = ()
        self.log.decide(entry)
        applied = self.sessions.apply(entry)
        if applied.outcome is SessionOutcome.APPLIED and entry.kind is EntryKind.COMMAND:
            self.server.applied(decode_op(entry.data), self.changes)
        if not self.server.is_up:
            return
        if applied.outcome is SessionOutcome.SESSION_OPENED and entry.data in self.nonces and self.session == 0:
            self.session = entry.index
            waiting, self.waiting = self.waiting, []
            for proposal in waiting:
                self.submit(proposal)
        attempt = self.attempts.pop((entry.session, entry.sequence), None)
        if attempt is not None and entry.kind is EntryKind.COMMAND:
            is_known = applied.outcome in (SessionOutcome.APPLIED, SessionOutcome.DUPLICATE)
            refused = is_known and decode_verdict(applied.result) is not None
            known = ProposalOutcome.REFUSED if refused else ProposalOutcome.DONE
            attempt.proposal.tell(known if is_known else ProposalOutcome.UNKNOWN)


class RaftLog:
    def __init__(self, world: ClusterSimulation) -> None:
        self.world = world
        self.tick_ns = world.rng.choice((50, 100)) * MS
        self.timeout_ns = world.rng.choice((400, 1500)) * MS
        self.options = RaftOptions(election_ticks=4, heartbeat_ticks=1, trailing_entries=world.rng.choice((0, 5, 100)))
        self.members: dict[str, RaftMember] = {}
        self._numbers = 0
        feed = MetadataFeed()
        feed.subscribe(self)
        self._machine = MetadataMachine(feed)
        self._sessions = RaftSessions(self._machine)
        self._decided_to = 0
        self._changes: tuple[Change, ...] = ()

    @property
    def truth(self) -> ClusterMetadata:
        return self._machine.state

    def on_changes(self, _index: int, changes: tuple[Change, ...]) -> None:
        self._changes = changes

    def reload(self) -> None:
        """The reference copy is never restored."""

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    @property
    def controller(self) -> str | None:
        leaders = [member for member in self.members.values() if member.is_up and member.node.is_leader]
        return max(leaders, key=lambda member: member.node.term).server.id if leaders else None

    def start(self, server: Server) -> None:
        if server.id not in self.members:
            self.members[server.id] = RaftMember(self, server, RaftMembership(frozenset(self.world.names), frozenset()))
        self.members[server.id].start()

    def stop(self, server: Server) -> None:
        self.members[server.id].is_up = False

    def send(self, message: RaftMessage) -> None:
        self.world.transmit(message.sender, message.to, self._receive, message)

    def _receive(self, message: RaftMessage) -> None:
        self.members[message.to].step(Receive(message))

    def decide(self, entry: Entry) -> None:
        """The first server to apply an entry makes it a part of the truth."""
        if entry.index <= self._decided_to:
            return
        assert entry.index == self._decided_to + 1
        self._decided_to = entry.index
        self._changes = ()
        applied = self._sessions.apply(entry)
        if applied.outcome is SessionOutcome.APPLIED and entry.kind is EntryKind.COMMAND:
            refusal = decode_verdict(applied.result)
            self.world.decided(entry.index, decode_op(entry.data), refusal or self._changes)

    def propose(self, server: Server, op: Op, settle: Settle) -> None:
        self.members[server.id].submit(_Proposal(server, server.life, op, settle))

    def disturb(self) -> None:
        rng = self.world.rng
        for member in self.members.values():
            if member.is_up and not member.server.is_paused:
                if member.node.is_leader and rng.random() < 0.5:
                    member.step(TransferLeadership(self.number(), rng.choice(self.world.names)))
                elif rng.random() < 0.3 and member.node.applied_index > member.node.snapshot.index:
                    member.step(TakeSnapshot(member.node.applied_index, member.sessions.snapshot()))

    def calm(self) -> None:
        self.timeout_ns = 1500 * MS


def states_differ(a: ClusterMetadata, b: ClusterMetadata) -> bool:
    return encode_snapshot(a) != encode_snapshot(b)
