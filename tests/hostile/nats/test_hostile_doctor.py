"""`bascule doctor` tries from outside whether internal subjects are closed, and says so."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bascule.cli.server import doctor_nats
from bascule.cli.terminal.finding import OK, WARNING, Check
from tests.support.broker_fixtures import StartBroker
from tests.support.cluster import Cluster


def checked(url: str, namespace: str) -> Check:
    checks = {one.name: one for one in asyncio.run(doctor_nats.look(url, namespace, 60.0))}
    assert checks["nats"].state == OK
    return checks["internal subjects"]


def test_the_embedded_nats_server_is_closed(start_broker: StartBroker) -> None:
    broker = start_broker(embedded=True)
    found = checked(broker.nats_url, broker.config["clustering.namespace"])
    assert (found.state, found.next_step) == (OK, "")


@pytest.mark.parametrize("secret", [None, "a secret of this cluster"])
def test_an_open_nats_server_is_reported(tmp_path: Path, secret: str | None) -> None:
    with Cluster(tmp_path / "open", config={} if secret is None else {"cluster.secret": secret}) as cluster:
        found = checked(cluster.nats[0].url, cluster.namespace)
    assert found.state == WARNING
    assert ("it can control the cluster" in found.found) == (secret is None)
    assert ("brokers ignore what it publishes" in found.found) == (secret is not None)
    assert "open.>" in found.next_step
