"""Retention on replicated partitions: no replica deletes what another one of the in-sync set lacks, and a replica whose log cannot be
used any more leaves the set, copies the log again and comes back by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from bascule.log import PartitionLog, new_batch
from tests.chaos.cluster.cluster_verdict import unequal_batches
from tests.support.api_client import pb
from tests.support.broker_fixtures import unique_name
from tests.support.cluster import Cluster
from tests.support.replicas import assert_well, directories, everybody_back, new_leader, publish_until_acked
from tests.support.waiting import eventually

RETENTION: Final[dict[str, Any]] = {
    "segmentMaxBytes": 1_000,
    "retentionMaxMessages": 5,
    "cleanerInterval": 100,
}
PARTITIONS: Final = 6
"""Of a stream without followers: each server leads some."""


@pytest.fixture(scope="module")
def whole_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A replica that is silent stays in sync for a minute."""
    config = {"clustering.replica.max.lag.time": "60s"}
    with Cluster(tmp_path_factory.mktemp("retention"), config=config) as cluster:
        yield cluster


@pytest.fixture
def cluster(whole_cluster: Cluster) -> Iterator[Cluster]:
    with everybody_back(whole_cluster):
        yield whole_cluster
    assert_well(whole_cluster)


def first_offset(cluster: Cluster, name: str, stream: str, partition: int = 0) -> int:
    """Of the replica's log, by the name of its first file."""
    directory = cluster.partition_directory(name, stream, partition)
    return min(int(path.stem) for path in directory.glob("*.log"))


def publish(cluster: Cluster, stream: str, count: int, policy: int, partition: int = 0) -> int:
    """Returns the end of the log."""
    api = cluster.api(cluster.leader_of(stream, partition))
    for number in range(count):
        ack = api.publish(stream, b"%d" % number + bytes(200), partition=partition, ackPolicy=policy)
    return int(ack.offset) + 1


def let_cleaners_run(cluster: Cluster, alone: str, partitions: dict[str, int], *servers: str) -> None:
    """A cleaner looks at the logs of its server in turn: once it has cleaned what is new in one, it has looked at all others."""
    for name in servers:
        publish(cluster, alone, 12, pb.LEADER, partitions[name])
        at = (name, alone, partitions[name])
        eventually(lambda at=at: first_offset(cluster, *at) > 0, f"the cleaner of {name} has run")  # type: ignore[misc]


def wait_until_whole(cluster: Cluster, stream: str) -> None:
    cluster.wait_until_in_sync(stream)
    publish_until_acked(cluster, stream, b"the last one")


def was_set_aside(cluster: Cluster, name: str, stream: str) -> bool:
    return (cluster.brokers[name].data / "quarantine" / stream / "0").is_dir()


def test_must_hold_retention_waits_for_an_in_sync_replica_that_lags(cluster: Cluster) -> None:
    stream, alone = unique_name("stream"), unique_name("alone")
    cluster.create_stream(alone, factor=1, partitions=PARTITIONS, **RETENTION)
    partitions = {cluster.leader_of(alone, number): number for number in range(PARTITIONS)}
    cluster.create_stream(stream, **RETENTION)
    leader = cluster.leader_of(stream)
    lagging, other = cluster.followers_of(stream)
    committed = publish(cluster, stream, 5, pb.ALL)
    cluster.pause(lagging)
    publish(cluster, stream, 30, pb.LEADER)
    let_cleaners_run(cluster, alone, partitions, leader, other)
    for name in (leader, other):
        assert first_offset(cluster, name, stream) <= committed, f"{name} deleted uncommitted messages"
    cluster.kill(leader)
    cluster.resume(lagging)
    new_leader(cluster, stream, leader)
    cluster.restart(leader)
    wait_until_whole(cluster, stream)
    publish(cluster, stream, 30, pb.ALL)
    for name in cluster.servers:
        at = (name, stream)
        eventually(lambda at=at: first_offset(cluster, *at) > committed, f"{name} deletes committed messages")  # type: ignore[misc]
        assert not was_set_aside(cluster, name, stream)


def test_a_replica_whose_messages_the_leader_has_deleted_comes_back(cluster: Cluster) -> None:
    stream = unique_name("stream")
    cluster.create_stream(stream, **RETENTION)
    leader, follower = cluster.leader_of(stream), cluster.followers_of(stream)[0]
    end = publish(cluster, stream, 5, pb.ALL)
    assert cluster.stop(follower) == 0
    publish(cluster, stream, 30, pb.ALL)
    eventually(
        lambda: first_offset(cluster, leader, stream) > end, "the leader has deleted what the follower needs next"
    )
    cluster.restart(follower)
    wait_until_whole(cluster, stream)
    assert first_offset(cluster, follower, stream) > end
    assert not was_set_aside(cluster, follower, stream)


def test_a_replica_with_committed_messages_that_the_leader_lacks_sets_them_aside_and_comes_back(
    cluster: Cluster,
) -> None:
    stream = unique_name("stream")
    cluster.create_stream(stream)
    follower = cluster.followers_of(stream)[0]
    end = publish(cluster, stream, 5, pb.ALL)
    assert cluster.stop(follower) == 0
    log = PartitionLog(str(cluster.partition_directory(follower, stream)))
    batch = new_batch()
    batch.add(None, b"the leader has never had this")
    assert log.append(batch).base_offset == end
    log.advance_high_watermark(end)
    log.close()
    cluster.restart(follower)
    wait_until_whole(cluster, stream)
    assert was_set_aside(cluster, follower, stream)
    eventually(lambda: not unequal_batches(directories(cluster, stream)), "the replicas have the same batches")
