"""Messages that no member of a group can have sent: a node refuses and counts them, and goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bascule import limits
from bascule.raft.core.model.entries import Entry, EntryKind, HardState, RaftSnapshot
from bascule.raft.core.model.events import RaftTick, Receive
from bascule.raft.core.model.membership import RaftMembership
from bascule.raft.core.model.message_codec import RefusedMessage, decode_message, encode_message
from bascule.raft.core.model.messages import (
    AppendEntries,
    Heartbeat,
    HeartbeatReply,
    RaftMessage,
    SnapshotChunk,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from bascule.raft.core.node import RaftNode
from bascule.raft.core.options import RaftOptions

VOTERS = RaftMembership(voters=frozenset({"a", "b", "c"}))
TERM = 5


OPTIONS = RaftOptions(election_ticks=10, heartbeat_ticks=2)


def node(*entries: Entry, options: RaftOptions = OPTIONS) -> RaftNode:
    return RaftNode(
        "a",
        options=options,
        seed=1,
        hard_state=HardState(TERM, None),
        snapshot=RaftSnapshot(0, 0, VOTERS, b""),
        entries=entries,
    )


def leader() -> RaftNode:
    found = node()
    while found.term == TERM:
        for message in found.step(RaftTick()).messages:
            if isinstance(message, VoteRequest) and message.is_pre_vote:
                found.step(Receive(VoteReply(message.to, "a", message.term, True, is_pre_vote=True)))
    found.step(Receive(VoteReply("b", "a", found.term, True)))
    assert found.is_leader
    return found


def command(index: int, term: int = TERM) -> Entry:
    return Entry(index, term, EntryKind.COMMAND, b"x")


@pytest.mark.parametrize(
    "message",
    [
        Heartbeat("b", "a", limits.RAFT_NUMBER_MAX, 0, 0),
        TimeoutNow("b", "a", limits.RAFT_NUMBER_MAX),
        VoteRequest("b", "a", limits.RAFT_NUMBER_MAX, 1, 1, False, True),
        VoteReply("b", "a", limits.RAFT_NUMBER_MAX, False),
        HeartbeatReply("b", "a", TERM + limits.RAFT_TERM_JUMP_MAX + 1, 0),
    ],
)
def test_a_term_that_no_election_can_have_reached_is_refused(message: RaftMessage) -> None:
    found = node()
    assert found.step(Receive(message)).messages == ()
    assert (found.term, found.messages_refused) == (TERM, 1)


def test_a_heartbeat_in_the_term_of_a_leader_does_not_disturb_it() -> None:
    found = leader()
    for message in (Heartbeat("b", "a", found.term, 0, 0), AppendEntries("c", "a", found.term, 0, 0, (), 0)):
        assert found.step(Receive(message)).messages == ()
    assert found.is_leader
    assert found.messages_refused == 2


def test_a_second_leader_of_one_term_is_refused() -> None:
    found = node()
    found.step(Receive(Heartbeat("b", "a", TERM, 0, 0)))
    found.step(Receive(Heartbeat("c", "a", TERM, 0, 0)))
    assert (found.leader, found.messages_refused) == ("b", 1)


def test_a_heartbeat_cannot_commit_entries_that_are_not_there() -> None:
    found = node(command(1))
    found.step(Receive(Heartbeat("b", "a", TERM, 1 << 40, 0)))
    assert (found.commit_index, found.messages_refused) == (0, 1)


def test_entries_below_the_term_of_a_committed_one_are_refused() -> None:
    found = node(command(1, 4))
    found.step(Receive(AppendEntries("b", "a", TERM, 1, 4, (), 1)))
    assert found.commit_index == 1
    forged = AppendEntries("b", "a", TERM, 1, 2, (command(2, 3),), 2)
    found.step(Receive(forged))
    assert (found.last_index, found.messages_refused) == (1, 1)


def test_a_snapshot_that_cannot_be_restored_changes_nothing() -> None:
    options = RaftOptions(election_ticks=10, heartbeat_ticks=2, is_snapshot=lambda data: data == b"good")
    found = node(options=options)
    chunk = SnapshotChunk("b", "a", TERM, 7, TERM, VOTERS, 4, 0, b"evil")
    effects = found.step(Receive(chunk))
    assert (effects.snapshot_installed, found.commit_index, found.messages_refused) == (None, 0, 1)
    effects = found.step(Receive(replace(chunk, data=b"good")))
    assert effects.snapshot_installed is not None
    assert found.commit_index == 7


def test_a_read_round_that_did_not_begin_confirms_no_read() -> None:
    found = leader()
    found.step(Receive(HeartbeatReply("b", "a", found.term, limits.RAFT_NUMBER_MAX)))
    assert found.is_leader


@pytest.mark.parametrize(
    "message",
    [
        Heartbeat("b", "a", (1 << 64) - 1, 0, 0),
        Heartbeat("b", "a", 1, (1 << 64) - 1, 0),
        HeartbeatReply("b", "a", 1, (1 << 64) - 1),
        AppendEntries("b", "a", (1 << 63) - 1, 0, 0, (Entry(1, 1 << 63, EntryKind.COMMAND, b""),), 0),
    ],
)
def test_numbers_beyond_the_bound_do_not_reach_the_node(message: RaftMessage) -> None:
    with pytest.raises(RefusedMessage):
        decode_message(encode_message(message, "cluster"), "cluster")
