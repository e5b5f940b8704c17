"""The leader: appends, commits, and sends entries to followers. (Raft paper §5.3, §5.4.2, §7; thesis §6.2, §6.4.)"""

from __future__ import annotations

from bascule.raft.core.leadership import Leadership
from bascule.raft.core.model.effects import ReadReady, Reason
from bascule.raft.core.model.entries import Entry, EntryKind
from bascule.raft.core.model.messages import (
    AppendEntries,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    ReadReply,
    SnapshotChunk,
    SnapshotReply,
    TimeoutNow,
)
from bascule.raft.core.progress import PeerProgress, ProgressState
from bascule.raft.core.state import Role, State


def take_office(state: State) -> None:
    state.role = Role.LEADER
    state.leader = state.id
    state.incoming = None
    state.leadership = Leadership(first_index=state.log.last_index + 1)
    follow_members(state, state.leadership)
    # Committing this entry commits entries of earlier terms, which are never counted (paper §5.4.2).
    append(state, state.leadership, EntryKind.NOOP)


def follow_members(state: State, leadership: Leadership) -> None:
    """Keep one progress for each other member, after the membership has changed."""
    before = leadership.progress
    next_index = state.log.last_index + 1
    leadership.progress = {
        member: before.get(member) or PeerProgress(next_index)
        for member in state.membership.members
        if member != state.id
    }


def append(
    state: State, leadership: Leadership, kind: EntryKind, data: bytes = b"", session: int = 0, sequence: int = 0
) -> Entry:
    entry = Entry(state.log.last_index + 1, state.term, kind, data, session, sequence)
    state.append(entry)
    leadership.uncommitted_bytes += entry.size_bytes
    if kind is EntryKind.MEMBERSHIP:
        follow_members(state, leadership)
    replicate_all(state, leadership)
    advance_commit(state, leadership)
    return entry


# ── time ─────────────────────────────────────────────────────────────────────────────────────────


def tick(state: State, leadership: Leadership) -> None:
    leadership.quorum_ticks += 1
    if leadership.quorum_ticks >= state.options.election_ticks:
        leadership.quorum_ticks = 0
        if not _quorum_is_active(state, leadership):
            # Check-quorum (thesis §6.2): clients of an isolated leader should look for another one.
            state.become_follower(state.term, None)
            return
    _tick_transfer(state, leadership)
    leadership.heartbeat_ticks += 1
    if leadership.heartbeat_ticks >= state.options.heartbeat_ticks:
        leadership.heartbeat_ticks = 0
        send_heartbeats(state, leadership)
        _repeat_chunks(state, leadership)


def _quorum_is_active(state: State, leadership: Leadership) -> bool:
    active = [member for member, progress in leadership.progress.items() if progress.is_active]
    for progress in leadership.progress.values():
        progress.is_active = False
    return state.membership.is_quorum([state.id, *active])


def _tick_transfer(state: State, leadership: Leadership) -> None:
    transfer = leadership.transfer
    if transfer is None:
        return
    transfer.ticks += 1
    if transfer.ticks >= state.options.election_ticks:
        leadership.transfer = None
        if transfer.request:
            state.refuse(transfer.request, Reason.TRANSFER_ABORTED)


def send_heartbeats(state: State, leadership: Leadership) -> None:
    for member, progress in leadership.progress.items():
        commit_index = min(progress.match_index, state.commit_index)
        state.send(Heartbeat(state.id, member, state.term, commit_index, leadership.reads.round))


# ── replication ──────────────────────────────────────────────────────────────────────────────────


def replicate_all(state: State, leadership: Leadership) -> None:
    for member, progress in leadership.progress.items():
        replicate(state, member, progress)


def replicate(state: State, member: str, progress: PeerProgress) -> None:
    """Send missing entries to the follower, within the limits, and the commit index if it has changed."""
    while progress.can_append(state.options.appends_inflight_max):
        if progress.next_index <= state.log.offset:
            _begin_snapshot(state, member, progress)
            return
        if progress.next_index > state.log.last_index and progress.commit_sent >= state.commit_index:
            return
        _send_append(state, member, progress)


def _send_append(state: State, member: str, progress: PeerProgress) -> None:
    previous_index = progress.next_index - 1
    previous_term = state.log.held_term(previous_index)
    entries = state.log.slice_bytes(progress.next_index, state.options.append_bytes_max)
    state.send(AppendEntries(state.id, member, state.term, previous_index, previous_term, entries, state.commit_index))
    progress.commit_sent = state.commit_index
    progress.sent(previous_index + len(entries))


def _probe(state: State, member: str, progress: PeerProgress) -> None:
    """Send an append without entries after the last sent entry: the follower rejects it if entries were lost."""
    previous_index = progress.next_index - 1
    previous_term = state.log.term(previous_index)
    if previous_term is None:
        # Compacted meanwhile: entries that were lost cannot be sent again.
        progress.become_probe()
        return
    state.send(AppendEntries(state.id, member, state.term, previous_index, previous_term, (), state.commit_index))


def on_append_reply(state: State, leadership: Leadership, reply: AppendReply) -> None:
    progress = leadership.progress.get(reply.sender)
    if progress is None or reply.index > state.log.last_index:
        return
    progress.is_active = True
    if not reply.is_accepted:
        agreed_index = state.log.last_index_below(reply.hint_index, reply.hint_term)
        if progress.rejected(reply.index, agreed_index):
            replicate(state, reply.sender, progress)
        return
    is_news = progress.accepted(reply.index)
    if progress.snapshot is not None and progress.match_index >= min(progress.snapshot.index, state.log.offset):
        # The snapshot is installed. If more entries were compacted meanwhile, the next snapshot follows.
        progress.leave_snapshot()
    if is_news:
        advance_commit(state, leadership)
    if state.leadership is leadership:
        replicate(state, reply.sender, progress)
        hand_over(state, leadership)


def on_heartbeat_reply(state: State, leadership: Leadership, reply: HeartbeatReply) -> None:
    progress = leadership.progress.get(reply.sender)
    if progress is None:
        return
    progress.is_active = True
    if progress.read_round < reply.read_round <= leadership.reads.round:
        progress.read_round = reply.read_round
        answer_reads(state, leadership)
    progress.is_paused = False
    if progress.match_index >= state.log.last_index:
        return
    if progress.state is ProgressState.REPLICATE:
        _probe(state, reply.sender, progress)
    replicate(state, reply.sender, progress)


def advance_commit(state: State, leadership: Leadership) -> None:
    """Commit the entries that a majority of voters holds, if the last one is of this term (paper §5.4.2, Figure 8)."""
    voters = state.membership.voters
    progress = leadership.progress
    matches = sorted(state.log.last_index if voter == state.id else progress[voter].match_index for voter in voters)
    index = matches[(len(matches) - 1) // 2]
    if index <= state.commit_index or state.log.term(index) != state.term:
        return
    committed = state.log.slice(max(state.commit_index + 1, leadership.first_index), index)
    leadership.uncommitted_bytes -= sum(entry.size_bytes for entry in committed)
    state.commit_to(index)
    replicate_all(state, leadership)
    answer_reads(state, leadership)
    if state.id not in voters and state.memberships.latest_index <= index:
        # The removal of this leader is committed (thesis §4.2.2), so it can step down.
        state.become_follower(state.term, None)


# ── snapshots ────────────────────────────────────────────────────────────────────────────────────


def _begin_snapshot(state: State, member: str, progress: PeerProgress) -> None:
    progress.become_snapshot(state.snapshot)
    _send_chunk(state, member, progress)


def _send_chunk(state: State, member: str, progress: PeerProgress) -> None:
    snapshot, position = progress.snapshot, progress.snapshot_position
    assert snapshot is not None, "a follower in the state SNAPSHOT has one"
    data = snapshot.data[position : position + state.options.snapshot_chunk_bytes]
    progress.quiet_ticks = 0
    state.send(
        SnapshotChunk(
            state.id,
            member,
            state.term,
            snapshot.index,
            snapshot.term,
            snapshot.membership,
            len(snapshot.data),
            position,
            data,
        )
    )


def on_snapshot_reply(state: State, leadership: Leadership, reply: SnapshotReply) -> None:
    progress = leadership.progress.get(reply.sender)
    if progress is None:
        return
    progress.is_active = True
    snapshot = progress.snapshot
    if snapshot is None or (snapshot.index, snapshot.term) != (reply.index, reply.snapshot_term):
        return
    if reply.received_bytes == progress.snapshot_position or reply.received_bytes >= len(snapshot.data):
        # A duplicate: the next chunk is already sent.
        return
    if reply.received_bytes == 0:
        # The follower has lost its chunks: start again with the newest snapshot.
        progress.become_snapshot(state.snapshot)
    else:
        progress.snapshot_position = reply.received_bytes
    _send_chunk(state, reply.sender, progress)


def _repeat_chunks(state: State, leadership: Leadership) -> None:
    for member, progress in leadership.progress.items():
        if progress.state is ProgressState.SNAPSHOT:
            progress.quiet_ticks += state.options.heartbeat_ticks
            if progress.quiet_ticks >= state.options.election_ticks:
                _send_chunk(state, member, progress)


# ── reads ────────────────────────────────────────────────────────────────────────────────────────


def read(state: State, leadership: Leadership, request: int, origin: str) -> None:
    if len(leadership.reads) >= state.options.reads_pending_max:
        state.refuse_read(origin, request, Reason.OVERLOADED)
        return
    leadership.reads.add(request, origin, max(state.commit_index, leadership.first_index))
    send_heartbeats(state, leadership)
    answer_reads(state, leadership)


def answer_reads(state: State, leadership: Leadership) -> None:
    def is_confirmed(read_round: int) -> bool:
        answered = [member for member, progress in leadership.progress.items() if progress.read_round >= read_round]
        return state.membership.is_quorum([state.id, *answered])

    for pending in leadership.reads.confirmed(is_confirmed, state.commit_index):
        if pending.origin == state.id:
            state.reads.append(ReadReady(pending.request, pending.index))
        else:
            state.send(ReadReply(state.id, pending.origin, state.term, pending.request, pending.index))


# ── transferring ─────────────────────────────────────────────────────────────────────────────────


def hand_over(state: State, leadership: Leadership) -> None:
    """Tell the target of a transfer to start an election once it has all entries."""
    transfer = leadership.transfer
    if transfer is None:
        return
    progress = leadership.progress.get(transfer.target)
    if progress is not None and progress.match_index == state.log.last_index:
        state.send(TimeoutNow(state.id, transfer.target, state.term))
