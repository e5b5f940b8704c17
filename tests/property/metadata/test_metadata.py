"""Any ops leave all brokers with the same state, also those restored from a snapshot on the way, and no op can break it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.errors import FormatTooNew, StorageError
from bascule.metadata.core.model import ops
from bascule.metadata.core.model.ops import BrokerPlace, MalformedOp, Op, decode_op, encode_op
from bascule.metadata.core.model.refusal import Refusal
from bascule.metadata.core.snapshot import decode_snapshot, encode_snapshot
from bascule.metadata.core.state import ClusterMetadata
from tests.property.metadata.metadata_laws import aim, check_invariants, sequences

STREAMS = st.sampled_from(["foo", "bar", "baz", "no such", "", "__activity"])
BROKER_IDS = st.sampled_from(["a", "b", "c", "d"])
NUMBERS = st.integers(-1, 4)
EPOCHS = st.integers(0, 60)
TIMES = st.integers(0, 100)
PARTITIONS = st.lists(NUMBERS, max_size=3).map(tuple)
GROUPS = st.sampled_from(["g", "h", ""])
CONSUMERS = st.sampled_from(["c1", "c2", "c3", "c4", ""])
BROKERS = st.lists(st.builds(BrokerPlace, BROKER_IDS, st.sampled_from(["", "r1", "r2"])), max_size=4).map(tuple)
SOME_IDS = st.lists(BROKER_IDS, max_size=4).map(tuple)
LINES = st.lists(
    st.sampled_from(["p, a, stream:s*, Publish", "g, a, role:é", "", "x" * 1025, "\ud800", *map(str, range(70))]),
    max_size=70,
).map(tuple)

OPS: st.SearchStrategy[Op] = st.one_of(
    st.builds(
        ops.CreateStream,
        STREAMS,
        st.sampled_from(["s", "s.*", "", "a b"]),
        NUMBERS,
        st.integers(-2, 5),
        BROKERS,
        TIMES,
        st.just(""),
        st.dictionaries(st.sampled_from(["x", "y"]), st.integers(0, 3) | st.booleans() | st.text(max_size=3)),
    ),
    st.builds(ops.DeleteStream, STREAMS),
    st.builds(ops.ShrinkIsr, STREAMS, NUMBERS, BROKER_IDS, BROKER_IDS, EPOCHS),
    st.builds(ops.ExpandIsr, STREAMS, NUMBERS, BROKER_IDS, BROKER_IDS, EPOCHS, EPOCHS, EPOCHS),
    st.builds(ops.ChangeLeader, STREAMS, NUMBERS, BROKER_IDS, EPOCHS, st.none() | SOME_IDS, st.booleans()),
    st.builds(ops.LeaveIsr, STREAMS, NUMBERS, BROKER_IDS, EPOCHS),
    st.builds(ops.ElectUnclean, STREAMS, NUMBERS, BROKER_IDS, BROKER_IDS, EPOCHS),
    st.builds(ops.Reassign, STREAMS, NUMBERS, SOME_IDS),
    st.builds(ops.CancelReassignment, STREAMS, NUMBERS),
    st.builds(ops.CompleteReassignment, STREAMS, NUMBERS, BROKER_IDS, EPOCHS),
    st.builds(ops.RestartServer, BROKER_IDS | st.just(""), st.booleans()),
    st.builds(ops.StopServer, BROKER_IDS | st.just("")),
    st.builds(ops.SetServerState, BROKER_IDS, st.sampled_from(["active", "leaving", "gone", ""])),
    st.builds(ops.SetReplicationThrottle, st.integers(-1, 1 << 40)),
    st.builds(ops.ForgetServer, BROKER_IDS | st.just("")),
    st.builds(ops.PauseStream, STREAMS, TIMES, PARTITIONS, st.booleans()),
    st.builds(ops.ResumeStream, STREAMS, TIMES, PARTITIONS),
    st.builds(ops.SetStreamReadonly, STREAMS, TIMES, st.booleans(), PARTITIONS),
    st.builds(ops.JoinConsumerGroup, GROUPS, CONSUMERS, st.lists(STREAMS, max_size=3).map(tuple), SOME_IDS),
    st.builds(ops.LeaveConsumerGroup, GROUPS, CONSUMERS, st.booleans(), st.just("") | BROKER_IDS),
    st.builds(ops.ChangeCoordinator, GROUPS, BROKER_IDS, EPOCHS, SOME_IDS),
    st.builds(ops.GrantPolicies, LINES),
    st.builds(ops.RevokePolicies, LINES),
    st.builds(ops.PublishActivity, EPOCHS),
)


def aimed(op: Op, state: ClusterMetadata) -> Op:
    """Half of the fenced ops are given the right leader and epochs: guessing alone would hardly ever get through."""
    return aim(op, state) if getattr(op, "leader_epoch", 0) % 2 else op


@given(sequences(OPS, 60), st.data())
def test_any_ops_leave_equal_state_everywhere_also_behind_a_snapshot(sequence: list[Op], data: st.DataObject) -> None:
    first, second = ClusterMetadata(), ClusterMetadata()
    restored = decode_snapshot(encode_snapshot(first))
    restore_at = data.draw(st.integers(0, 60))
    for index, op in enumerate(sequence, start=1):
        op = aimed(op, first)
        before = encode_snapshot(first)
        outcome = first.apply(index, op)
        assert second.apply(index, decode_op(encode_op(op))) == outcome
        assert restored.apply(index, op) == outcome
        check_invariants(first)
        if isinstance(outcome, Refusal):
            assert json.loads(encode_snapshot(first)) == {**json.loads(before), "applied_index": index}
        if index == restore_at:
            restored = decode_snapshot(encode_snapshot(first))
    assert encode_snapshot(first) == encode_snapshot(second) == encode_snapshot(restored)


@given(OPS)
def test_an_op_is_itself_again_after_encoding(op: Op) -> None:
    assert decode_op(encode_op(op)) == op


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.binary(max_size=40) | JSON.map(lambda value: json.dumps(value).encode()))
def test_bytes_that_are_no_op_are_called_malformed(data: bytes) -> None:
    with pytest.raises(MalformedOp):
        decode_op(data)


@given(OPS, st.sampled_from([None, True, -(1 << 70), 1.5, "x", [], [1, "x"], {}, {"a": []}]), st.data())
def test_a_field_of_another_type_is_refused_or_harmless(op: Op, wrong: object, data: st.DataObject) -> None:
    document = json.loads(encode_op(op))
    document[data.draw(st.sampled_from(sorted(document)))] = wrong
    try:
        decoded = decode_op(json.dumps(document).encode())
    except MalformedOp:
        return
    state = ClusterMetadata()
    state.apply(1, decoded)
    check_invariants(state)
    assert encode_snapshot(decode_snapshot(encode_snapshot(state))) == encode_snapshot(state)


@given(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_bytes_that_are_no_snapshot_are_refused(data: bytes) -> None:
    with pytest.raises((StorageError, FormatTooNew)):
        decode_snapshot(data)


def test_a_snapshot_of_a_later_version_is_refused() -> None:
    document = json.loads(encode_snapshot(ClusterMetadata()))
    document["version"] = 4
    with pytest.raises(FormatTooNew, match="version 4"):
        decode_snapshot(json.dumps(document).encode())


@given(st.lists(st.tuples(CONSUMERS, st.lists(st.sampled_from(["foo", "bar"]), min_size=1, unique=True)), max_size=12))
def test_members_of_a_group_are_never_more_than_one_partition_apart_on_one_stream(
    joins: list[tuple[str, list[str]]],
) -> None:
    state = ClusterMetadata()
    brokers = (BrokerPlace("a"),)
    for index, (name, count) in enumerate((("foo", 7), ("bar", 3)), start=1):
        state.apply(index, ops.CreateStream(name, "s", count, 1, brokers, 0))
    for index, (consumer, _) in enumerate(joins, start=3):
        state.apply(index, ops.JoinConsumerGroup("g", consumer, ("foo",), ("a",)))
    if "g" in state.groups:
        shares = [len(member.assignments.get("foo", [])) for member in state.groups["g"].members.values()]
        assert max(shares) - min(shares) <= 1
