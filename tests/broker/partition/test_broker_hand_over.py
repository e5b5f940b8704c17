"""Hand-overs of a partition's leadership under load: each message is stored once, in the order of its publisher, and answered once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

import bascule
from bascule.client.admin.cluster import ClusterAdmin
from bascule.errors import BasculeError
from tests.support.api_client import grpc, pb
from tests.support.broker_fixtures import unique_name
from tests.support.cluster import LONG_TIMEOUTS, Cluster
from tests.support.nats_client import NatsClient
from tests.support.replicas import assert_well, new_leader, read_all
from tests.support.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.disturbs

PAUSE_SECONDS = 0.001
HAND_OVERS = 6
TICK = b"tick"


@pytest.fixture(scope="module")
def whole_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    config = {**LONG_TIMEOUTS, "shutdown.drain.timeout": "120s"}
    with Cluster(tmp_path_factory.mktemp("hand-over"), config=config) as cluster:
        yield cluster


@pytest.fixture
def cluster(whole_cluster: Cluster) -> Iterator[Cluster]:
    yield whole_cluster
    assert_well(whole_cluster)


class Sender:
    """Publishes numbered messages without idempotence, and never sends one again."""

    def __init__(self, cluster: Cluster, server: str, stream: str, policy: int) -> None:
        self.session = cluster.api(server).publish_async(timeout=10 * PATIENCE_SECONDS)
        self.name = f"{server}-{policy}"
        self.sent = 0
        self.answers: list[tuple[bytes, int | None]] = []
        """Values and offsets; without an offset: an error."""
        self._stream = stream
        self._policy = policy
        self.end = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._send, self._receive)]
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        while not self.end.is_set():
            value = f"{self.name} {self.sent}"
            self.session.send(self._stream, value.encode(), ackPolicy=self._policy, correlationId=value)
            self.sent += 1
            time.sleep(PAUSE_SECONDS)

    def _receive(self) -> None:
        with suppress(grpc.RpcError):
            for answer in self.session.call:
                value = (answer.correlationId or answer.ack.correlationId).encode()
                failed = answer.HasField("asyncError") or answer.ack.ackError != pb.Ack.OK
                self.answers.append((value, None if failed else answer.ack.offset))

    def finish(self) -> None:
        self._threads[0].join()
        self.session.half_close()
        self._threads[1].join()


class PlainSender:
    """Publishes to the subject over NATS: numbered messages, and as many that are all the same."""

    def __init__(self, url: str, subject: str) -> None:
        self.sent = 0
        self._client = NatsClient(url)
        self._subject = subject
        self.end = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def _send(self) -> None:
        while not self.end.is_set():
            self._client.publish(self._subject, b"plain %d" % self.sent)
            self._client.publish(self._subject, TICK)
            self.sent += 1
            time.sleep(PAUSE_SECONDS)

    def finish(self) -> None:
        self._thread.join()
        self._client.flush()
        self._client.close()


def drain(cluster: Cluster, server: str, **how: bool) -> None:
    async def work() -> None:
        async with bascule.connect(cluster.addresses, timeout=PATIENCE_SECONDS) as client:
            await ClusterAdmin(client).drain(server, **how)

    def attempt() -> bool:
        try:
            asyncio.run(work())
        except BasculeError:
            return False
        return True

    eventually(attempt, f"{server} is drained")


def hand_over(cluster: Cluster, stream: str) -> None:
    """The leader gives its leaderships to the others, and may get them back."""
    leader = cluster.leader_of(stream)
    drain(cluster, leader, keep_running=True)
    new_leader(cluster, stream, leader)
    drain(cluster, leader, undo=True)


def stop_cleanly(cluster: Cluster, stream: str, spared: str) -> None:
    """The leader stops; if it is the spared server, another one."""
    leader = cluster.leader_of(stream)
    if leader == spared:
        hand_over(cluster, stream)
        leader = cluster.leader_of(stream)
    assert cluster.stop(leader) == 0
    new_leader(cluster, stream, leader)
    cluster.restart(leader)
    cluster.wait_until_in_sync(stream)


def check(stream: list[Any], senders: list[Sender], plain: PlainSender) -> None:
    stored = {one.offset: one.value for one in stream}
    counts = Counter(stored.values())
    ticks = counts.pop(TICK)
    assert {value: count for value, count in counts.items() if count > 1} == {}, "stored twice"
    for sender in senders:
        acked = {value: offset for value, offset in sender.answers if offset is not None}
        failed = {value for value, offset in sender.answers if offset is None}
        assert not failed & set(acked), "refused, and stored all the same"
        assert failed == set(), "a hand-over refuses nothing"
        assert len(sender.answers) == sender.sent, "every publish has one answer"
        assert {value: stored.get(offset) for value, offset in acked.items()} == {value: value for value in acked}
    for name in [*(sender.name for sender in senders), "plain"]:
        numbers = [int(value.split()[1]) for value in stored.values() if value.startswith(name.encode() + b" ")]
        assert numbers == sorted(numbers), f"{name} is out of order"
    assert counts.keys() >= {b"plain %d" % number for number in range(plain.sent)}, "a plain message is lost"
    assert ticks <= plain.sent, "a plain message that equals others is stored twice"
    assert ticks > plain.sent - plain.sent // 10, "plain messages that equal others are taken for copies"


def under_load(cluster: Cluster, servers: list[str], work: Callable[[str], None]) -> None:
    name = unique_name("hand-over")
    cluster.create_stream(name)
    senders = [Sender(cluster, server, name, policy) for server in servers for policy in (pb.ALL, pb.LEADER)]
    plain = PlainSender(cluster.nats[0].url, cluster.subject_of(name))

    def more() -> None:
        before = [len(sender.answers) for sender in senders]
        eventually(
            lambda: all(len(sender.answers) > count + 50 for sender, count in zip(senders, before, strict=True)),
            "messages are acked",
        )

    more()
    work(name)
    more()
    plain.end.set()
    for sender in senders:
        sender.end.set()
    for sender in senders:
        sender.finish()
    plain.finish()
    cluster.api(servers[0]).publish(name, b"last", ackPolicy=pb.ALL)  # what was sent before it is in the log
    check(read_all(cluster, name), senders, plain)


def test_hand_overs_store_and_answer_every_message_once_and_in_order(cluster: Cluster) -> None:
    def work(stream: str) -> None:
        for _ in range(HAND_OVERS):
            hand_over(cluster, stream)

    under_load(cluster, list(cluster.servers), work)


def test_clean_stops_store_and_answer_every_message_once_and_in_order(cluster: Cluster) -> None:
    spared = cluster.servers[0]

    def work(stream: str) -> None:
        for _ in range(3):
            stop_cleanly(cluster, stream, spared)

    under_load(cluster, [spared], work)
