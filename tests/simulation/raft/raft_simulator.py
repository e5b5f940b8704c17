"""A Raft group under everything that can happen to it, from a seed: production node, production log, production sessions.

The simulation covers the network (loss, duplicates, any order, cuts in one or both directions, slow servers), time (servers tick at
different rates), the disk (simulated_disk.py: a killed process, a power failure at any operation) and the users (proposals and their
retries, reads, snapshots, membership changes, hand-overs). How much of each there is depends on the seed too: a run that is calm
but for one thing finds what an even mixture hides.

After every step the invariants of the Raft paper, Figure 3, are checked, and the answers that clients got:

    election safety        one leader in a term; one vote of a server in a term, across restarts
    log matching           an entry of some index and term has one content and one predecessor, on every server
    leader completeness    a new leader holds everything that was ever applied anywhere
    state machine safety   one entry, one outcome and one state for each index, snapshots included
    exactly once           a command of a session takes effect once, however often it was proposed
    linearizability        a read, or a write, is never ordered before what was observed when it began
    liveness               when the faults stop, a leader emerges and a proposal is applied by all members
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from bascule.raft.core.model.effects import Effects
from bascule.raft.core.model.entries import Entry, EntryKind
from bascule.raft.core.model.events import (
    ChangeMembership,
    Event,
    Propose,
    RaftTick,
    ReadIndex,
    Receive,
    TakeSnapshot,
    TransferLeadership,
)
from bascule.raft.core.model.membership import (
    AddLearner,
    MembershipChange,
    PromoteLearner,
    RaftMembership,
    RemoveServer,
)
from bascule.raft.core.model.message_codec import decode_message, encode_message
from bascule.raft.core.model.messages import RaftMessage, VoteReply, VoteRequest
from bascule.raft.core.options import RaftOptions
from bascule.raft.core.sessions import Applied, ApplyOutcome
from tests.simulation.log.simulated_disk import PowerLoss
from tests.simulation.raft.raft_server import CLUSTER, Client, Server, Violation, Write

SERVERS_MAX: Final = 7
ROUNDS_TO_RECOVER: Final = 600


class Simulation:
    def __init__(self, seed: int, steps: int) -> None:
        self.seed = seed
        self.steps = steps
        self.rng = rng = random.Random(seed)
        self.now = 0
        self.counts: dict[str, int] = dict.fromkeys(
            (
                "node steps",
                "elections",
                "commits",
                "writes",
                "duplicates",
                "reads",
                "snapshots installed",
                "changes",
                "crashes",
            ),
            0,
        )
        self._draw_conditions(rng)
        self.network: list[RaftMessage] = []
        self.cut: set[tuple[str, str]] = set()
        self.clients = [Client(f"c{number}") for number in range(rng.choice((1, 3)))]
        self.next_number = 0
        self.observed = 0
        """Commands whose effect a client has seen, by the position of the last one."""

        self.leaders: dict[int, str] = {}
        self.votes: dict[tuple[str, int], str] = {}
        self.entries: dict[tuple[int, int], tuple[Entry, int | None]] = {}
        self.committed: dict[int, tuple[Entry, Applied]] = {}
        self.digests: dict[int, int] = {0: 0}
        self.acknowledged: list[tuple[bytes, int]] = []
        names = [f"s{number}" for number in range(rng.choice((1, 3, 3, 3, 4, 5, 5)))]
        voters = names[: rng.choice((3, 5))]
        membership = RaftMembership(frozenset(voters), frozenset(names) - frozenset(voters))
        self.servers = {name: Server(self, name, membership) for name in names}

    def _draw_conditions(self, rng: random.Random) -> None:
        """What this run is like."""
        election_ticks, heartbeat_ticks = rng.choice(((3, 1), (3, 2), (5, 2), (10, 2)))
        self.options = RaftOptions(
            election_ticks=election_ticks,
            heartbeat_ticks=heartbeat_ticks,
            append_bytes_max=rng.choice((1, 100, 10_000)),
            appends_inflight_max=rng.choice((1, 2, 8)),
            snapshot_chunk_bytes=rng.choice((16, 64, 10_000)),
            trailing_entries=rng.choice((0, 2, 20)),
            voters_max=rng.choice((0, 0, 3)),
            promotion_lag_max=rng.choice((0, 3)),
        )
        self.segment_bytes = rng.choice((100, 500, 4000))
        self.sessions_max = rng.choice((1, 4, 1000))
        self.is_calm = False
        self.is_coded = rng.random() < 0.15
        self.is_in_order = rng.random() < 0.3
        self.loss = rng.choice((0, 0, 0.02, 0.1, 0.25))
        self.duplication = rng.choice((0, 0, 0.05, 0.2))
        self.laziness = rng.choice((0, 0, 0.3, 0.7))
        self.power_failure = rng.choice((0, 0.002, 0.02))
        self.isolation = rng.choice((0, 0.05, 0.3))
        self.promotion = rng.choice((0, 0.35, 0.35))
        self.tick_rates: Sequence[float] = rng.choice(((1.0,), (0.3, 1.0, 1.0), (0.05, 1.0, 1.0, 1.0)))
        self.slow = rng.choice((None, None, "s0", "s1"))
        weights = {
            "deliver": 0.60 * rng.choice((0.4, 1, 2)),
            "tick": 0.22 * rng.choice((0.5, 1, 2)),
            "write": 0.06 * rng.choice((0.2, 1, 1, 3)),
            "retry": 0.01 * rng.choice((0.2, 1, 3)),
            "read": 0.03 * rng.choice((0.2, 1, 1, 3)),
            "crash": 0.006 * rng.choice((0, 1, 1, 3)),
            "restart": 0.015 * rng.choice((0.5, 1, 2)),
            "partition": 0.005 * rng.choice((0, 1, 3)),
            "snapshot": 0.008 * rng.choice((0, 1, 4)),
            "transfer": 0.003 * rng.choice((0, 1, 4)),
            "change": 0.010 * rng.choice((0, 1, 4)),
        }
        self.actions = [getattr(self, f"_{name}") for name in weights]
        total = 0.0
        self.thresholds = [total := total + weight for weight in weights.values()]
        self.thresholds = [threshold / total for threshold in self.thresholds]

    # ── one run ──────────────────────────────────────────────────────────────────────────────────

    def run(self) -> dict[str, int]:
        try:
            for _ in range(self.steps):
                self.now += 1
                self._one_step()
            self._recover()
            self._check_acknowledged()
        except Exception as error:
            again = f"BASCULE_RAFT_SEED={self.seed} BASCULE_RAFT_STEPS={self.steps} pytest -k replays"
            problem = f"{type(error).__name__}: {error}"
            raise Violation(f"seed {self.seed}, step {self.now} of {self.steps}: {problem}\n{again}") from error
        return self.counts

    def _one_step(self) -> None:
        draw = self.rng.random()
        for threshold, action in zip(self.thresholds, self.actions, strict=True):
            if draw < threshold:
                action()
                return

    def _up(self) -> Server | None:
        """Any server that is up."""
        servers = [server for server in self.servers.values() if server.is_up]
        return self.rng.choice(servers) if servers else None

    def _leader(self) -> Server | None:
        """A server that leads, or believes so."""
        leaders = [server for server in self.servers.values() if server.is_up and server.node.is_leader]
        return self.rng.choice(leaders) if leaders else None

    def _run_step(self, server: Server, event: Event) -> None:
        rng = self.rng
        server.step(event)
        if not self.is_calm:
            if rng.random() < self.laziness and len(server.batch) < 8:
                return
            if rng.random() < self.power_failure:
                server.disk.power_fails_at = server.disk.operations + rng.randint(1, 6)
        try:
            server.flush()
        except PowerLoss:
            self.counts["crashes"] += 1
            server.lose_power()
        else:
            server.disk.power_fails_at = None

    # ── the network and time ─────────────────────────────────────────────────────────────────────

    def send(self, server: Server, messages: tuple[RaftMessage, ...]) -> None:
        for message in messages:
            if (isinstance(message, VoteReply) and message.is_granted) or isinstance(message, VoteRequest):
                self._check_vote(server, message)
            self.network.append(decode_message(encode_message(message, CLUSTER), CLUSTER) if self.is_coded else message)
        while len(self.network) > 300:
            self.network.pop(self.rng.randrange(len(self.network)))

    def _deliver(self) -> None:
        network, rng = self.network, self.rng
        if not network:
            self._tick()
            return
        position = 0 if self.is_in_order else rng.randrange(len(network))
        message = network[position]
        if message.to == self.slow and rng.random() < 0.8:
            return
        if rng.random() >= self.duplication:
            network.pop(position)
        if (message.sender, message.to) in self.cut or rng.random() < self.loss:
            return
        server = self.servers.get(message.to)
        if server is not None and server.is_up:
            self._run_step(server, Receive(message))

    def _tick(self) -> None:
        server = self._up()
        if server is not None and self.rng.random() < server.tick_rate:
            self._run_step(server, RaftTick())

    def _partition(self) -> None:
        rng = self.rng
        self.cut = set()
        if rng.random() < 0.35:
            return
        leader = self._leader()
        if leader is not None and rng.random() < 0.5:
            self._isolate(leader)
            return
        self._cut_off({name for name in self.servers if rng.random() < 0.5}, rng.choice((1, 1, 0.5)))

    def _isolate(self, leader: Server) -> None:
        """With none or a few of the others: they do not know yet that there will be another one."""
        share = self.rng.choice((0, 0, 0.3))
        self._cut_off({leader.id} | {name for name in self.servers if self.rng.random() < share}, 1)

    def _cut_off(self, inside: set[str], share: float) -> None:
        rng = self.rng
        self.cut = {
            (a, b)
            for a in self.servers
            for b in self.servers
            if (a in inside) != (b in inside) and (share == 1 or rng.random() < share)
        }

    def _crash(self) -> None:
        server = self._up()
        if server is not None:
            self.counts["crashes"] += 1
            if self.rng.random() < 0.5:
                server.kill()
            else:
                server.lose_power()

    def _restart(self) -> None:
        down = [server for server in self.servers.values() if not server.is_up]
        if down:
            self.rng.choice(down).start()

    # ── what people do ───────────────────────────────────────────────────────────────────────────

    def _asked(self) -> Server | None:
        return (self._leader() if self.rng.random() < 0.7 else None) or self._up()

    def _number(self) -> int:
        self.next_number += 1
        return self.next_number

    def _write(self) -> None:
        server, client = self._asked(), self.rng.choice(self.clients)
        if server is None:
            return
        if client.session == 0:
            nonce = b"%s-%d" % (client.name.encode(), self._number())
            server.opening[nonce] = client
            self._run_step(server, Propose(self._number(), nonce, kind=EntryKind.OPEN_SESSION))
        elif len(client.pending) < 4:
            client.sequence += 1
            data = b"%s-%d-%d" % (client.name.encode(), client.session, client.sequence)
            write = Write(data, client.session, client.sequence, self.observed)
            client.pending.append(write)
            self._propose(server, write)
        elif self.rng.random() < 0.1:
            # It gives up, as a client does after its timeout; what was under way may still take effect.
            client.session, client.sequence, client.pending = 0, 0, []

    def _retry(self) -> None:
        server, client = self._asked(), self.rng.choice(self.clients)
        if server is not None and client.pending:
            self._propose(server, self.rng.choice(client.pending))

    def _propose(self, server: Server, write: Write) -> None:
        server.asked[(write.session, write.sequence)] = write
        self._run_step(server, Propose(self._number(), write.data, write.session, write.sequence))
        self._may_isolate(server)

    def _may_isolate(self, server: Server) -> None:
        """The worst moment for a leader to be cut off is right after it has begun something."""
        if server.is_up and server.node.is_leader and self.rng.random() < self.isolation:
            self._isolate(server)

    def _read(self) -> None:
        server = self._asked()
        if server is not None:
            request = self._number()
            server.reads[request] = self.observed
            self._run_step(server, ReadIndex(request))

    def _snapshot(self) -> None:
        server = self._up()
        if server is not None and not server.batch and server.applied_index > server.node.snapshot.index:
            self._run_step(server, TakeSnapshot(server.applied_index, server.sessions.snapshot()))

    def _transfer(self) -> None:
        leader = self._leader()
        if leader is not None:
            target = self.rng.choice(sorted(self.servers))
            self._run_step(leader, TransferLeadership(self._number(), target))

    def _change(self) -> None:
        leader = self._leader()
        if leader is not None:
            change = self._draw_change(leader)
            self.counts["changes"] += 1
            self._run_step(leader, ChangeMembership(self._number(), change))
            self._may_isolate(leader)

    def _draw_change(self, leader: Server) -> MembershipChange:
        rng, membership = self.rng, leader.node.membership
        draw = rng.random()
        if draw < 0.3:
            outside = sorted(set(self.servers) - set(membership.members))
            if not outside and len(self.servers) < SERVERS_MAX:
                name = f"s{len(self.servers)}"
                self.servers[name] = Server(self, name, RaftMembership())
                outside = [name]
            return AddLearner(rng.choice(outside or membership.members))
        if draw < 0.3 + self.promotion and membership.learners:
            return PromoteLearner(rng.choice(sorted(membership.learners)))
        return RemoveServer(rng.choice(membership.members))

    # ── invariants ───────────────────────────────────────────────────────────────────────────────

    def check_step(self, server: Server) -> None:
        node = server.node
        if node.is_leader and self.leaders.get(node.term) != server.id:
            self._check_new_leader(server)
        if not node.applied_index <= node.commit_index <= node.last_index:
            raise Violation(f"{server.id}: {node.applied_index=}, {node.commit_index=}, {node.last_index=}")

    def check_saved(self, server: Server, effects: Effects) -> None:
        """Log matching, by induction: what is saved has the predecessor it has everywhere. Before that it does not exist yet."""
        if effects.snapshot_installed is not None:
            server.terms = {effects.snapshot_installed.index: effects.snapshot_installed.term}
        before: int | None = None
        for number, entry in enumerate(effects.entries):
            if number == 0:
                before = server.term_before(entry.index)
            known = self.entries.setdefault((entry.index, entry.term), (entry, before))
            if known[0] != entry or (before is not None and known[1] not in (None, before)):
                raise Violation(f"log matching: {server.id} has {entry} behind term {before}, another has {known}")
            before = entry.term
            server.terms[entry.index] = entry.term

    def _check_new_leader(self, server: Server) -> None:
        node = server.node
        if node.term in self.leaders:
            raise Violation(f"election safety: {self.leaders[node.term]} and {server.id} lead in term {node.term}")
        # Votes that were long on their way may elect a leader of an earlier term. It is bound to what was committed before its
        # term, not to what its successors have done meanwhile.
        is_late = any(term > node.term for term in self.leaders)
        self.leaders[node.term] = server.id
        self.counts["elections"] += 1
        if is_late:
            return
        for index, (entry, _) in self.committed.items():
            if index > node.log_offset and node.term_at(index) != entry.term:
                raise Violation(f"leader completeness: {server.id}, leader of term {node.term}, lacks {entry}")

    def _check_vote(self, server: Server, message: VoteReply | VoteRequest) -> None:
        if message.is_pre_vote:
            return
        candidate = message.to if isinstance(message, VoteReply) else server.id
        if self.votes.setdefault((server.id, message.term), candidate) != candidate:
            first = self.votes[(server.id, message.term)]
            raise Violation(f"{server.id} votes for {first} and {candidate} in term {message.term}")

    def check_applied(self, server: Server, entry: Entry, applied: Applied) -> None:
        first = self.committed.setdefault(entry.index, (entry, applied))
        if first != (entry, applied):
            raise Violation(f"state machine safety: {server.id} applies {entry} with {applied}, another had {first}")
        self.check_digest(server, entry.index)
        self.counts["commits"] = max(self.counts["commits"], entry.index)
        if entry.kind is EntryKind.OPEN_SESSION:
            client = server.opening.pop(entry.data, None)
            if client is not None and client.session == 0:
                client.session = entry.index
        elif entry.session:
            self._answer(server, entry, applied)

    def check_digest(self, server: Server, index: int) -> None:
        digest = server.ledger.digest
        if self.digests.setdefault(index, digest) != digest:
            raise Violation(f"state machine safety: {server.id} has another state after {index}")

    def _answer(self, server: Server, entry: Entry, applied: Applied) -> None:
        """The server tells the client that asked it."""
        write = server.asked.pop((entry.session, entry.sequence), None)
        if applied.outcome is ApplyOutcome.DUPLICATE:
            self.counts["duplicates"] += 1
        if write is None or write.is_done:
            return
        write.is_done = True
        for client in self.clients:
            if write in client.pending:
                client.pending.remove(write)
                if applied.outcome is ApplyOutcome.SESSION_EXPIRED:
                    client.session, client.sequence, client.pending = 0, 0, []
        if applied.outcome not in (ApplyOutcome.APPLIED, ApplyOutcome.DUPLICATE):
            return
        position = int(applied.result)
        if position <= write.floor:
            raise Violation(f"linearizability: {write.data!r} is number {position}, {write.floor} were seen before it")
        self.observed = max(self.observed, position)
        self.acknowledged.append((write.data, position))
        self.counts["writes"] += 1

    def check_read(self, server: Server, floor: int) -> None:
        found = len(server.ledger.commands)
        if found < floor:
            raise Violation(f"linearizability: {server.id} reads {found} commands, {floor} were seen before")
        self.observed = max(self.observed, found)
        self.counts["reads"] += 1

    # ── liveness ─────────────────────────────────────────────────────────────────────────────────

    def _recover(self) -> None:
        """All faults stop: all servers are up, the network delivers everything, in order and at once."""
        self.is_calm = True
        self.cut = set()
        for server in self.servers.values():
            if not server.is_up:
                server.start()
            server.flush()
        marker: bytes | None = None
        for _ in range(ROUNDS_TO_RECOVER):
            self._calm_round()
            leader = max(
                (server for server in self.servers.values() if server.node.is_leader),
                key=lambda server: server.node.term,
                default=None,
            )
            if leader is None:
                continue
            if marker is None or not self._is_under_way(marker):
                marker = b"final-%d" % self._number()
                self._run_step(leader, Propose(self._number(), marker))
            members = leader.node.membership.members
            if all(marker in self.servers[member].ledger.seen for member in members):
                return
        raise Violation(f"liveness: no progress in {ROUNDS_TO_RECOVER} rounds without faults")

    def _is_under_way(self, marker: bytes) -> bool:
        """Whether the last proposal is still in some leader's log."""
        for server in self.servers.values():
            node = server.node
            if node.is_leader:
                tail = range(max(node.log_offset + 1, node.last_index - 20), node.last_index + 1)
                if marker in server.ledger.seen or any(node.entry(index).data == marker for index in tail):
                    return True
        return False

    def _calm_round(self) -> None:
        for server in self.servers.values():
            self._run_step(server, RaftTick())
        for _ in range(4):
            messages, self.network = self.network, []
            for message in messages:
                if message.to in self.servers:
                    self._run_step(self.servers[message.to], Receive(message))

    def _check_acknowledged(self) -> None:
        """Nothing acknowledged is lost: the fullest ledger has all of it, at the acknowledged place."""
        ledger = max((server.ledger for server in self.servers.values()), key=lambda ledger: len(ledger.commands))
        for data, position in self.acknowledged:
            if position > len(ledger.commands) or ledger.commands[position - 1] != data:
                raise Violation(f"{data!r} was acknowledged as number {position} and is lost")


def simulate(seed: int, steps: int) -> dict[str, int]:
    """Run one seed. Raises Violation, which names the seed."""
    return Simulation(seed, steps).run()
