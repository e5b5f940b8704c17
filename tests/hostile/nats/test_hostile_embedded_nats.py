"""The embedded nats-server as it comes: clients without a login use the subjects of streams, and no internal subject."""

from __future__ import annotations

import stat
from contextlib import closing

import pytest

from tests.support.broker_fixtures import StartBroker
from tests.support.nats_client import NatsClient


def test_a_client_without_a_login_can_use_streams_but_no_internal_subject(start_broker: StartBroker) -> None:
    broker = start_broker(embedded=True)
    namespace = broker.config["clustering.namespace"]
    with closing(broker.api()) as api, NatsClient(broker.nats_url) as spy:
        api.CreateStream(name="orders", subject="orders.s")
        spy.subscribe(">")
        with NatsClient(broker.nats_url) as client:
            client.publish("orders.s", b"plain")
            api.Publish(stream="orders", value=b"acked", ackPolicy=1, timeout=60)
            with pytest.raises(AssertionError, match="Permissions Violation for Publish"):
                client.publish(f"{namespace}.control.bootstrap", b"x other 9 9")
        with NatsClient(broker.nats_url) as client, pytest.raises(AssertionError, match="Permissions Violation"):
            client.subscribe(f"{namespace}.>")
            client.flush()
        seen = {message.subject for message in spy.pending()}
    assert seen == {"orders.s"}
    assert broker.is_running


def test_the_generated_secrets_are_private_and_outlive_a_restart(start_broker: StartBroker) -> None:
    broker = start_broker(embedded=True)
    secret = broker.data / "cluster.secret"
    before = secret.read_text()
    for path in (secret, broker.data / "nats" / "nats-server.conf"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert broker.stop() == 0
    broker.start()
    assert secret.read_text() == before
    assert before.strip() not in (broker.data / "nats" / "nats-server.conf").read_text()
    assert before.strip() not in broker.said()


def test_a_second_broker_needs_the_secret_of_the_first_one(start_broker: StartBroker) -> None:
    config = {"clustering.namespace": "shared", "cluster.secret": "0123456789abcdef"}
    first = start_broker(config, embedded=True)
    second = start_broker({**config, "nats.user": "bascule"}, nats_url=first.nats_url, seed=False)
    with closing(second.api()) as api:
        assert len(api.FetchMetadata(timeout=60).brokers) == 2
