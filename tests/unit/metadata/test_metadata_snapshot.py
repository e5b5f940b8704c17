"""Snapshots of the metadata: everything comes back, also from one that an earlier version wrote."""

from __future__ import annotations

import json

from bascule.metadata.core.model.ops import (
    ChangeLeader,
    Reassign,
    RestartServer,
    SetReplicationThrottle,
    SetServerState,
    ShrinkIsr,
)
from bascule.metadata.core.model.refusal import Refusal
from bascule.metadata.core.snapshot import decode_snapshot, encode_snapshot
from tests.unit.metadata.metadata_helpers import Cluster

VERSION_1 = (
    b'{"activity":[],"activity_index":0,"applied_index":4,"groups":[{"coordinator":"a","epoch":0,"id":"g","members":'
    b'[{"assignments":{"orders":[0]},"id":"c1","streams":["orders"]}]}],"streams":[{"config":{"encryption":true},'
    b'"created_ns":5,"group":"workers","id":1,"name":"orders","partitions":[{"epoch":3,"id":0,"in_sync_replicas":["a"],'
    b'"leader":"a","leader_epoch":1,"pause_times":{"first_ns":7,"latest_ns":7},"paused":true,"readonly":false,'
    b'"readonly_times":{"first_ns":0,"latest_ns":0},"replicas":["a","b"]}],"resume_all":true,"subject":"orders.*"}],'
    b'"version":1}'
)
"""As it was written before partitions had more than one replica."""


def test_a_snapshot_of_the_first_version_is_read() -> None:
    state = decode_snapshot(VERSION_1)
    stream = state.streams["orders"]
    assert (state.applied_index, stream.id, stream.group, stream.resume_all) == (4, 1, "workers", True)
    partition = stream.partitions[0]
    assert (partition.replicas, partition.in_sync_replicas, partition.epoch) == (["a", "b"], ["a"], 3)
    assert (partition.target_replicas, partition.original_replicas, partition.data_loss_epoch) == ([], [], 0)
    assert (state.server_epochs, state.leaving, state.replication_throttle) == ({}, set(), 0)
    assert state.policies == set()
    assert state.groups["g"].members["c1"].assignments == {"orders": [0]}
    assert encode_snapshot(decode_snapshot(encode_snapshot(state))) == encode_snapshot(state)


def test_a_snapshot_from_before_policies_is_read() -> None:
    cluster = Cluster()
    cluster.create("orders", 1, 3)
    document = json.loads(encode_snapshot(cluster.state))
    del document["policies"]
    former = decode_snapshot(json.dumps({**document, "version": 2}).encode())
    assert former.policies == set()
    assert encode_snapshot(former) == encode_snapshot(cluster.state)


def test_restarts_moves_losses_leavers_and_the_throttle_come_back() -> None:
    cluster = Cluster()
    cluster.create("orders", 1, 1)
    cluster.must(RestartServer("a", intact=False))
    cluster.must(Reassign("orders", 0, ("b", "c")))
    cluster.must(SetServerState("a", "leaving"))
    cluster.must(SetReplicationThrottle(1_000))
    restored = decode_snapshot(encode_snapshot(cluster.state))
    assert restored.streams == cluster.state.streams
    partition = restored.streams["orders"].partitions[0]
    assert (partition.target_replicas, partition.original_replicas) == (["b", "c"], ["a"])
    assert partition.data_loss_epoch == 2
    assert (restored.server_epochs, restored.leaving, restored.replication_throttle) == ({"a": 2}, {"a"}, 1_000)
    assert restored.load.hosted == cluster.state.load.hosted


def test_a_leader_that_is_missing_from_its_in_sync_replicas_adds_itself() -> None:
    cluster = Cluster()
    cluster.create("orders", 1, 3)
    document = json.loads(encode_snapshot(cluster.state))
    document["streams"][0]["partitions"][0]["in_sync_replicas"] = ["b"]
    restored = decode_snapshot(json.dumps(document).encode())
    assert restored.streams["orders"].partitions[0].in_sync_replicas == ["b", "a"]
    assert not isinstance(restored.apply(2, ShrinkIsr("orders", 0, "b", "a", 1)), Refusal)
    assert isinstance(restored.apply(3, ChangeLeader("orders", 0, "a", 1)), Refusal)
