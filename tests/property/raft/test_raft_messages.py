"""Bytes of Raft messages: what is encoded is decoded, and anything else is refused before a node sees it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.raft.core.model.effects import Reason
from bascule.raft.core.model.entries import Entry, EntryKind
from bascule.raft.core.model.membership import RaftMembership
from bascule.raft.core.model.message_codec import RefusedMessage, decode_message, encode_message
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

CLUSTER = "cluster-1"
MEMBERSHIP = RaftMembership(frozenset({"A", "B", "ß"}), frozenset({"D"}))
NUMBER = st.integers(0, 2**63 - 1)

SAMPLES: list[RaftMessage] = [
    VoteRequest("A", "B", 5, 9, 4, is_pre_vote=True),
    VoteRequest("A", "B", 5, 0, 0, is_transfer=True),
    VoteReply("A", "B", 5, True),
    TimeoutNow("A", "B", 5),
    AppendEntries("A", "B", 5, 0, 0, (), 0),
    AppendEntries("A", "B", 5, 7, 3, (Entry(8, 3, EntryKind.NOOP), Entry(9, 5, EntryKind.COMMAND, b"data", 2, 17)), 12),
    AppendReply("A", "B", 5, False, 7, 3, 2),
    Heartbeat("A", "B", 5, 7, 3),
    HeartbeatReply("A", "B", 5, 3),
    SnapshotChunk("A", "B", 5, 7, 3, MEMBERSHIP, 100, 10, b"piece"),
    SnapshotChunk("A", "B", 5, 7, 3, MEMBERSHIP, 0, 0, b""),
    SnapshotReply("A", "B", 5, 7, 3, 15),
    ForwardedProposal("A", "B", 5, 99, EntryKind.OPEN_SESSION, b"nonce", 0, 0),
    ForwardedProposal("A", "B", 5, 99, EntryKind.COMMAND, b"data", 4, 2),
    ProposalReply("A", "B", 5, 99, 17, 5),
    ProposalReply("A", "B", 5, 99, 0, 0, Reason.TRANSFERRING),
    ReadRequest("A", "B", 5, 99),
    ReadReply("A", "B", 5, 99, 17),
]


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_a_message_survives_the_way(message: RaftMessage) -> None:
    assert decode_message(encode_message(message, CLUSTER), CLUSTER) == message


@given(st.binary(max_size=50), NUMBER, NUMBER, NUMBER)
def test_numbers_and_data_survive_the_way(data: bytes, request: int, session: int, sequence: int) -> None:
    if (session == 0) != (sequence == 0):
        session = sequence = 0
    message = ForwardedProposal("A", "B", 1, request, EntryKind.COMMAND, data, session, sequence)
    assert decode_message(encode_message(message, CLUSTER), CLUSTER) == message


def test_a_message_of_another_cluster_is_refused() -> None:
    with pytest.raises(RefusedMessage, match="cluster `cluster-2`"):
        decode_message(encode_message(SAMPLES[0], "cluster-2"), CLUSTER)


@pytest.mark.parametrize(
    "message",
    [
        VoteRequest("A", "B", 5, 9, 5),
        VoteRequest("A", "B", 5, 9, 0),
        VoteRequest("A", "B", 5, 0, 3),
        VoteRequest("", "B", 5, 9, 4),
        VoteRequest("A", "", 5, 9, 4),
        TimeoutNow("A", "B", 0),
        Heartbeat("A", "B", 0, 7, 3),
        AppendEntries("A", "B", 0, 0, 0, (), 0),
        AppendEntries("A", "B", 5, 3, 0, (), 0),
        AppendEntries("A", "B", 5, 0, 3, (), 0),
        AppendEntries("A", "B", 5, 3, 6, (), 0),
        AppendEntries("A", "B", 5, 3, 2, (Entry(5, 3, EntryKind.NOOP),), 0),
        AppendEntries("A", "B", 5, 3, 2, (Entry(4, 1, EntryKind.NOOP),), 0),
        AppendEntries("A", "B", 5, 3, 2, (Entry(4, 6, EntryKind.NOOP),), 0),
        AppendEntries("A", "B", 5, 3, 2, (Entry(4, 3, EntryKind.NOOP), Entry(4, 3, EntryKind.NOOP)), 0),
        AppendEntries("A", "B", 5, 3, 2, (Entry(4, 3, EntryKind.MEMBERSHIP, b"nonsense"),), 0),
        AppendEntries("A", "B", 5, 3, 2, (Entry(4, 3, EntryKind.MEMBERSHIP, bytes(4)),), 0),
        SnapshotChunk("A", "B", 5, 0, 3, MEMBERSHIP, 100, 10, b"piece"),
        SnapshotChunk("A", "B", 5, 7, 6, MEMBERSHIP, 100, 10, b"piece"),
        SnapshotChunk("A", "B", 5, 7, 0, MEMBERSHIP, 100, 10, b"piece"),
        SnapshotChunk("A", "B", 5, 7, 3, RaftMembership(), 100, 10, b"piece"),
        SnapshotChunk("A", "B", 5, 7, 3, MEMBERSHIP, 100, 96, b"piece"),
        SnapshotChunk("A", "B", 5, 7, 3, MEMBERSHIP, 100, 10, b""),
        AppendReply("A", "B", 5, False, 7, 3, 6),
        ForwardedProposal("A", "B", 5, 99, EntryKind.MEMBERSHIP, b"", 0, 0),
        ForwardedProposal("A", "B", 5, 99, EntryKind.COMMAND, b"", 3, 0),
        ProposalReply("A", "B", 5, 99, 17, 5, Reason.TOO_LARGE),
        ReadReply("A", "B", 5, 99, 0),
    ],
    ids=lambda message: type(message).__name__,  # the order of a set differs between processes
)
def test_fields_that_contradict_each_other_are_refused(message: RaftMessage) -> None:
    with pytest.raises(RefusedMessage):
        decode_message(encode_message(message, CLUSTER), CLUSTER)


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_a_message_that_is_cut_or_too_long_is_refused(message: RaftMessage) -> None:
    data = encode_message(message, CLUSTER)
    for length in range(len(data)):
        with pytest.raises(RefusedMessage):
            decode_message(data[:length], CLUSTER)
    with pytest.raises(RefusedMessage):
        decode_message(data + b"\0", CLUSTER)


@given(st.sampled_from(SAMPLES), st.data())
def test_damaged_bytes_are_refused_or_a_message(message: RaftMessage, data: st.DataObject) -> None:
    """Whatever is decoded can be encoded to the same bytes: nothing was read that is not there."""
    raw = bytearray(encode_message(message, CLUSTER))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    check(bytes(raw))


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_a_message(raw: bytes) -> None:
    check(raw)
    head = encode_message(SAMPLES[5], CLUSTER)[:4]
    check(head + raw)


def check(raw: bytes) -> None:
    try:
        message = decode_message(raw, CLUSTER)
    except RefusedMessage:
        return
    assert encode_message(message, CLUSTER) == raw
