"""Replicas fall out and come back, servers restart, partitions move: what no sequence of ops can break."""

from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st

from bascule.metadata.core.model import ops
from bascule.metadata.core.model.ops import BrokerPlace, Op
from bascule.metadata.core.model.refusal import Refusal
from bascule.metadata.core.model.streams import Partition
from bascule.metadata.core.snapshot import decode_snapshot, encode_snapshot
from bascule.metadata.core.state import ClusterMetadata, PartitionChanged
from tests.property.metadata.metadata_laws import aim, check_invariants, sequences

SERVERS = ("a", "b", "c", "d", "e")
STREAM = st.sampled_from(["zeta", "alpha"])  # created in this order, and in the other one behind a snapshot
NUMBER = st.integers(0, 2)
SERVER = st.sampled_from(SERVERS)
WHERE = st.lists(SERVER, min_size=1, max_size=4, unique=True).map(tuple)

OPS: st.SearchStrategy[Op] = st.one_of(
    st.builds(ops.ShrinkIsr, STREAM, NUMBER, SERVER, st.just(""), st.just(0)),
    st.builds(ops.ExpandIsr, STREAM, NUMBER, SERVER, st.just(""), st.just(0)),
    st.builds(ops.ChangeLeader, STREAM, NUMBER, st.just(""), st.just(0), st.none() | WHERE, st.booleans()),
    st.builds(ops.LeaveIsr, STREAM, NUMBER, SERVER, st.just(0)),
    st.builds(ops.ElectUnclean, STREAM, NUMBER, SERVER, st.just(""), st.just(0)),
    st.builds(ops.Reassign, STREAM, NUMBER, WHERE),
    st.builds(ops.CancelReassignment, STREAM, NUMBER),
    st.builds(ops.CompleteReassignment, STREAM, NUMBER, st.just(""), st.just(0)),
    st.builds(ops.RestartServer, SERVER, st.booleans()),
    st.builds(ops.StopServer, SERVER),
    st.builds(ops.SetServerState, SERVER, st.sampled_from(["active", "leaving"])),
    st.builds(ops.ForgetServer, SERVER),
    st.builds(ops.PauseStream, STREAM, st.just(1), NUMBER.map(lambda number: (number,))),
    st.builds(ops.ResumeStream, STREAM, st.just(1)),
)


def replicated() -> ClusterMetadata:
    state = ClusterMetadata()
    brokers = tuple(BrokerPlace(server) for server in SERVERS)
    for index, (name, factor) in enumerate((("zeta", 3), ("alpha", 2)), start=1):
        assert not isinstance(state.apply(index, ops.CreateStream(name, "s", 3, factor, brokers, 0)), Refusal)
    return state


def partitions(state: ClusterMetadata) -> dict[tuple[str, int], Partition]:
    return {(name, partition.id): partition for name, partition in state.each_partition()}


@given(sequences(OPS, 80), st.integers(0, 80))
def test_whatever_happens_to_partitions_is_lawful_and_the_same_behind_a_snapshot(
    sequence: list[Op], restore_at: int
) -> None:
    state, restored = replicated(), replicated()
    for step, guess in enumerate(sequence):
        index, op = state.applied_index + 1, aim(guess, state)
        if step == restore_at:
            restored = decode_snapshot(encode_snapshot(restored))
        before = copy.deepcopy(partitions(state))
        outcome = state.apply(index, op)
        assert restored.apply(index, op) == outcome
        assert encode_snapshot(state) == encode_snapshot(restored)
        check_invariants(state)
        told = () if isinstance(outcome, Refusal) else outcome
        for key, partition in partitions(state).items():
            assert (before[key] != partition) == (PartitionChanged(*key) in told)
            check_step(op, index, before[key], partition)
            check_restart(op, index, before[key], partition)


def check_step(op: Op, index: int, before: Partition, after: Partition) -> None:
    if before == after:
        return
    assert after.epoch == index > before.epoch
    assert after.leader_epoch in (before.leader_epoch, index)
    assert after.data_loss_epoch in (before.data_loss_epoch, index)
    if after.leader != before.leader:
        assert after.leader_epoch == index
        clean = after.leader in before.in_sync_replicas
        assert clean or isinstance(op, ops.ElectUnclean)
        assert clean == (after.data_loss_epoch != index)
    if after.data_loss_epoch != before.data_loss_epoch:
        assert after.leader_epoch == index
        assert isinstance(op, ops.ElectUnclean) or (isinstance(op, ops.RestartServer) and not op.intact)
    if set(after.in_sync_replicas) - set(before.in_sync_replicas):
        assert isinstance(op, ops.ExpandIsr) or after.data_loss_epoch == index
    if after.replicas != before.replicas:
        assert isinstance(op, ops.Reassign | ops.CancelReassignment | ops.CompleteReassignment)


def check_restart(op: Op, index: int, before: Partition, after: Partition) -> None:
    """After an unclean stop nobody goes on in the epoch he led in, nor is trusted to have what he may have lost."""
    if not isinstance(op, ops.RestartServer):
        return
    if before.leader == op.server:
        assert after.leader_epoch == index
    if op.intact:
        assert after.in_sync_replicas == before.in_sync_replicas
        assert after.leader == before.leader
    elif op.server in after.in_sync_replicas:
        assert after.in_sync_replicas == [op.server]
        assert after.data_loss_epoch == index


@given(sequences(OPS, 40), STREAM, NUMBER, WHERE)
def test_a_move_can_always_be_finished_and_ends_where_it_was_to(
    sequence: list[Op], stream: str, number: int, where: tuple[str, ...]
) -> None:
    state = replicated()
    for guess in sequence:
        state.apply(state.applied_index + 1, aim(guess, state))

    def done(op: Op) -> None:
        assert not isinstance(state.apply(state.applied_index + 1, aim(op, state)), Refusal), op

    for server in SERVERS:
        done(ops.SetServerState(server, "active"))
    done(ops.Reassign(stream, number, where))
    partition = partitions(state)[stream, number]
    for server in partition.target_replicas:
        done(ops.ExpandIsr(stream, number, server, "", 0))
    if partition.target_replicas and partition.leader not in where:
        early = aim(ops.CompleteReassignment(stream, number, "", 0), state)
        assert isinstance(state.apply(state.applied_index + 1, early), Refusal)
        done(ops.ChangeLeader(stream, number, "", 0, where, False))
    done(ops.CompleteReassignment(stream, number, "", 0))
    assert partition.replicas == list(where)
    assert not partition.target_replicas


@given(sequences(OPS, 40), STREAM, NUMBER, WHERE, WHERE)
def test_a_cancelled_move_leaves_the_replicas_as_they_were_however_often_it_was_changed(
    sequence: list[Op], stream: str, number: int, first: tuple[str, ...], second: tuple[str, ...]
) -> None:
    state = replicated()
    for guess in sequence:
        state.apply(state.applied_index + 1, aim(guess, state))
    state.apply(state.applied_index + 1, ops.CancelReassignment(stream, number))
    partition = partitions(state)[stream, number]
    if partition.target_replicas:
        return  # its leader is one of the added ones
    original, in_sync = list(partition.replicas), set(partition.in_sync_replicas)
    for where in (first, second):
        state.apply(state.applied_index + 1, ops.Reassign(stream, number, where))
    if not partition.target_replicas:
        assert set(partition.replicas) == set(original)
        return
    assert not isinstance(state.apply(state.applied_index + 1, ops.CancelReassignment(stream, number)), Refusal)
    assert set(partition.replicas) == set(original)
    assert set(partition.in_sync_replicas) == in_sync
