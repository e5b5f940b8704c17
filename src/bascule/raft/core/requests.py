"""Requests: proposals, reads, membership changes, leadership transfers. A follower forwards proposals and reads to the leader."""

from __future__ import annotations

from bascule import limits
from bascule.raft.core import leader
from bascule.raft.core.leadership import Leadership, Transfer
from bascule.raft.core.model.codec import encode_membership
from bascule.raft.core.model.effects import Proposed, ReadReady, Reason
from bascule.raft.core.model.entries import EntryKind, RaftSnapshot
from bascule.raft.core.model.events import ChangeMembership, Propose, ReadIndex, TakeSnapshot, TransferLeadership
from bascule.raft.core.model.membership import AddLearner, MembershipChange, PromoteLearner, RemoveServer, changed
from bascule.raft.core.model.messages import ForwardedProposal, ProposalReply, ReadReply, ReadRequest
from bascule.raft.core.state import State

# ── proposals ────────────────────────────────────────────────────────────────────────────────────


def on_propose(state: State, event: Propose) -> None:
    assert event.kind in (EntryKind.COMMAND, EntryKind.OPEN_SESSION), "only the core appends other kinds"
    leadership = state.leadership
    if leadership is None:
        _forward(state, event)
        return
    reason = _proposal_refused(state, leadership, event.data)
    if reason is not None:
        state.refuse(event.request, reason)
        return
    entry = leader.append(state, leadership, event.kind, event.data, event.session, event.sequence)
    state.proposed.append(Proposed(event.request, entry.index, entry.term))


def _forward(state: State, event: Propose) -> None:
    if state.leader is None:
        state.refuse(event.request, Reason.NO_LEADER)
    elif len(event.data) > state.options.proposal_bytes_max:
        state.refuse(event.request, Reason.TOO_LARGE)
    else:
        message = ForwardedProposal(
            state.id, state.leader, state.term, event.request, event.kind, event.data, event.session, event.sequence
        )
        state.send(message)


def on_forwarded_proposal(state: State, message: ForwardedProposal) -> None:
    if not state.is_known(message.sender):
        return
    leadership = state.leadership
    reason = Reason.NOT_LEADER if leadership is None else _proposal_refused(state, leadership, message.data)
    if leadership is None or reason is not None:
        state.send(ProposalReply(state.id, message.sender, state.term, message.request, 0, 0, reason))
        return
    entry = leader.append(state, leadership, message.kind, message.data, message.session, message.sequence)
    reply = ProposalReply(state.id, message.sender, state.term, message.request, entry.index, entry.term)
    state.send(reply)


def _proposal_refused(state: State, leadership: Leadership, data: bytes) -> Reason | None:
    if leadership.transfer is not None:
        return Reason.TRANSFERRING
    if len(data) > state.options.proposal_bytes_max:
        return Reason.TOO_LARGE
    if leadership.uncommitted_bytes >= state.options.uncommitted_bytes_max:
        return Reason.OVERLOADED
    return None


def on_proposal_reply(state: State, reply: ProposalReply) -> None:
    if reply.reason is not None:
        state.refuse(reply.request, reply.reason)
    else:
        state.proposed.append(Proposed(reply.request, reply.index, reply.entry_term))


# ── reads ────────────────────────────────────────────────────────────────────────────────────────


def on_read(state: State, event: ReadIndex) -> None:
    if state.leadership is not None:
        leader.read(state, state.leadership, event.request, state.id)
    elif state.leader is None:
        state.refuse(event.request, Reason.NO_LEADER)
    else:
        state.send(ReadRequest(state.id, state.leader, state.term, event.request))


def on_read_request(state: State, message: ReadRequest) -> None:
    if not state.is_known(message.sender):
        return
    if state.leadership is None:
        state.refuse_read(message.sender, message.request, Reason.NOT_LEADER)
    else:
        leader.read(state, state.leadership, message.request, message.sender)


def on_read_reply(state: State, reply: ReadReply) -> None:
    if reply.reason is not None:
        state.refuse(reply.request, reply.reason)
    elif reply.index <= state.commit_index:
        state.reads.append(ReadReady(reply.request, reply.index))
    elif len(state.awaited_reads) >= state.options.reads_pending_max:
        state.refuse(reply.request, Reason.OVERLOADED)
    else:
        state.awaited_reads.append(ReadReady(reply.request, reply.index))


# ── membership ───────────────────────────────────────────────────────────────────────────────────


def on_change_membership(state: State, event: ChangeMembership) -> None:
    leadership = state.leadership
    reason = Reason.NOT_LEADER if leadership is None else _change_refused(state, leadership, event.change)
    if leadership is None or reason is not None:
        state.refuse(event.request, reason or Reason.NOT_LEADER)
        return
    if event.change == RemoveServer(state.id):
        # If a leader removed itself, the group would have no leader for an election timeout. It transfers its leadership first,
        # and the next leader removes it (thesis §4.2.2).
        begin_transfer(state, leadership, 0, _heir(leadership, state))
        state.refuse(event.request, Reason.TRANSFERRING)
        return
    data = encode_membership(changed(state.membership, event.change))
    entry = leader.append(state, leadership, EntryKind.MEMBERSHIP, data)
    state.proposed.append(Proposed(event.request, entry.index, entry.term))


def _change_refused(state: State, leadership: Leadership, change: MembershipChange) -> Reason | None:
    if leadership.transfer is not None:
        return Reason.TRANSFERRING
    if state.commit_index < leadership.first_index:
        # Otherwise two leaders could commit changes with majorities that do not overlap (the erratum of 2015).
        return Reason.TERM_NOT_COMMITTED
    if state.memberships.latest_index > state.commit_index:
        return Reason.CHANGE_IN_FLIGHT
    return _change_is_wrong(state, leadership, change)


def _change_is_wrong(state: State, leadership: Leadership, change: MembershipChange) -> Reason | None:
    membership = state.membership
    match change:
        case AddLearner(server):
            if server in membership:
                return Reason.ALREADY_DONE
            return Reason.QUORUM_FULL if len(membership.members) >= limits.RAFT_MEMBERS_MAX else None
        case PromoteLearner(server):
            if server in membership.voters:
                return Reason.ALREADY_DONE
            if server not in membership.learners:
                return Reason.UNKNOWN_SERVER
            if 0 < state.options.voters_max <= len(membership.voters):
                return Reason.QUORUM_FULL
            return None if is_caught_up(state, leadership, server) else Reason.NOT_CAUGHT_UP
        case RemoveServer(server):
            if server not in membership:
                return Reason.ALREADY_DONE
            return Reason.LAST_VOTER if membership.voters == {server} else None


def is_caught_up(state: State, leadership: Leadership, server: str) -> bool:
    """Return whether a learner has enough entries to vote; otherwise commits would wait for it (thesis §4.2.1)."""
    progress = leadership.progress[server]
    return progress.is_active and progress.match_index + state.options.promotion_lag_max >= state.log.last_index


# ── transferring ─────────────────────────────────────────────────────────────────────────────────


def on_transfer_leadership(state: State, event: TransferLeadership) -> None:
    leadership = state.leadership
    if leadership is None:
        state.refuse(event.request, Reason.NOT_LEADER)
    elif leadership.transfer is not None:
        state.refuse(event.request, Reason.TRANSFERRING)
    elif event.target == state.id:
        state.refuse(event.request, Reason.ALREADY_DONE)
    elif event.target not in state.membership.voters:
        state.refuse(event.request, Reason.UNKNOWN_SERVER)
    else:
        begin_transfer(state, leadership, event.request, event.target)


def begin_transfer(state: State, leadership: Leadership, request: int, target: str) -> None:
    leadership.transfer = Transfer(request, target)
    leader.hand_over(state, leadership)


def _heir(leadership: Leadership, state: State) -> str:
    """Return the voter with the longest log."""
    others = sorted(state.membership.voters - {state.id})
    return max(others, key=lambda voter: leadership.progress[voter].match_index)


# ── compaction ───────────────────────────────────────────────────────────────────────────────────


def on_take_snapshot(state: State, event: TakeSnapshot) -> None:
    assert event.index <= state.applied_index, "a snapshot covers applied entries only"
    if event.index <= state.snapshot.index:
        return
    term = state.log.held_term(event.index)
    state.snapshot = RaftSnapshot(event.index, term, state.memberships.at(event.index), event.data)
    state.snapshot_taken = state.snapshot
    keep_from = max(state.log.offset, event.index - state.options.trailing_entries)
    state.memberships.compact_to(keep_from)
    state.log.compact_to(keep_from)
