"""One member of the group as a state machine: an event in, effects out. No clock, no socket, no file.

The shell's duties, in this order, for each step (or for several steps at once, all of one kind before the next):

    1. persist   hard state, snapshot and entries, durably
    2. send      the messages
    3. apply     the snapshot and the committed entries, then answer proposals and reads

A node counts its own entries as durable when it returns them, so the shell must persist them before it sends or applies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from bascule.raft.core import election, follower, leader, requests
from bascule.raft.core.model.effects import Effects
from bascule.raft.core.model.entries import Entry, HardState, RaftSnapshot
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
from bascule.raft.core.model.membership import RaftMembership
from bascule.raft.core.model.messages import (
    AppendEntries,
    AppendReply,
    ForwardedProposal,
    Heartbeat,
    HeartbeatReply,
    ProposalReply,
    RaftMessage,
    ReadReply,
    ReadRequest,
    SnapshotChunk,
    SnapshotReply,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from bascule.raft.core.options import RaftOptions
from bascule.raft.core.state import Role, State

NOTHING: Final = Effects()


class RaftNode:
    __slots__ = ("_saved", "_state")

    def __init__(
        self,
        server_id: str,
        *,
        options: RaftOptions,
        seed: int,
        hard_state: HardState,
        snapshot: RaftSnapshot,
        entries: Iterable[Entry] = (),
    ) -> None:
        """`entries` continue `snapshot`, as the durable log has them. A new group begins with a snapshot of index 0 with its voters;
        a server that joins a group begins with an empty one."""
        self._state = State(server_id, options, seed, hard_state, snapshot, entries)
        self._saved = hard_state

    def step(self, event: Event) -> Effects:
        state = self._state
        if type(event) is RaftTick:
            if state.leadership is not None:
                leader.tick(state, state.leadership)
            else:
                election.tick(state)
        elif type(event) is Receive:
            _receive(state, event.message)
        else:
            _REQUESTS[type(event)](state, event)
        return self._effects(state)

    def _effects(self, state: State) -> Effects:
        hard_state = None
        if state.term != self._saved.term or state.vote != self._saved.vote:
            hard_state = self._saved = HardState(state.term, state.vote)
        entries: tuple[Entry, ...] = ()
        if state.unstable_index <= state.log.last_index:
            entries = state.log.slice(state.unstable_index, state.log.last_index)
            state.unstable_index = state.log.last_index + 1
        committed: tuple[Entry, ...] = ()
        if state.applied_index < state.commit_index:
            committed = state.log.slice(state.applied_index + 1, state.commit_index)
            state.applied_index = state.commit_index
        effects = Effects(
            hard_state,
            state.snapshot_installed,
            state.snapshot_taken,
            entries,
            tuple(state.messages),
            committed,
            tuple(state.proposed),
            tuple(state.refused),
            tuple(state.reads),
            tuple(state.handed_over),
        )
        state.snapshot_installed = state.snapshot_taken = None
        for outbox in (state.messages, state.proposed, state.refused, state.reads, state.handed_over):
            outbox.clear()
        return effects

    # ── inspection ──────────────────────────────────────────────────────────────────────────────

    @property
    def id(self) -> str:
        return self._state.id

    @property
    def role(self) -> Role:
        return self._state.role

    @property
    def is_leader(self) -> bool:
        return self._state.role is Role.LEADER

    @property
    def leader(self) -> str | None:
        return self._state.leader

    @property
    def term(self) -> int:
        return self._state.term

    @property
    def commit_index(self) -> int:
        return self._state.commit_index

    @property
    def applied_index(self) -> int:
        """Entries up to this index were returned to be applied."""
        return self._state.applied_index

    @property
    def snapshot(self) -> RaftSnapshot:
        return self._state.snapshot

    @property
    def membership(self) -> RaftMembership:
        """The latest membership in the log, committed or not."""
        return self._state.membership

    @property
    def messages_refused(self) -> int:
        """Received messages that contradict this node's state, so that no member of the group can have sent them."""
        return self._state.messages_refused

    @property
    def log_offset(self) -> int:
        return self._state.log.offset

    @property
    def last_index(self) -> int:
        return self._state.log.last_index

    def entry(self, index: int) -> Entry:
        return self._state.log.entry(index)

    def term_at(self, index: int) -> int | None:
        return self._state.log.term(index)

    def match_index(self, server: str) -> int | None:
        """Return the index up to which a follower's log equals that of this leader. Leader only."""
        leadership = self._state.leadership
        progress = None if leadership is None else leadership.progress.get(server)
        return None if progress is None else progress.match_index

    @property
    def promotable(self) -> list[str]:
        """The learners that can become voters now. Leader only."""
        state = self._state
        if state.leadership is None or 0 < state.options.voters_max <= len(state.membership.voters):
            return []
        leadership = state.leadership
        return [one for one in sorted(state.membership.learners) if requests.is_caught_up(state, leadership, one)]


# ── messages ─────────────────────────────────────────────────────────────────────────────────────


def _receive(state: State, message: RaftMessage) -> None:
    if message.to != state.id or message.sender == state.id:
        return
    if not state.is_possible_term(message.term):
        state.messages_refused += 1
        return
    kind = type(message)
    if kind in _WITHOUT_TERM:
        _WITHOUT_TERM[kind](state, message)
    elif kind is VoteRequest:
        election.on_vote_request(state, message)  # type: ignore[arg-type]
    elif kind in _REPLIES:
        # Replies of servers that are not members are ignored, their terms included.
        if state.is_known(message.sender):
            _receive_reply(state, message)
    else:
        _receive_from_leader(state, message)


def _receive_from_leader(state: State, message: RaftMessage) -> None:
    if message.term < state.term:
        if not isinstance(message, TimeoutNow):
            follower.answer_deposed(state, message)  # type: ignore[arg-type]
        return
    if not follower.can_be_from_leader(state, message):
        state.messages_refused += 1
        return
    if message.term > state.term:
        state.become_follower(message.term, message.sender)
    _FROM_LEADER[type(message)](state, message)


def _receive_reply(state: State, message: RaftMessage) -> None:
    is_pre_vote = isinstance(message, VoteReply) and message.is_pre_vote and message.is_granted
    if message.term > state.term and not is_pre_vote:
        state.become_follower(message.term, None)
        return
    if message.term < state.term:
        return
    if isinstance(message, VoteReply):
        election.on_vote_reply(state, message)
    elif state.leadership is not None:
        _REPLIES[type(message)](state, state.leadership, message)


_REQUESTS: Final[dict[type, Callable[[State, Any], None]]] = {
    Propose: requests.on_propose,
    ReadIndex: requests.on_read,
    ChangeMembership: requests.on_change_membership,
    TransferLeadership: requests.on_transfer_leadership,
    TakeSnapshot: requests.on_take_snapshot,
}

_WITHOUT_TERM: Final[dict[type, Callable[[State, Any], None]]] = {
    ForwardedProposal: requests.on_forwarded_proposal,
    ProposalReply: requests.on_proposal_reply,
    ReadRequest: requests.on_read_request,
    ReadReply: requests.on_read_reply,
}

_FROM_LEADER: Final[dict[type, Callable[[State, Any], None]]] = {
    AppendEntries: follower.on_append,
    Heartbeat: follower.on_heartbeat,
    SnapshotChunk: follower.on_snapshot_chunk,
    TimeoutNow: election.on_timeout_now,
}

_REPLIES: Final[dict[type, Callable[..., None]]] = {
    AppendReply: leader.on_append_reply,
    HeartbeatReply: leader.on_heartbeat_reply,
    SnapshotReply: leader.on_snapshot_reply,
    VoteReply: election.on_vote_reply,
}
