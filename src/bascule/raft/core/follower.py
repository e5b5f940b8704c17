"""The follower: appends, heartbeats and snapshots of a leader. (Raft paper §5.3, §7.)"""

from __future__ import annotations

from bascule.raft.core.incoming import IncomingSnapshot
from bascule.raft.core.log import EntryLog
from bascule.raft.core.model.entries import RaftSnapshot
from bascule.raft.core.model.membership import MembershipHistory
from bascule.raft.core.model.messages import (
    AppendEntries,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    RaftMessage,
    SnapshotChunk,
    SnapshotReply,
)
from bascule.raft.core.state import Role, State

FromLeader = AppendEntries | Heartbeat | SnapshotChunk


def can_be_from_leader(state: State, message: RaftMessage) -> bool:
    """Return whether the leader of the message's term, not below this node's, can have sent it. A term has one leader, a heartbeat
    commits entries that this node has confirmed, and the terms of a log never fall."""
    if message.term == state.term and state.leader is not None and message.sender != state.leader:
        return False
    match message:
        case Heartbeat():
            return message.commit_index <= state.log.last_index
        case AppendEntries():
            return _fits_log(state, message)
    return True


def _fits_log(state: State, append: AppendEntries) -> bool:
    """Return whether entries after the commit index have no lower term than the last committed entry."""
    uncommitted = [entry for entry in append.entries if entry.index > state.commit_index]
    return not uncommitted or uncommitted[0].term >= (state.log.term(state.commit_index) or 0)


def hear_leader(state: State, message: FromLeader) -> None:
    if state.role is not Role.FOLLOWER:
        state.become_follower(message.term, message.sender)
    state.leader = message.sender
    state.elapsed_ticks = 0


def answer_deposed(state: State, message: FromLeader) -> None:
    """Answer a leader of an older term with the present term, so that it steps down."""
    state.send(AppendReply(state.id, message.sender, state.term, is_accepted=False, index=0))


# ── appends ──────────────────────────────────────────────────────────────────────────────────────


def on_append(state: State, append: AppendEntries) -> None:
    hear_leader(state, append)
    if append.previous_index > state.commit_index and state.log.term(append.previous_index) != append.previous_term:
        _reject(state, append)
        return
    _take(state, append)
    match_index = append.previous_index + len(append.entries)
    # Only up to `match_index`: later entries may come from another leader.
    state.commit_to(max(state.commit_index, min(append.commit_index, match_index)))
    match_index = max(match_index, state.commit_index)
    state.send(AppendReply(state.id, append.sender, state.term, is_accepted=True, index=match_index))


def _take(state: State, append: AppendEntries) -> None:
    """Append the new entries. Only a conflict truncates the log, because a delayed append may be shorter than the log."""
    for position, entry in enumerate(append.entries):
        if entry.index <= state.commit_index:
            continue
        term = state.log.term(entry.index)
        if term == entry.term:
            continue
        if term is not None:
            state.truncate_from(entry.index)
        for new in append.entries[position:]:
            state.append(new)
        return


def _reject(state: State, append: AppendEntries) -> None:
    """Reject the append with a hint where the logs may agree, one term at a time (paper §5.3, the last paragraphs)."""
    hint_index = state.log.last_index_below(append.previous_index, append.previous_term)
    hint_term = state.log.held_term(hint_index)
    reply = AppendReply(
        state.id,
        append.sender,
        state.term,
        is_accepted=False,
        index=append.previous_index,
        hint_index=hint_index,
        hint_term=hint_term,
    )
    state.send(reply)


def on_heartbeat(state: State, heartbeat: Heartbeat) -> None:
    hear_leader(state, heartbeat)
    if heartbeat.commit_index > state.commit_index:
        state.commit_to(heartbeat.commit_index)
    state.send(HeartbeatReply(state.id, heartbeat.sender, state.term, heartbeat.read_round))


# ── snapshots ────────────────────────────────────────────────────────────────────────────────────


def on_snapshot_chunk(state: State, chunk: SnapshotChunk) -> None:
    hear_leader(state, chunk)
    if chunk.index <= state.commit_index:
        # The log already contains the snapshot.
        state.incoming = None
        _confirm_commit(state, chunk.sender)
        return
    if chunk.total_bytes > state.options.snapshot_bytes_max:
        return
    if state.incoming is None or not state.incoming.is_of(chunk):
        state.incoming = IncomingSnapshot.begun_by(chunk)
    snapshot = state.incoming.add(chunk)
    if snapshot is None:
        received = len(state.incoming.data)
        state.send(SnapshotReply(state.id, chunk.sender, state.term, chunk.index, chunk.snapshot_term, received))
        return
    state.incoming = None
    if not state.options.is_snapshot(snapshot.data):
        state.messages_refused += 1
        return
    _install(state, snapshot)
    _confirm_commit(state, chunk.sender)


def _confirm_commit(state: State, sender: str) -> None:
    state.send(AppendReply(state.id, sender, state.term, is_accepted=True, index=state.commit_index))


def _install(state: State, snapshot: RaftSnapshot) -> None:
    if state.log.term(snapshot.index) == snapshot.term:
        # The log holds the last entry of the snapshot, and therefore all before it.
        state.commit_to(snapshot.index)
        return
    state.snapshot = state.snapshot_installed = snapshot
    state.log = EntryLog(snapshot.index, snapshot.term)
    state.memberships = MembershipHistory(snapshot.index, snapshot.membership)
    state.unstable_index = snapshot.index + 1
    state.applied_index = snapshot.index
    state.commit_to(snapshot.index)
