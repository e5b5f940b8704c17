"""The cluster secret changes while the cluster works, over three NATS servers; a broker with another secret stays outside."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.support.cluster import Cluster
from tests.support.waiting import eventually

OLD, NEW = "the secret of last year", "the secret of this year"


def test_a_secret_is_rotated_while_messages_are_acked(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(OLD)
    with Cluster(tmp_path / "rotated", nats_servers=3, config={"cluster.secret.file": str(secret)}) as cluster:
        cluster.create_stream("orders")
        for step, text in enumerate((f"{OLD}\n{NEW}\n", f"{NEW}\n{OLD}\n", NEW), 1):
            secret.write_text(text)
            for broker in cluster.brokers.values():
                os.kill(broker.pid, signal.SIGHUP)
                eventually(
                    lambda broker=broker, step=step: broker.said().count("secret was reloaded") == step,  # type: ignore[misc]
                    "the secret is reloaded",
                )
                for name in cluster.servers:
                    cluster.api(name).Publish(stream="orders", value=b"x", ackPolicy=1, timeout=60)
        cluster.wait_until_in_sync("orders")
        assert cluster.brokers["a"].config["cluster.secret.file"] == str(secret)
        for broker in cluster.brokers.values():
            assert OLD not in broker.said()
            assert NEW not in broker.said()
