"""Elections: pre-vote and vote. (Raft paper §5.2, §5.4.1; thesis §4.2.3, §9.6.)"""

from __future__ import annotations

from bascule.raft.core import leader
from bascule.raft.core.model.messages import TimeoutNow, VoteReply, VoteRequest
from bascule.raft.core.state import Role, State


def tick(state: State) -> None:
    state.elapsed_ticks += 1
    if state.elapsed_ticks >= state.timeout_ticks:
        campaign(state, is_pre_vote=True)


def campaign(state: State, *, is_pre_vote: bool, is_transfer: bool = False) -> None:
    """Request votes. A pre-vote does not increase the term, so a server that cannot win does not disturb the others (thesis §9.6)."""
    state.reset_timer()
    state.leader = None
    if not state.may_lead():
        return
    state.votes = {state.id: True}
    if is_pre_vote:
        state.role = Role.PRE_CANDIDATE
    else:
        state.role = Role.CANDIDATE
        state.term, state.vote = state.term + 1, state.id
    if state.membership.is_quorum(state.votes):
        _win(state, is_pre_vote=is_pre_vote)
        return
    term = state.term + 1 if is_pre_vote else state.term
    last_index, last_term = state.log.last_index, state.log.last_term
    for voter in sorted(state.membership.voters - {state.id}):
        state.send(VoteRequest(state.id, voter, term, last_index, last_term, is_pre_vote, is_transfer))


def _win(state: State, *, is_pre_vote: bool) -> None:
    if is_pre_vote:
        campaign(state, is_pre_vote=False)
    else:
        leader.take_office(state)


# ── as a voter ───────────────────────────────────────────────────────────────────────────────────
# A server answers candidates that are not in its membership: theirs may be newer (thesis §4.1). A learner answers too, because a
# candidate asks it only if it is a voter in the candidate's log.


def on_vote_request(state: State, request: VoteRequest) -> None:
    if request.is_pre_vote:
        _answer_pre_vote(state, request)
        return
    if request.term > state.term:
        if state.trusts_leader() and not request.is_transfer:
            return
        state.become_follower(request.term, None)
    is_granted = (
        request.term == state.term
        and (state.vote == request.sender or (state.vote is None and state.leader is None))
        and _is_up_to_date(state, request)
    )
    if is_granted:
        state.vote = request.sender
        state.reset_timer()
    state.send(VoteReply(state.id, request.sender, state.term, is_granted))


def _answer_pre_vote(state: State, request: VoteRequest) -> None:
    is_granted = request.term > state.term and _is_up_to_date(state, request) and not state.trusts_leader()
    term = request.term if is_granted else state.term
    state.send(VoteReply(state.id, request.sender, term, is_granted, is_pre_vote=True))


def _is_up_to_date(state: State, request: VoteRequest) -> bool:
    """The election restriction (paper §5.4.1): a candidate that lacks a committed entry cannot win."""
    return (request.last_term, request.last_index) >= (state.log.last_term, state.log.last_index)


# ── as a candidate ───────────────────────────────────────────────────────────────────────────────


def on_vote_reply(state: State, reply: VoteReply) -> None:
    asked = Role.PRE_CANDIDATE if reply.is_pre_vote else Role.CANDIDATE
    if state.role is not asked or (reply.is_pre_vote and reply.is_granted and reply.term != state.term + 1):
        return
    state.votes[reply.sender] = reply.is_granted
    if state.membership.is_quorum(server for server, is_granted in state.votes.items() if is_granted):
        _win(state, is_pre_vote=reply.is_pre_vote)
    elif state.membership.is_quorum(server for server, is_granted in state.votes.items() if not is_granted):
        state.become_follower(state.term, None)


def on_timeout_now(state: State, message: TimeoutNow) -> None:
    """Start an election at once, because the leader transfers its leadership (thesis §3.10). Voters must not refuse it."""
    if state.role is Role.FOLLOWER and state.leader in (None, message.sender):
        campaign(state, is_pre_vote=False, is_transfer=True)
