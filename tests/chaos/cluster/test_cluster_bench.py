"""The benchmarks of replication run, and lose nothing. No numbers are judged here."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import load_replication
from bench.replication_cluster import JetStreamCluster, replicated_cluster
from bench.report import LoadRow

MESSAGES = 2_000


@pytest.mark.parametrize("policy", load_replication.POLICIES)
def test_throughput_and_latency_are_measured(tmp_path: Path, policy: str) -> None:
    with replicated_cluster(tmp_path) as cluster:
        (row,) = load_replication.throughput(cluster, "interval", policy, 1024, 100, MESSAGES)
        assert isinstance(row, LoadRow)
        assert row.lost == 0 and row.messages_per_second > 0
        one_by_one = load_replication.latency_envelope(cluster, "interval", 50)
        assert one_by_one.lost == 0 and one_by_one.p50_us


def test_jetstream_with_three_replicas_is_measured_beside_it(tmp_path: Path) -> None:
    jetstream = JetStreamCluster(tmp_path)
    try:
        row = load_replication.jetstream_row(jetstream, load_replication.THROUGHPUT, 128, 100, MESSAGES)
    finally:
        jetstream.close()
    assert row.lost == 0 and row.cpu > 0
