"""Announcements of a seed that does not exist, to a seed that has begun."""

from __future__ import annotations

from contextlib import closing

from bascule.net.nats.subjects import ControlSubjects
from tests.support.broker_fixtures import StartBroker
from tests.support.nats_client import NatsClient
from tests.support.waiting import eventually

RIVAL = b"mallory other-cluster 1000 9223372036854775807"


def test_a_cluster_with_state_does_not_give_way_to_a_bootstrap_message(start_broker: StartBroker) -> None:
    broker = start_broker()
    namespace = broker.config["clustering.namespace"]
    with closing(broker.api()) as api, NatsClient(broker.nats_url) as nats:
        api.CreateStream(name="orders", subject="orders.s")
        nats.publish(ControlSubjects(namespace).bootstrap, RIVAL)
        eventually(lambda: "mallory" in broker.said(), "the broker logs the other seed")
        api.Publish(stream="orders", value=b"after", ackPolicy=1, timeout=60)
        assert broker.is_running


def test_a_seed_that_restarts_with_its_state_does_not_give_way(start_broker: StartBroker) -> None:
    broker = start_broker()
    assert broker.stop() == 0
    broker.start()
    with NatsClient(broker.nats_url) as nats:
        nats.publish(ControlSubjects(broker.config["clustering.namespace"]).bootstrap, RIVAL)
        eventually(lambda: "mallory" in broker.said(), "the broker logs the other seed")
    assert broker.is_running
    assert broker.stop() == 0
