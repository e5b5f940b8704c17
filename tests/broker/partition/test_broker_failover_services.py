"""What the cluster keeps in streams of its own has replicas too: cursors and activity live through the death of whoever led them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any
from zlib import crc32

import pytest

import bascule
from bascule import errors
from tests.support.api_client import Api, Status, grpc, pb
from tests.support.broker_fixtures import unique_name
from tests.support.cluster import ASK_SECONDS, RECOVERY_SECONDS, Cluster
from tests.support.on_loop import on_loop
from tests.support.replicas import assert_well, everybody_back, new_leader
from tests.support.tcp_proxy import SWALLOW
from tests.support.waiting import eventually

pytestmark = pytest.mark.disturbs

CONFIG = {
    "cursors.stream.partitions": 2,
    "cursors.stream.replication.factor": 3,
    "cursors.stream.auto.pause.time": 0,
    "activity.stream.enabled": True,
    "groups.consumer.timeout": "2s",
    "groups.coordinator.timeout": "1s",
}


@pytest.fixture(scope="module")
def whole_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("services"), proxied=True, config=CONFIG) as cluster:
        yield cluster


@pytest.fixture
def cluster(whole_cluster: Cluster) -> Iterator[Cluster]:
    with everybody_back(whole_cluster):
        yield whole_cluster
    assert_well(whole_cluster)


# ── cursors ──────────────────────────────────────────────────────────────────────────────────────


def place(name: str) -> dict[str, Any]:
    return {"stream": "s", "partition": 0, "cursorId": name}


def cursors_in(partition: int) -> list[dict[str, Any]]:
    """Some cursors that lie in this partition."""
    names = (unique_name("cursor") for _ in range(100))
    return [place(name) for name in names if crc32(f"{name},s,0".encode()) % 2 == partition][:8]


def test_cursors_go_on_and_never_back_when_their_leader_is_killed(cluster: Cluster) -> None:
    cluster.wait_until_in_sync("__cursors", 0)
    cursors = cursors_in(0)
    acked = {one["cursorId"]: -1 for one in cursors}
    offset = 0
    for _ in range(3):
        for one in cursors:
            cluster.api("a").SetCursor(**one, offset=offset)
            acked[one["cursorId"]] = offset
    old = cluster.leader_of("__cursors", 0)
    survivors = [cluster.api(name) for name in cluster.servers if name != old]
    end = threading.Event()
    violations: list[str] = []
    failures: list[Any] = []

    def look(api: Api) -> None:
        while not end.is_set():
            for one in cursors:
                before = acked[one["cursorId"]]
                try:
                    found = api.FetchCursor(**one).offset
                except grpc.RpcError as error:
                    failures.append(error.code())
                    continue
                if found < before:
                    violations.append(f"{found} after {before} was acked")

    readers = [threading.Thread(target=look, args=(api,)) for api in survivors]
    for reader in readers:
        reader.start()
    cluster.kill(old)
    for _ in range(5):
        offset += 1
        for number, one in enumerate(cursors):
            survivors[number % 2].SetCursor(**one, offset=offset)
            acked[one["cursorId"]] = offset
    end.set()
    for reader in readers:
        reader.join()
    assert violations == []
    assert failures == [], "fetching takes longer while there is no leader, and then works"
    for one in cursors:
        assert {api.FetchCursor(**one).offset for api in survivors} == {offset}


def test_a_leader_that_is_cut_off_tells_no_cursor_that_may_be_old(cluster: Cluster) -> None:
    cluster.wait_until_in_sync("__cursors", 1)
    cursor = cursors_in(1)[0]
    old = cluster.leader_of("__cursors", 1)
    cluster.api(old).SetCursor(**cursor, offset=1)
    cluster.cut_off(old, SWALLOW)
    new_leader(cluster, "__cursors", old, 1)
    cluster.api(cluster.well[0]).SetCursor(**cursor, offset=2)
    with pytest.raises(grpc.RpcError) as refused:
        cluster.api(old).FetchCursor(**cursor, timeout=ASK_SECONDS)
    assert refused.value.code() in (Status.INTERNAL, Status.DEADLINE_EXCEEDED, Status.UNAVAILABLE)
    cluster.heal(old)
    assert cluster.api(old).FetchCursor(**cursor).offset == 2


@on_loop
async def test_a_cursor_that_may_be_stored_is_not_reported_as_not_stored(cluster: Cluster) -> None:
    """A follower is down and still counts as in sync: the leader stores the cursor, and cannot confirm it yet."""
    cluster.wait_until_in_sync("__cursors", 0)
    names = [one["cursorId"] for one in cursors_in(0)][:4]
    leader = cluster.leader_of("__cursors", 0)
    follower = next(name for name in cluster.servers if name not in (leader, cluster.controller()))
    async with bascule.connect(cluster.brokers[leader].address, timeout=60) as client:
        cluster.pause(follower)
        began = time.monotonic()
        with pytest.raises(errors.OutcomeUnknown, match="SetCursor was sent"):
            await client.set_cursor(names[0], "s", 0, 5, timeout=1)
        assert time.monotonic() - began > 0.8, "the caller's timeout counts"
        await client.set_cursor(names[1], "s", 0, 6)
        assert await client.fetch_cursor(names[0], "s") == 5
        assert await client.fetch_cursor(names[1], "s") == 6


# ── activity ─────────────────────────────────────────────────────────────────────────────────────


def test_activity_is_told_at_least_once_and_in_order_when_the_controller_is_killed(cluster: Cluster) -> None:
    names = [unique_name("told") for _ in range(12)]
    cluster.wait_until_in_sync("__activity")
    for name in names[:6]:
        cluster.api("a").CreateStream(name=name, subject=name)
    cluster.kill(cluster.controller())

    def create(name: str) -> bool:
        for one in cluster.well:
            call = cluster.api(one).future("CreateStream", name=name, subject=name, timeout=5)
            if call.code() in (Status.OK, Status.ALREADY_EXISTS):
                return True
        return False

    for name in names[6:]:
        eventually(lambda name=name: create(name), f"{name} can be created")  # type: ignore[misc]
    told: list[Any] = []

    def all_told() -> bool:
        """Reads on, at whoever leads now."""
        try:
            reader = cluster.api(cluster.leader_of("__activity")).subscribe(
                "__activity", startPosition=pb.OFFSET, startOffset=len(told), timeout=ASK_SECONDS
            )
            for message in reader.rest():
                assert message.offset == len(told)
                told.append(pb.ActivityStreamEvent.FromString(message.value))
                if told[-1].createStreamOp.stream == names[-1]:
                    reader.cancel()
                    return True
        except grpc.RpcError:
            pass
        return False

    eventually(all_told, "the last event is there", RECOVERY_SECONDS)
    seen: list[int] = []
    for event in told:
        if event.id not in seen:
            assert not seen or event.id > seen[-1], "an event came too late"
            seen.append(event.id)
    created = [event.createStreamOp.stream for event in told if event.op == pb.CREATE_STREAM]
    assert list(dict.fromkeys(name for name in created if name in names)) == names


# ── groups ───────────────────────────────────────────────────────────────────────────────────────


def test_members_that_are_gone_expire_with_a_new_coordinator_too(cluster: Cluster) -> None:
    name, group = unique_name("read"), unique_name("group")
    cluster.create_stream(name, partitions=4)
    api = cluster.api(cluster.well[0])
    for consumer in ("alive", "gone"):
        joined = api.JoinConsumerGroup(groupId=group, consumerId=consumer, streams=[name])
    old = joined.coordinator
    cluster.kill(old)
    well = [cluster.api(one) for one in cluster.well]

    def metadata() -> Any:
        for one in well:
            try:
                (found,) = one.FetchMetadata(groups=[group], timeout=ASK_SECONDS).groupMetadata
            except grpc.RpcError:
                continue
            return found
        return None

    def replaced() -> bool:
        for consumer in ("alive", "gone"):
            well[0].future(
                "ReportConsumerGroupCoordinator",
                groupId=group,
                consumerId=consumer,
                coordinator=old,
                epoch=joined.epoch,
            ).exception()
        found = metadata()
        return bool(found is not None and found.coordinator != old)

    eventually(replaced, "another coordinator was chosen")
    taken: set[int] = set()

    def rejoin() -> None:
        well[0].future(
            "JoinConsumerGroup", groupId=group, consumerId="alive", streams=[name], timeout=ASK_SECONDS
        ).exception()

    def alone() -> bool:
        """The one that is alive asks, as members do, until it has everything; and joins again if it stood still for too long."""
        found = metadata()
        if found is None:
            return False
        if found.error != pb.ConsumerGroupMetadata.OK:
            rejoin()
            return False
        if found.coordinator not in cluster.well:
            return False
        call = cluster.api(found.coordinator).future(
            "FetchConsumerGroupAssignments", groupId=group, consumerId="alive", epoch=found.epoch, timeout=ASK_SECONDS
        )
        if call.exception() is not None:
            if "not a member" in (call.details() or ""):
                rejoin()
            return False
        taken.clear()
        taken.update(number for one in call.result().assignments for number in one.partitions)
        return len(taken) == 4

    eventually(alone, "the member that gave no sign of life was put out")
    assert taken == {0, 1, 2, 3}
