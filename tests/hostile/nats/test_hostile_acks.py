"""Forged acks: of an attacker that guesses inboxes, and of one that reads the subjects of streams."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bascule.proto import api_pb2
from tests.support.api_client import Status, grpc
from tests.support.broker_fixtures import StartBroker
from tests.support.cluster import LONG_TIMEOUTS, Cluster
from tests.support.nats_client import NatsClient

SECRET = {"cluster.secret": "the secret of this cluster"}
FORGED_OFFSET = 4711


def bundle(inbox: str, stream: str, subject: str, correlation_id: str) -> bytes:
    ack = api_pb2.Ack(
        stream=stream,
        partitionSubject=subject,
        msgSubject=subject,
        offset=FORGED_OFFSET,
        ackInbox=inbox,
        correlationId=correlation_id,
        ackPolicy=api_pb2.ALL,
    ).SerializeToString()
    return len(ack).to_bytes(4, "little") + ack


def inbox_in(published: bytes) -> str:
    """The ack inbox that the broker put into a message: it is visible on the subject of the stream."""
    message = api_pb2.Message.FromString(published[8:])
    return str(message.ackInbox)


def test_two_inboxes_of_a_broker_do_not_tell_each_other_s_place(start_broker: StartBroker) -> None:
    broker = start_broker()
    seen: set[str] = set()
    for _ in range(2):
        with closing(broker.api()) as api, NatsClient(broker.nats_url) as nats:
            if not seen:
                api.CreateStream(name="orders", subject="orders.s")
            nats.subscribe("orders.s")
            api.Publish(stream="orders", value=b"x", ackPolicy=1, timeout=60)
            inbox = inbox_in(nats.next().payload)
            assert len(inbox.split(".")[-2]) == 32
            seen.add(inbox.rpartition(".")[0])
        broker.stop()
        broker.start()
    assert len(seen) == 2


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two servers, of which one does nothing: no ack of both replicas of `orders` comes."""
    with Cluster(tmp_path_factory.mktemp("waiting"), servers=("a", "b"), config=LONG_TIMEOUTS) as cluster:
        cluster.create_stream("orders", factor=2, minIsr=2, subject="orders.s")
        (follower,) = cluster.followers_of("orders")
        cluster.pause(follower)
        yield cluster


@pytest.mark.parametrize("wrong", ["stream", "subject", "correlation"])
def test_an_ack_counts_only_for_its_stream_partition_and_correlation_id(waiting: Cluster, wrong: str) -> None:
    """Without a cluster secret, by an attacker that knows the inbox."""
    api = waiting.api(waiting.well[0])
    with NatsClient(waiting.nats[0].url) as nats:
        nats.subscribe("orders.s")
        call = api.future("Publish", stream="orders", value=b"x", ackPolicy=1, correlationId="mine", timeout=3)
        inbox = inbox_in(nats.next().payload)
        forged = {"stream": "orders", "subject": "orders.s", "correlation": "mine", wrong: "other"}
        data = bundle(inbox, forged["stream"], forged["subject"], forged["correlation"])
        nats.publish(inbox.rpartition(".")[0], data)
        with pytest.raises(grpc.RpcError) as caught:
            call.result()
    assert caught.value.code() is Status.DEADLINE_EXCEEDED


def test_a_broker_with_a_secret_believes_no_foreign_ack(tmp_path: Path) -> None:
    with Cluster(tmp_path / "forged", config={**SECRET, "clustering.min.insync.replicas": 3}) as cluster:
        cluster.create_stream("orders", subject="orders.s")
        leader = cluster.leader_of("orders")
        front, away = cluster.followers_of("orders")
        cluster.pause(away)
        with NatsClient(cluster.nats[0].url) as nats:
            nats.subscribe("orders.s")
            call = cluster.api(front).future(
                "Publish", stream="orders", value=b"x", ackPolicy=1, correlationId="mine", timeout=5
            )
            inbox = inbox_in(nats.next().payload)
            data = bundle(inbox, "orders", "orders.s", "mine")
            for subject in (inbox, inbox.rpartition(".")[0]):
                for payload in (data, b"\x5e\xa1\x01\x09streams.%b" % leader.encode() + bytes(40) + data):
                    nats.publish(subject, payload)
            with pytest.raises(grpc.RpcError) as caught:
                call.result()
        assert caught.value.code() is Status.DEADLINE_EXCEEDED
        cluster.resume(away)
        ack = cluster.api(front).Publish(stream="orders", value=b"y", ackPolicy=1, timeout=60).ack
        assert ack.offset < FORGED_OFFSET
