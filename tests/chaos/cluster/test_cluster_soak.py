"""Everything that can happen to a cluster, for a long time, with a new seed every time. `make chaos` does it without pytest."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.chaos.cluster.cluster_chaos import Chaos, report


@pytest.mark.soak
@pytest.mark.parametrize("nats_servers", [1, 3])
def test_a_cluster_keeps_its_promises_for_long(tmp_path: Path, soak_seconds: float, nats_servers: int) -> None:
    chaos = Chaos(tmp_path, time.time_ns() % (1 << 32), soak_seconds, nats_servers)
    print(f"seed {chaos.seed}")
    verdict = chaos.run()
    report(chaos, verdict)
    assert not verdict.violations
