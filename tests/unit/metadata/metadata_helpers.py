"""A metadata state to try things on."""

from __future__ import annotations

from typing import Any

from bascule.metadata.core.model.ops import BrokerPlace, ChangeLeader, CreateStream, ExpandIsr, Op, ShrinkIsr
from bascule.metadata.core.model.refusal import Refusal
from bascule.metadata.core.model.streams import Partition
from bascule.metadata.core.state import Change, ClusterMetadata

BROKERS = tuple(BrokerPlace(name) for name in ("a", "b", "c"))
IDS = ("a", "b", "c")


class Cluster:
    """A state whose log index moves by itself."""

    def __init__(self) -> None:
        self.state = ClusterMetadata()
        self.index = 0

    def apply(self, op: Op) -> tuple[Change, ...] | Refusal:
        self.index += 1
        return self.state.apply(self.index, op)

    def must(self, op: Op) -> tuple[Change, ...]:
        outcome = self.apply(op)
        assert not isinstance(outcome, Refusal), outcome
        return outcome

    def refusal(self, op: Op) -> Refusal:
        outcome = self.apply(op)
        assert isinstance(outcome, Refusal), outcome
        return outcome

    def partition(self, stream: str, number: int = 0) -> Partition:
        found = self.state.streams[stream].partition(number)
        assert found is not None
        return found

    def create(self, name: str, partitions: int = 1, factor: int = 1, **more: Any) -> None:
        self.must(creation(name, partitions, factor, **more))

    # The fenced ops, from whoever leads now.

    def shrink(self, stream: str, replica: str, number: int = 0) -> None:
        partition = self.partition(stream, number)
        self.must(ShrinkIsr(stream, number, replica, partition.leader, partition.leader_epoch))

    def expand(self, stream: str, replica: str, number: int = 0) -> None:
        partition = self.partition(stream, number)
        replica_epoch = self.state.replica_epoch(partition, replica)
        fences = (partition.leader, partition.leader_epoch, replica_epoch, partition.epoch)
        self.must(ExpandIsr(stream, number, replica, *fences))

    def hand_over(self, stream: str, successor: str, number: int = 0) -> None:
        partition = self.partition(stream, number)
        fences = (partition.leader, partition.leader_epoch)
        self.must(ChangeLeader(stream, number, *fences, candidates=(successor,), failed=False))


def creation(name: str, partitions: int = 1, factor: int = 1, **more: Any) -> CreateStream:
    given = {"subject": "foo", "brokers": BROKERS, "created_ns": 1, **more}
    return CreateStream(name=name, partitions=partitions, replication_factor=factor, **given)
