"""The state of a node, and the transitions that all roles share. election.py, follower.py and leader.py have the rules."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum, unique

from bascule import limits
from bascule.raft.core.chance import SplitMix64
from bascule.raft.core.incoming import IncomingSnapshot
from bascule.raft.core.leadership import Leadership
from bascule.raft.core.log import EntryLog
from bascule.raft.core.model.codec import decode_membership
from bascule.raft.core.model.effects import Proposed, ReadReady, Reason, Refused
from bascule.raft.core.model.entries import Entry, EntryKind, HardState, RaftSnapshot
from bascule.raft.core.model.membership import MembershipHistory, RaftMembership
from bascule.raft.core.model.messages import RaftMessage, ReadReply
from bascule.raft.core.options import RaftOptions


@unique
class Role(IntEnum):
    FOLLOWER = 0
    PRE_CANDIDATE = 1
    CANDIDATE = 2
    LEADER = 3


class State:
    __slots__ = (
        "applied_index",
        "awaited_reads",
        "chance",
        "commit_index",
        "elapsed_ticks",
        "handed_over",
        "id",
        "incoming",
        "leader",
        "leadership",
        "log",
        "memberships",
        "messages",
        "messages_refused",
        "options",
        "proposed",
        "reads",
        "refused",
        "role",
        "snapshot",
        "snapshot_installed",
        "snapshot_taken",
        "term",
        "timeout_ticks",
        "unstable_index",
        "vote",
        "votes",
    )

    def __init__(
        self,
        server_id: str,
        options: RaftOptions,
        seed: int,
        hard_state: HardState,
        snapshot: RaftSnapshot,
        entries: Iterable[Entry],
    ) -> None:
        self.id = server_id
        self.options = options
        self.chance = SplitMix64(seed)
        self.term, self.vote = hard_state.term, hard_state.vote
        self.role = Role.FOLLOWER
        self.leader: str | None = None
        self.leadership: Leadership | None = None
        self.votes: dict[str, bool] = {}
        self.incoming: IncomingSnapshot | None = None
        self.awaited_reads: list[ReadReady] = []
        """Reads of this server that the leader has confirmed, and whose index is not committed here yet."""

        self.snapshot = snapshot
        self.log = EntryLog(snapshot.index, snapshot.term, entries)
        self.memberships = MembershipHistory(snapshot.index, snapshot.membership)
        for entry in self.log.slice(snapshot.index + 1, self.log.last_index):
            self.note_membership(entry)
        self.commit_index = self.applied_index = snapshot.index
        self.unstable_index = self.log.last_index + 1
        assert self.log.last_term <= self.term, "the log has entries of a later term than the hard state"
        self.messages: list[RaftMessage] = []
        self.messages_refused = 0
        """Received messages that contradict this node's state, so that no member of the group can have sent them."""
        self.proposed: list[Proposed] = []
        self.refused: list[Refused] = []
        self.reads: list[ReadReady] = []
        self.handed_over: list[int] = []
        self.snapshot_installed: RaftSnapshot | None = None
        self.snapshot_taken: RaftSnapshot | None = None
        self.reset_timer()
        if self.membership.voters == {server_id}:
            self.timeout_ticks = 1  # the only voter need not wait

    # ── identity ─────────────────────────────────────────────────────────────────────────────────

    @property
    def membership(self) -> RaftMembership:
        return self.memberships.latest

    def may_lead(self) -> bool:
        """Return whether this server may become leader: a voter, or a server whose removal is not known to be committed. The latter
        may have the longest log, and no other server could win (thesis §4.2.2); it then leads without counting itself."""
        return self.id in self.membership.voters or self.id in self.memberships.at(self.commit_index).voters

    def is_known(self, server: str) -> bool:
        return server in self.membership or server in self.memberships.at(self.commit_index)

    def trusts_leader(self) -> bool:
        """Return whether a leader was active within the minimum election timeout; votes for others are then refused (thesis §4.2.3)."""
        if self.role is Role.LEADER:
            return True
        return self.leader is not None and self.elapsed_ticks < self.options.election_ticks

    def is_possible_term(self, term: int) -> bool:
        """Return whether a member can have reached this term: each election raises it by one."""
        return term <= min(self.term + limits.RAFT_TERM_JUMP_MAX, limits.RAFT_NUMBER_MAX)

    # ── transitions ──────────────────────────────────────────────────────────────────────────────

    def become_follower(self, term: int, leader: str | None) -> None:
        assert term >= self.term, "terms never fall"
        if term > self.term:
            self.term, self.vote = term, None
        if self.leadership is not None:
            self._lay_down(self.leadership)
        self.role = Role.FOLLOWER
        self.leader = leader
        self.votes = {}
        self.reset_timer()

    def _lay_down(self, leadership: Leadership) -> None:
        self.leadership = None
        for read in leadership.reads.drain():
            self.refuse_read(read.origin, read.request, Reason.LEADERSHIP_LOST)
        if leadership.transfer is not None and leadership.transfer.request:
            self.handed_over.append(leadership.transfer.request)

    def reset_timer(self) -> None:
        self.elapsed_ticks = 0
        self.timeout_ticks = self.options.election_ticks + self.chance.below(self.options.election_ticks)

    def commit_to(self, index: int) -> None:
        assert self.commit_index <= index <= self.log.last_index, "the commit index is in the log and never falls"
        self.commit_index = index
        if self.awaited_reads:
            self.reads += [read for read in self.awaited_reads if read.index <= index]
            self.awaited_reads = [read for read in self.awaited_reads if read.index > index]

    # ── the log ──────────────────────────────────────────────────────────────────────────────────

    def append(self, entry: Entry) -> None:
        self.log.append(entry)
        self.note_membership(entry)

    def truncate_from(self, index: int) -> None:
        assert index > self.commit_index, "committed entries are not truncated"
        self.log.truncate_from(index)
        self.memberships.truncate_from(index)
        self.unstable_index = min(self.unstable_index, index)

    def note_membership(self, entry: Entry) -> None:
        if entry.kind is EntryKind.MEMBERSHIP:
            self.memberships.append(entry.index, decode_membership(entry.data))

    # ── answers ──────────────────────────────────────────────────────────────────────────────────

    def send(self, message: RaftMessage) -> None:
        self.messages.append(message)

    def refuse(self, request: int, reason: Reason) -> None:
        self.refused.append(Refused(request, reason, self.leader if self.leader != self.id else None))

    def refuse_read(self, origin: str, request: int, reason: Reason) -> None:
        if origin == self.id:
            self.refuse(request, reason)
        else:
            self.send(ReadReply(self.id, origin, self.term, request, 0, reason))
