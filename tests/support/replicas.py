"""Steps that tests of replicated streams share: publish, read, look at the files of all replicas, bring everybody back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bascule.producers import producer_headers
from tests.support.api_client import Api, grpc, pb
from tests.support.broker_fixtures import unique_name
from tests.support.cluster import ASK_SECONDS, RECOVERY_SECONDS, Cluster
from tests.support.waiting import eventually

ANSWER_SECONDS = 60.0


def publish_all(
    api: Api, stream: str, count: int, partition: int = 0, *, first: int = 0, policy: int = pb.ALL, **fields: Any
) -> None:
    """The numbers from `first` on as messages, which become the offsets from `first` on."""
    session = api.publish_async()
    numbers = range(first, first + count)
    for number in numbers:
        session.send(stream, b"%d" % number, partition=partition, ackPolicy=policy, correlationId=str(number), **fields)
    answers = session.take(count)
    assert [answer.ack.offset for answer in answers] == list(numbers), answers
    assert session.finish() == []


def values(messages: list[Any]) -> list[bytes]:
    return [message.value for message in messages]


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def read_committed(api: Api, stream: str, count: int, partition: int = 0, **fields: Any) -> list[bytes]:
    """The first so many messages, once they are committed."""
    reader = api.subscribe(stream, partition, timeout=ANSWER_SECONDS, **fields)
    found = values(reader.take(count))
    reader.cancel()
    return found


def publish_until_acked(cluster: Cluster, stream: str, value: bytes, partition: int = 0) -> int:
    """Sent again until all replicas have it; its offset. Stored once, however often it had to be sent."""
    headers = producer_headers(unique_name("until-acked").encode(), 0, 0)

    def attempt() -> int | None:
        for name in cluster.well:
            try:
                ack = cluster.api(name).publish(
                    stream, value, partition=partition, ackPolicy=pb.ALL, headers=headers, timeout=ASK_SECONDS
                )
            except grpc.RpcError:
                continue
            if ack.ackError == pb.Ack.OK:
                return int(ack.offset) + 1
        return None

    return eventually(attempt, f"{stream}/{partition} takes messages") - 1


def directories(cluster: Cluster, stream: str, partition: int = 0) -> dict[str, Path]:
    return {name: cluster.partition_directory(name, stream, partition) for name in cluster.servers}


def in_sync(cluster: Cluster, stream: str, partition: int = 0) -> frozenset[str]:
    seen = cluster.view(stream, partition)
    return frozenset() if seen is None else seen.in_sync


def new_leader(cluster: Cluster, stream: str, old: str, partition: int = 0) -> str:
    """Who leads instead, once everybody who is well knows it."""

    def find() -> str:
        views = [cluster.view(stream, partition, of=name) for name in cluster.well]
        leaders = {"" if view is None else view.leader for view in views}
        return leaders.pop() if len(leaders) == 1 and old not in leaders else ""

    return eventually(find, f"{stream}/{partition} has another leader than {old}", RECOVERY_SECONDS)


def read_all(cluster: Cluster, stream: str, partition: int = 0) -> list[Any]:
    """Everything, from whoever leads: asked again when that has just changed."""

    def attempt() -> tuple[list[Any]] | None:
        try:
            return (cluster.api(cluster.leader_of(stream, partition)).read(stream, partition),)
        except (grpc.RpcError, AssertionError):
            return None

    (found,) = eventually(attempt, f"{stream}/{partition} can be read", RECOVERY_SECONDS)
    return found


@contextmanager
def everybody_back(cluster: Cluster) -> Iterator[None]:
    """Whatever the test did: afterwards all brokers run and are as one."""
    try:
        yield
    finally:
        for name in list(cluster.paused):
            cluster.resume(name)
        for name in list(cluster.cut):
            cluster.heal(name)
        away = [name for name in cluster.servers if not cluster.brokers[name].is_running]
        for name in away:
            cluster.brokers[name].kill()  # one that left by itself still has to be buried
        cluster.restart(*away)


def assert_well(cluster: Cluster) -> None:
    for name, broker in cluster.brokers.items():
        assert broker.is_running, f"{name} did not survive the last test:\n{broker.tail()}"
        assert "Traceback" not in broker.said(), broker.tail()
