"""A consumer that calls what go-liftbridge's calls, in its order: join, heartbeats, subscriptions, checkpoints, `Close`.

Its `Close` leaves the group, cancels the context of its loop and waits for the loop. The loop looks whether it was closed only after a
heartbeat that was answered: after a refusal it reads the metadata, sleeps two seconds and tries again. With a cancelled context every
call fails at once, so that a loop which was closed in that branch never ends.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.api_client import Api, grpc, pb
from tests.support.broker_fixtures import unique_name
from tests.support.cluster import LONG_TIMEOUTS, Cluster
from tests.support.waiting import PATIENCE_SECONDS, eventually

PAUSE_SECONDS = 2.0
INTERVAL_SECONDS = 2.0
"""Between heartbeats. A member is closed right after one, so that none falls into its `LeaveConsumerGroup`."""
SPINS_MAX = 200


class Cancelled(Exception):
    """The context of a call was cancelled."""


class GoConsumer:
    def __init__(self, api: Api, coordinators: dict[str, Api], group: str, consumer: str) -> None:
        self._api = api
        self._coordinators = coordinators
        self._group = group
        self._consumer = consumer
        self._cancelled = threading.Event()
        self._closed = threading.Event()
        self._subscriptions: dict[tuple[str, int], tuple[int, Any]] = {}
        self._loop = threading.Thread(target=self._run, daemon=True)
        self.answered = 0
        """Heartbeats that were answered or refused."""
        self.hangs = False

    @property
    def places(self) -> set[tuple[str, int]]:
        return set(self._subscriptions)

    def subscribe(self, streams: list[str]) -> None:
        joined = self._api.JoinConsumerGroup(groupId=self._group, consumerId=self._consumer, streams=streams)
        self._coordinator, self._epoch = joined.coordinator, joined.epoch
        self._loop.start()

    def end(self) -> None:
        """End the loop, whatever it waits for."""
        self._cancelled.set()
        self._closed.set()
        self._loop.join(PATIENCE_SECONDS)

    def close(self) -> None:
        self._api.LeaveConsumerGroup(groupId=self._group, consumerId=self._consumer)
        self.end()
        assert not self._loop.is_alive()
        assert not self.hangs, "Close would wait for ever"

    # ── the loop ─────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        spins = 0
        while spins < SPINS_MAX:
            try:
                answer = self._call(
                    self._coordinators[self._coordinator].FetchConsumerGroupAssignments,
                    groupId=self._group,
                    consumerId=self._consumer,
                    epoch=self._epoch,
                )
            except (grpc.RpcError, Cancelled):
                spins += self._cancelled.is_set()
                self.answered += 1
                self._check_coordinator()
                self._cancelled.wait(PAUSE_SECONDS)
                continue
            self._reconcile(answer)
            self.answered += 1
            if self._closed.wait(INTERVAL_SECONDS):
                return
        self.hangs = True

    def _call(self, call: Any, **fields: Any) -> Any:
        if self._cancelled.is_set():
            raise Cancelled
        return call(**fields)

    def _check_coordinator(self) -> None:
        try:
            (found,) = self._call(self._api.FetchMetadata, groups=[self._group]).groupMetadata
        except (grpc.RpcError, Cancelled):
            return
        if found.error == pb.ConsumerGroupMetadata.OK:
            self._coordinator, self._epoch = found.coordinator, found.epoch

    def _reconcile(self, answer: Any) -> None:
        wanted = {(one.stream, number) for one in answer.assignments for number in one.partitions}
        for place, (epoch, call) in list(self._subscriptions.items()):
            if place not in wanted or epoch != answer.epoch:
                call.cancel()
                del self._subscriptions[place]
        for stream, partition in wanted - self._subscriptions.keys():
            consumer = pb.Consumer(groupId=self._group, consumerId=self._consumer, groupEpoch=answer.epoch)
            try:
                leader = self._api.stream(stream).partitions[partition].leader
                opened = self._coordinators[leader].subscribe(stream, partition, timeout=None, consumer=consumer)
            except grpc.RpcError:
                continue  # reported to the application, and tried again after the next heartbeat
            self._subscriptions[stream, partition] = (answer.epoch, opened.call)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    config = {**LONG_TIMEOUTS, "cursors.stream.partitions": 1, "groups.consumer.timeout": "60s"}
    with Cluster(tmp_path_factory.mktemp("go-consumer"), config=config) as found:
        yield found


def wait_for_heartbeat(member: GoConsumer) -> None:
    before = member.answered
    eventually(lambda: member.answered > before, "it has sent a heartbeat")


def shrink(api: Api, coordinators: dict[str, Api], stream: str, partitions: int) -> None:
    """A group of three shrinks to one, and to none. Each member is closed right after its first heartbeat in the smaller group."""
    group = unique_name("go")
    members = [GoConsumer(api, coordinators, group, f"c{number}") for number in range(3)]
    for member in members:
        member.subscribe([stream])

    def all_read() -> bool:
        places = [place for member in members for place in member.places]
        return len(places) == len(set(places)) == partitions

    try:
        eventually(all_read, "each partition has one reader")
        while members:
            wait_for_heartbeat(members[-1])
            members.pop().close()
    finally:
        for member in members:
            member.end()


def test_close_returns_when_a_group_of_three_shrinks(api: Api, make_stream: Any) -> None:
    (broker,) = api.FetchMetadata().brokers
    shrink(api, {broker.id: api}, make_stream(partitions=3).name, 3)


def test_the_same_on_three_brokers(cluster: Cluster) -> None:
    stream = unique_name("go-stream")
    cluster.create_stream(stream, partitions=3)
    shrink(cluster.api("a"), {name: cluster.api(name) for name in cluster.servers}, stream, 3)
