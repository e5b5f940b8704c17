"""Readers of a replica that lags behind, and does not know it."""

from __future__ import annotations

from pathlib import Path

from tests.support.api_client import Status, grpc, pb
from tests.support.cluster import Cluster
from tests.support.replicas import publish_until_acked
from tests.support.tcp_proxy import HOLD


def test_who_goes_on_at_a_replica_that_lags_is_not_shown_what_came_before(tmp_path: Path) -> None:
    """The replica is cut off, and believes that it is in sync; the reader has been elsewhere and is ahead of it."""
    with Cluster(tmp_path / "cluster", proxied=True) as cluster:
        cluster.create_stream("orders")
        for number in range(3):
            assert publish_until_acked(cluster, "orders", b"%d" % number) == number
        cluster.wait_until_in_sync("orders")
        lagging = cluster.followers_of("orders")[0]
        cluster.cut_off(lagging, HOLD)
        for number in range(3, 6):
            assert publish_until_acked(cluster, "orders", b"%d" % number) == number
        reader = cluster.api(lagging).subscribe("orders", startPosition=pb.OFFSET, startOffset=6, readISRReplica=True)
        cluster.heal(lagging)
        cluster.wait_until_in_sync("orders")
        assert publish_until_acked(cluster, "orders", b"6") == 6
        try:
            shown = reader.next().offset
        except grpc.RpcError as error:  # it has heard that it was not in sync, before it had anything for us
            assert error.code() is Status.UNAVAILABLE, error
        else:
            assert shown == 6
        reader.cancel()
