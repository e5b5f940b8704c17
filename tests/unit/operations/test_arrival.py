"""A server whose data is gone does not lead from nothing what nobody else has."""

from __future__ import annotations

import pytest

from bascule.errors import OperatorError
from bascule.metadata.core.model.ops import BrokerPlace, CreateStream, ShrinkIsr
from bascule.metadata.core.state import ClusterMetadata
from bascule.operations.arrival import _must_not_be_missed


def cluster(factor: int) -> ClusterMetadata:
    metadata = ClusterMetadata()
    brokers = (BrokerPlace("a"), BrokerPlace("b"), BrokerPlace("c"))
    metadata.apply(1, CreateStream("orders", "orders", 1, factor, brokers, 0))
    return metadata


def leave(metadata: ClusterMetadata, *replicas: str) -> None:
    partition = metadata.streams["orders"].partitions[0]
    for index, replica in enumerate(replicas, start=2):
        metadata.apply(index, ShrinkIsr("orders", 0, replica, partition.leader, partition.leader_epoch))


def test_others_that_are_in_sync_have_everything() -> None:
    metadata = cluster(3)
    for server in "abc":
        _must_not_be_missed(metadata, server)
    leave(metadata, "b")
    _must_not_be_missed(metadata, "a")


def test_who_alone_was_in_sync_does_not_start_without_its_data() -> None:
    metadata = cluster(3)
    leave(metadata, "b", "c")
    with pytest.raises(OperatorError, match="orders/0") as caught:
        _must_not_be_missed(metadata, "a")
    assert "bascule cluster elect orders 0 b" in str(caught.value.hint)
    _must_not_be_missed(metadata, "b")


def test_what_has_no_other_replica_is_gone_anyway() -> None:
    _must_not_be_missed(cluster(1), "a")
