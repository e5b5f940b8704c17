"""Idempotent publishing through the doors of a broker, and through the deaths of leaders."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing

import pytest

import bascule
from bascule.net.nats.envelope import MessageType, encode
from bascule.producers import producer_headers
from tests.support.api_client import Api, Status, grpc, pb
from tests.support.broker_fixtures import MakeStream, StartBroker, unique_name
from tests.support.cluster import ASK_SECONDS, Cluster
from tests.support.nats_client import NatsClient
from tests.support.replicas import new_leader
from tests.support.waiting import eventually

pytestmark = pytest.mark.disturbs


def headers(sequence: int, epoch: int = 0) -> dict[str, bytes]:
    return producer_headers(b"tester", epoch, sequence)


# ── every door ───────────────────────────────────────────────────────────────────────────────────


def test_unary_publishes(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream().name
    first = api.publish(stream, b"a", headers=headers(0))
    again = api.publish(stream, b"a", headers=headers(0))
    assert (first.offset, first.duplicate) == (0, False)
    assert (again.offset, again.duplicate, again.ackError) == (0, True, pb.Ack.OK)
    for wrong, status in (
        (headers(5), Status.ABORTED),
        ({"bascule-producer": b"x"}, Status.INVALID_ARGUMENT),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            api.publish(stream, b"b", headers=wrong)
        assert Status[refused.value.code().name] is status
    api.publish(stream, b"b", headers=headers(0, epoch=1))
    with pytest.raises(grpc.RpcError) as refused:
        api.publish(stream, b"c", headers=headers(1))
    assert Status[refused.value.code().name] is Status.FAILED_PRECONDITION
    assert [message.value for message in api.read(stream)] == [b"a", b"b"]


def test_a_session_hears_of_duplicates_and_holes(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream().name
    session = api.publish_async()
    for number, sequence in enumerate((0, 1, 1, 3, 2)):
        session.send(stream, b"%d" % sequence, correlationId=str(number), headers=headers(sequence), ackPolicy=pb.ALL)
    found = {}
    for _ in range(5):
        answer = session.next()
        found[answer.correlationId] = (answer.asyncError.code, answer.ack.offset, answer.ack.duplicate)
    session.finish()
    assert found == {
        "0": (0, 0, False),
        "1": (0, 1, False),
        "2": (0, 1, True),
        "3": (pb.PublishAsyncError.OUT_OF_SEQUENCE, 0, False),
        "4": (0, 2, False),
    }


def test_envelopes_and_plain_messages_over_nats(api: Api, nats: NatsClient, make_stream: MakeStream) -> None:
    stream = make_stream().name
    subject = api.stream(stream).subject
    nats.subscribe("_INBOX.idempotent")
    message = pb.Message(value=b"0", ackInbox="_INBOX.idempotent", offset=-1, headers=headers(0))
    for _ in range(2):
        nats.publish(subject, encode(MessageType.PUBLISH, message.SerializeToString()))
    acks = [pb.Ack.FromString(nats.next().payload[8:]) for _ in range(2)]
    assert [(ack.offset, ack.duplicate) for ack in acks] == [(0, False), (0, True)]
    block = b"".join(b"%b: %b\r\n" % (name.encode(), value) for name, value in headers(1).items())
    for _ in range(3):
        nats.publish(subject, b"1", headers=block)
    api.publish(stream, b"2", headers=headers(2))
    assert [one.value for one in api.read(stream)] == [b"0", b"1", b"2"]


def test_a_broker_that_was_killed_knows_its_producers(start_broker: StartBroker) -> None:
    broker = start_broker()
    with closing(broker.api()) as api:
        api.CreateStream(name="orders", subject="orders")
        for sequence in range(3):
            api.publish("orders", b"%d" % sequence, headers=headers(sequence))
    broker.restart()
    with closing(broker.api()) as api:
        ack = api.publish("orders", b"2", headers=headers(2))
        assert (ack.offset, ack.duplicate) == (2, True)
        assert api.publish("orders", b"3", headers=headers(3)).offset == 3


# ── leaders that die ─────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("idempotence")) as cluster:
        yield cluster


def test_every_sequence_is_stored_once_and_in_order_though_leaders_are_killed(cluster: Cluster) -> None:
    name = unique_name("killed")
    cluster.create_stream(name)
    count = asyncio.run(publish_through_deaths(cluster, name, deaths=3))
    cluster.wait_until_in_sync(name)
    for server in cluster.servers:
        found = cluster.api(server).read(name, readISRReplica=True)
        assert [message.value for message in found] == [b"%d" % number for number in range(count)], server
        sequences = [int(message.headers["bascule-sequence"]) for message in found]
        assert sequences == list(range(count)), "one epoch was enough"


async def publish_through_deaths(cluster: Cluster, name: str, *, deaths: int) -> int:
    addresses = [broker.address for broker in cluster.brokers.values()]
    over = asyncio.Event()
    sent = acked = 0
    async with bascule.connect(addresses, timeout=10) as client:
        publisher = client.publisher(name, idempotent=True, window=500, timeout=120)

        async def publish() -> None:
            nonlocal sent, acked
            while not over.is_set():
                future = await publisher.send(b"%d" % sent)
                sent += 1
                future.add_done_callback(count_ack)
                if sent % 20 == 0:
                    await asyncio.sleep(0.002)

        def count_ack(_future: object) -> None:
            nonlocal acked
            acked += 1

        task = asyncio.create_task(publish())
        for _ in range(deaths):
            reached = acked + 300
            async with asyncio.timeout(60):
                while acked < reached:
                    await asyncio.sleep(0.01)
            old = await asyncio.to_thread(cluster.leader_of, name)
            await asyncio.to_thread(cluster.kill, old)
            await asyncio.to_thread(new_leader, cluster, name, old)
            await asyncio.to_thread(cluster.restart, old)
            await asyncio.to_thread(cluster.wait_until_in_sync, name)
        over.set()
        await task
        await publisher.flush()
        await publisher.close()
        assert publisher.failed == 0
    return sent


def is_acked(cluster: Cluster, name: str, sequence: int) -> bool:
    """Sent again it is stored once: that is what all of this is for."""
    fields = {"stream": name, "value": b"%d" % sequence, "headers": headers(sequence), "ackPolicy": pb.ALL}
    return cluster.api("a").future("Publish", timeout=ASK_SECONDS, **fields).code() is Status.OK


def test_what_one_leader_has_stored_is_a_duplicate_for_the_next(cluster: Cluster) -> None:
    name = unique_name("next")
    cluster.create_stream(name)
    for sequence in range(3):
        eventually(lambda number=sequence: is_acked(cluster, name, number), f"{sequence} is acked")  # type: ignore[misc]
    leader = cluster.leader_of(name)
    cluster.kill(leader)
    successor = cluster.api(new_leader(cluster, name, leader))
    for sequence in (1, 2, 3):
        ack = successor.publish(name, b"%d" % sequence, headers=headers(sequence), ackPolicy=pb.ALL)
        assert (ack.offset, ack.duplicate) == (sequence, sequence < 3)
    cluster.restart(leader)
    cluster.wait_until_in_sync(name)
