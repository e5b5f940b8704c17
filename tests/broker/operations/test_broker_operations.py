"""Three brokers and somebody who runs them: restarts that nobody notices, servers that come and go, partitions that move."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

import bascule
from bascule.client.admin.cluster import ClusterAdmin, ClusterStatus, PlannedMoves
from bascule.errors import BasculeError, CallerError, StateError, Unavailable
from tests.support.api_client import Api, Status, grpc
from tests.support.broker_fixtures import StartBroker
from tests.support.broker_process import BrokerProcess
from tests.support.cluster import LONG_TIMEOUTS, RECOVERY_SECONDS, Cluster
from tests.support.nats_server import NatsServer
from tests.support.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.disturbs

T = TypeVar("T")


CURSORS = {"cursors.stream.partitions": 1}
LONG_DRAIN = {"shutdown.drain.timeout": "120s"}
PATIENT = {**LONG_TIMEOUTS, **LONG_DRAIN, "groups.consumer.timeout": "120s"}
"""What is done in good order needs no time-out: with these, whoever waits for one is noticed, since nobody here waits that long."""


@pytest.fixture
def cluster(tmp_path: Path, nats_server: NatsServer) -> Iterator[Cluster]:
    with Cluster(tmp_path, nats=nats_server, config={**CURSORS, **PATIENT}) as found:
        yield found


@pytest.fixture
def mortal(tmp_path: Path, nats_server: NatsServer) -> Iterator[Cluster]:
    """One whose servers die and are missed soon."""
    with Cluster(tmp_path, nats=nats_server, config=CURSORS) as found:
        yield found


def run(addresses: list[str], work: Callable[[ClusterAdmin], Awaitable[T]]) -> T:
    async def connected() -> T:
        async with bascule.connect(addresses, timeout=PATIENCE_SECONDS) as client:
            return await work(ClusterAdmin(client))

    return asyncio.run(connected())


def insist(cluster: Cluster, work: Callable[[ClusterAdmin], Awaitable[T]]) -> T:
    """A server that stands still for a second counts as one that does not answer, and much is refused then: it is asked for again."""
    deadline = time.monotonic() + RECOVERY_SECONDS
    while True:
        try:
            return run([cluster.brokers[name].address for name in cluster.well], work)
        except (StateError, CallerError, Unavailable):
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def status(cluster: Cluster) -> ClusterStatus:
    return run([cluster.brokers[name].address for name in cluster.well], lambda admin: admin.status())


def until_still(cluster: Cluster) -> ClusterStatus:
    """Until nothing moves, and everybody says so."""

    def look() -> ClusterStatus | None:
        found = status(cluster)
        answer = {one.id for one in found.members if one.answers}
        return found if found.controller_answers and answer >= set(cluster.well) and not found.is_moving else None

    return eventually(look, "everything that moved has arrived", RECOVERY_SECONDS)


def carry_out(
    cluster: Cluster, ask: Callable[[ClusterAdmin, bool], Awaitable[PlannedMoves]]
) -> tuple[PlannedMoves, ClusterStatus]:
    """As the command line does it: `ask` plans (True) or has it done (False), again until nothing is left of it. What was asked for
    first, and how things are in the end."""
    first: list[PlannedMoves] = []

    def look() -> ClusterStatus | None:
        first.append(insist(cluster, lambda admin: ask(admin, False)))
        found = until_still(cluster)
        left = insist(cluster, lambda admin: ask(admin, True))
        return None if left.moves or left.leaders else found

    found = eventually(look, "nothing is left to move", RECOVERY_SECONDS)
    return first[0], found


def join(cluster: Cluster, name: str) -> BrokerProcess:
    """A server that asks the others to be taken in."""
    config = {
        "clustering.namespace": cluster.namespace,
        "clustering.server.id": name,
        "cursors.stream.partitions": 1,
        **cluster._config,
    }
    broker = BrokerProcess(cluster.directory / name, nats_url=cluster.nats[0].url, config=config, seed=False)
    broker.start()
    cluster.brokers[name] = broker
    cluster._apis[name] = broker.api()
    cluster._stack.callback(cluster._apis[name].close)
    cluster._stack.callback(broker.kill)
    return broker


def replicas(cluster: Cluster, stream: str) -> dict[int, list[str]]:
    found = cluster.ask(lambda api: api.stream(stream))
    return {number: list(one.replicas) for number, one in sorted(found.partitions.items())}


def wait_for_replicas(cluster: Cluster, stream: str, are_right: Callable[[dict[int, list[str]]], bool]) -> None:
    """The server that is asked may hear a little later than others of what was done."""
    eventually(lambda: are_right(replicas(cluster, stream)), f"the replicas of {stream} are where they should be")


def create_spread(cluster: Cluster, stream: str) -> None:
    """A partition with one replica on each server. One that stood still for a second is given none: then it is made anew."""
    while True:
        cluster.create_stream(stream, factor=1, partitions=len(cluster.servers))
        if {server for one in replicas(cluster, stream).values() for server in one} == set(cluster.servers):
            return
        cluster.api("a").DeleteStream(name=stream)


def values(cluster: Cluster, stream: str, partition: int = 0) -> list[bytes]:
    """Everything there is, in its order."""

    async def read() -> list[bytes]:
        addresses = [cluster.brokers[name].address for name in cluster.well]
        async with bascule.connect(addresses, timeout=PATIENCE_SECONDS) as client:
            found = client.subscribe(stream, partition=partition, start="earliest", stop="latest")
            return [message.value or b"" async for message in found]

    return asyncio.run(read())


def publish(cluster: Cluster, stream: str, count: int, partition: int = 0, *, ack: str = "all", size: int = 0) -> None:
    async def send() -> None:
        addresses = [cluster.brokers[name].address for name in cluster.well]
        async with bascule.connect(addresses, timeout=PATIENCE_SECONDS) as client:
            bodies = [b"%d" % number + b"." * size for number in range(count)]
            await client.publish_many(stream, bodies, partition=partition, ack=ack)  # type: ignore[arg-type]

    asyncio.run(send())


class Load:
    """Publishers that never stop. Each waits for its ack before it sends the next message; a failure is kept."""

    def __init__(self, addresses: list[str], stream: str, partitions: int, publishers: int = 3) -> None:
        self._addresses = addresses
        self._stream = stream
        self._partitions = partitions
        self._publishers = publishers
        self._ending = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.acked: list[tuple[int, int, bytes]] = []
        self.failures: list[BasculeError] = []

    async def _run(self) -> None:
        async with bascule.connect(self._addresses, timeout=PATIENCE_SECONDS) as client:
            places = [
                (partition, number) for partition in range(self._partitions) for number in range(self._publishers)
            ]
            await asyncio.gather(*(self._publish(client, *place) for place in places))

    async def _publish(self, client: Any, partition: int, publisher: int) -> None:
        number = 0
        while not self._ending.is_set():
            value = b"%d-%d-%d" % (partition, publisher, number)
            number += 1
            try:
                ack = await client.publish(self._stream, value, partition=partition, ack="all")
                self.acked.append((partition, ack.offset, value))
            except BasculeError as error:
                self.failures.append(error)

    def wait_for_more(self, count: int = 50) -> None:
        """Until so many more messages were acked."""
        wanted = len(self.acked) + count
        eventually(lambda: len(self.acked) >= wanted, "publishers go on", RECOVERY_SECONDS)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()


def check_kept(cluster: Cluster, stream: str, load: Load, partitions: int) -> None:
    """Every acked message lies where its ack said."""
    for partition in range(partitions):
        found = values(cluster, stream, partition)
        for number, offset, value in load.acked:
            if number == partition:
                assert found[offset] == value


# ── restarts ─────────────────────────────────────────────────────────────────────────────────────


def test_a_rolling_restart_under_load_fails_no_publish(cluster: Cluster) -> None:
    cluster.create_stream("orders", partitions=4)
    with Load(cluster.addresses, "orders", 4) as load:
        load.wait_for_more()
        for name in cluster.servers:
            assert cluster.stop(name) == 0
            load.wait_for_more()
            cluster.restart(name)
            for partition in range(4):
                cluster.wait_until_in_sync("orders", partition)
            load.wait_for_more()
    assert load.failures == []
    check_kept(cluster, "orders", load, 4)


def test_a_server_that_stops_is_missed_by_nobody(cluster: Cluster) -> None:
    """Leaders, in-sync sets, groups and the controller's role are elsewhere before it is gone: no time-out has to pass."""
    cluster.create_stream("orders", partitions=3)
    name = cluster.controller()
    others = [one for one in cluster.servers if one != name]
    joined = cluster.api(name).JoinConsumerGroup(groupId="g", consumerId="c", streams=["orders"])
    if joined.coordinator != name:
        cluster.api(name).ReportConsumerGroupCoordinator(
            groupId="g", consumerId="c", coordinator=joined.coordinator, epoch=joined.epoch
        )
    assert cluster.stop(name) == 0

    def is_missed_by_nobody() -> bool:
        views = [cluster.view("orders", partition, of=others[0]) for partition in range(3)]
        (group,) = cluster.api(others[0]).FetchMetadata(groups=["g"]).groupMetadata
        return group.coordinator in others and all(
            view is not None and view.leader in others and name not in view.in_sync for view in views
        )

    # Whoever is asked may have heard of it last.
    eventually(is_missed_by_nobody, "its part was taken over, without waiting for a time-out")
    eventually(lambda: status(cluster).controller in others, "another server is controller")


def test_a_second_signal_skips_the_drain(cluster: Cluster) -> None:
    cluster.create_stream("orders", factor=2)
    leader = cluster.leader_of("orders")
    (follower,) = cluster.followers_of("orders")
    publish(cluster, "orders", 5)
    # A follower that stands still cannot take over before the leader's patience ends.
    cluster.pause(follower)
    cluster.api(leader).publish("orders", b"x")
    process = cluster.brokers[leader].process
    assert process is not None
    process.send_signal(signal.SIGTERM)
    eventually(lambda: "stopping" in cluster.brokers[leader].said(), "it has begun to stop")
    process.send_signal(signal.SIGTERM)
    assert cluster.brokers[leader].wait() == 0, "sooner than a drain would end"
    cluster.resume(follower)


def test_a_server_that_is_alone_stops_at_once(start_broker: StartBroker) -> None:
    broker = start_broker({"cursors.stream.partitions": 1, **LONG_DRAIN})
    api = broker.api()
    api.CreateStream(name="s", subject="s")
    api.close()
    assert broker.stop() == 0, "sooner than a drain would end"
    assert "handed over" not in broker.said()


# ── draining ─────────────────────────────────────────────────────────────────────────────────────


def test_a_drained_server_stops_and_leads_nothing(cluster: Cluster) -> None:
    cluster.create_stream("orders", partitions=3)
    with Load(cluster.addresses, "orders", 3) as load:
        load.wait_for_more()
        run(cluster.addresses, lambda admin: admin.drain("b"))
        assert cluster.brokers["b"].wait() == 0
        load.wait_for_more()
    assert load.failures == []
    member = status(cluster).member("b")
    assert member is not None
    assert (member.answers, member.leaders) == (False, 0)
    check_kept(cluster, "orders", load, 3)


def test_a_server_that_keeps_running_is_given_nothing_until_it_is_undone(cluster: Cluster) -> None:
    cluster.create_stream("orders", partitions=6)
    kept = run(cluster.addresses, lambda admin: admin.drain("b", keep_running=True))
    assert [one for one in kept if one.stream == "orders"] == []
    found = until_still(cluster)
    member = found.member("b")
    assert member is not None
    assert (member.state, member.answers, member.leaders) == ("leaving", True, 0)
    assert found.controller != "b"
    cluster.create_stream("later", factor=2, partitions=6)
    assert all("b" not in one for one in replicas(cluster, "later").values())
    run(cluster.addresses, lambda admin: admin.drain("b", undo=True))
    _, found = carry_out(cluster, lambda admin, dry_run: admin.rebalance(dry_run=dry_run))
    member = found.member("b")
    assert member is not None
    assert member.state == "active"
    assert member.leaders > 0
    assert member.replicas > 6


def test_what_only_one_server_has_stays_with_it(cluster: Cluster) -> None:
    cluster.create_stream("solo", factor=1, partitions=3)
    led = [number for number, one in replicas(cluster, "solo").items() if one == ["b"]]
    kept = run(cluster.addresses, lambda admin: admin.drain("b", keep_running=True))
    assert [one.partition for one in kept if one.stream == "solo"] == led


# ── moving ───────────────────────────────────────────────────────────────────────────────────────


def test_the_replication_factor_goes_up_and_down_and_nothing_is_lost(cluster: Cluster) -> None:
    cluster.create_stream("orders", factor=1, partitions=2)
    for factor in (3, 2, 1, 3):
        publish(cluster, "orders", 100)

        async def change(admin: ClusterAdmin, factor: int = factor) -> None:
            await admin.reassign("orders", replication_factor=factor)

        insist(cluster, change)
        until_still(cluster)
        wait_for_replicas(cluster, "orders", lambda found: all(len(one) == factor for one in found.values()))  # noqa: B023
        for partition in range(2):
            cluster.wait_until_in_sync("orders", partition)
    assert values(cluster, "orders") == [b"%d" % number for _ in range(4) for number in range(100)]


def test_a_partition_moves_under_load_to_where_it_is_sent(cluster: Cluster) -> None:
    cluster.create_stream("orders", factor=1)
    with Load(cluster.addresses, "orders", 1) as load:
        load.wait_for_more()
        for server in ("b", "c", "a", "b"):

            async def move(admin: ClusterAdmin, server: str = server) -> None:
                await admin.reassign("orders", replicas=[server])

            insist(cluster, move)
            until_still(cluster)
            wait_for_replicas(cluster, "orders", lambda found: found == {0: [server]})  # noqa: B023
            load.wait_for_more()
    assert load.failures == []
    check_kept(cluster, "orders", load, 1)
    for other in "ac":
        directory = cluster.partition_directory(other, "orders")
        eventually(lambda: not logs_in(directory), f"what was moved away from {other} is deleted")  # noqa: B023


def logs_in(directory: Path) -> list[Path]:
    try:
        return list(directory.glob("*.log"))
    except FileNotFoundError:  # just now
        return []


def test_a_paused_partition_moves_and_is_paused_again(cluster: Cluster) -> None:
    cluster.create_stream("orders", factor=1)
    publish(cluster, "orders", 10)
    (before,) = replicas(cluster, "orders").values()
    target = next(one for one in cluster.servers if one not in before)
    cluster.api("a").PauseStream(name="orders")
    insist(cluster, lambda admin: admin.reassign("orders", replicas=[target]))
    eventually(lambda: replicas(cluster, "orders") == {0: [target]}, "it has moved", RECOVERY_SECONDS)
    eventually(lambda: cluster.ask(lambda api: api.stream("orders").partitions[0].paused), "it is paused again")
    cluster.api("a").publish("orders", b"on")
    assert len(values(cluster, "orders")) == 11


def test_a_move_is_cancelled_and_the_partition_stays(cluster: Cluster) -> None:
    cluster.create_stream("orders", factor=2)
    publish(cluster, "orders", 3000, size=1000)
    (before,) = replicas(cluster, "orders").values()
    target = next(one for one in cluster.servers if one not in before)

    async def begin_and_give_up(admin: ClusterAdmin) -> ClusterStatus:
        await admin.set_throttle(20_000)  # it takes minutes
        await admin.reassign("orders", replicas=[target])
        found = await admin.status()
        while not any(one.lag_messages for one in found.reassignments):  # how far it is can be seen
            await asyncio.sleep(0.02)
            found = await admin.status()
        await admin.cancel("orders")
        return found

    found = insist(cluster, begin_and_give_up)
    (moving,) = found.reassignments
    assert (moving.move.before, moving.move.after) == (tuple(before), (target,))
    assert until_still(cluster).reassignments == ()
    wait_for_replicas(cluster, "orders", lambda found: found == {0: before})
    assert len(values(cluster, "orders")) == 3000


def test_a_throttle_really_limits_what_catches_up(cluster: Cluster) -> None:
    cluster.create_stream("orders", factor=1)
    publish(cluster, "orders", 1000, size=2000)  # 2 MB
    (before,) = replicas(cluster, "orders").values()
    target = next(one for one in cluster.servers if one not in before)

    run(cluster.addresses, lambda admin: admin.set_throttle(500_000))
    began = time.monotonic()
    insist(cluster, lambda admin: admin.reassign("orders", replicas=[target]))
    until_still(cluster)
    # 2 MB at 0.5 MB a second; a second's worth may go at once.
    assert time.monotonic() - began > 2.0
    wait_for_replicas(cluster, "orders", lambda found: found == {0: [target]})
    run(cluster.addresses, lambda admin: admin.set_throttle(0))
    assert status(cluster).throttle_bytes_per_second == 0


def test_leaders_spread_out_again(cluster: Cluster) -> None:
    cluster.create_stream("orders", partitions=6)
    cluster.stop("b")
    cluster.restart("b")
    for partition in range(6):
        cluster.wait_until_in_sync("orders", partition)
    cluster.wait_for_cursors()
    before = status(cluster).member("b")
    assert before is not None
    assert before.leaders == 0

    plan, found = carry_out(cluster, lambda admin, dry_run: admin.rebalance(leaders_only=True, dry_run=dry_run))
    assert plan.moves == ()
    # Six partitions, and that of the cursors, which may be anybody's.
    assert sorted(member.leaders for member in found.members) == [2, 2, 3]


# ── servers that come and go ─────────────────────────────────────────────────────────────────────


def test_a_server_that_joins_gets_its_share(cluster: Cluster) -> None:
    cluster.create_stream("orders", partitions=4)
    publish(cluster, "orders", 200)
    join(cluster, "d")
    eventually(lambda: status(cluster).member("d"), "it is a member")
    # The cluster's own stream is on all servers without being told.
    eventually(lambda: "d" in replicas(cluster, "__cursors")[0], "cursors are on it", RECOVERY_SECONDS)
    with Load(cluster.addresses, "orders", 4) as load:
        load.wait_for_more()
        _, found = carry_out(cluster, lambda admin, dry_run: admin.add_servers(["d"], dry_run=dry_run))
        load.wait_for_more()
    assert load.failures == []
    hosted = {one.id: one.replicas for one in found.members}
    assert max(hosted.values()) - min(hosted.values()) <= 1
    check_kept(cluster, "orders", load, 4)


def remove(cluster: Cluster, name: str, **options: Any) -> None:
    """As the command line does it: asked until it is done."""

    def ask() -> bool:
        addresses = [cluster.brokers[one].address for one in cluster.well]
        try:
            return run(addresses, lambda admin: admin.remove_server(name, **options)).removed
        except (StateError, Unavailable):
            return False  # one that could have its replicas stands still for a moment
        except CallerError as error:
            # It was done, and the answer to that call was lost.
            assert "no server of the cluster" in error.message, error
            return True

    eventually(ask, f"{name} is removed", RECOVERY_SECONDS)


@pytest.mark.parametrize("which", ["the controller", "another"])
def test_a_live_server_is_removed_under_load_and_stops(cluster: Cluster, which: str) -> None:
    join(cluster, "d")
    cluster.create_stream("orders", partitions=3)
    cluster.create_stream("solo", factor=1, partitions=4)
    controller = status(cluster).controller
    name = controller if which == "the controller" else next(one for one in cluster.servers if one != controller)
    with Load(cluster.addresses, "orders", 3) as load:
        load.wait_for_more()
        remove(cluster, name)
        load.wait_for_more()
        assert cluster.brokers[name].wait() == 0
        load.wait_for_more()
    assert load.failures == []
    assert f"server {name} was removed from the cluster" in cluster.brokers[name].said()
    assert name not in [one.id for one in status(cluster).members]
    eventually(lambda: status(cluster).troubles == (), "nothing is missing")
    for stream in ("orders", "solo", "__cursors"):
        wait_for_replicas(cluster, stream, lambda found: all(name not in one for one in found.values()))
    check_kept(cluster, "orders", load, 3)
    # Started again with what it has, it says why it cannot take part.
    cluster.brokers[name].launch()
    assert cluster.brokers[name].wait(RECOVERY_SECONDS) == 4
    assert "was removed from the cluster" in cluster.brokers[name].tail()


def test_a_dead_server_is_replaced(mortal: Cluster) -> None:
    cluster = mortal
    cluster.create_stream("orders", partitions=3)
    publish(cluster, "orders", 100)
    cluster.kill("b")
    with pytest.raises(StateError, match="no other server can have the replica"):
        run([cluster.brokers["a"].address], lambda admin: admin.remove_server("b"))
    join(cluster, "d")
    remove(cluster, "b")
    assert sorted(one.id for one in status(cluster).members) == ["a", "c", "d"]
    wait_for_replicas(cluster, "orders", lambda found: all(sorted(one) == ["a", "c", "d"] for one in found.values()))
    for partition in range(3):
        cluster.wait_until_in_sync("orders", partition)
    assert len(values(cluster, "orders")) == 100


def test_what_only_a_dead_server_has_is_not_given_up_by_itself(mortal: Cluster) -> None:
    cluster = mortal
    create_spread(cluster, "solo")
    for partition in range(3):
        publish(cluster, "solo", 10, partition)
    (lost,) = [number for number, one in replicas(cluster, "solo").items() if one == ["b"]]
    cluster.kill("b")
    found = run([cluster.brokers["a"].address], lambda admin: admin.remove_server("b"))
    assert not found.removed
    assert [(one.stream, one.partition) for one in found.blocked if one.stream == "solo"] == [("solo", lost)]
    remove(cluster, "b", force=True)
    for partition in range(3):
        eventually(
            lambda partition=partition: cluster.leader_of("solo", partition),  # type: ignore[misc]
            "it is led by somebody",
        )
        assert len(values(cluster, "solo", partition)) == (0 if partition == lost else 10)
    publish(cluster, "solo", 1, lost)


# ── unclean elections ────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def five(tmp_path: Path, nats_server: NatsServer) -> Iterator[Cluster]:
    """So many that three may be dead, one after the other, and the rest still agrees on who is in sync."""
    with Cluster(tmp_path, nats=nats_server, servers=tuple("abcde")) as found:
        yield found


def test_an_unclean_election_says_what_is_lost_and_loses_exactly_that(five: Cluster) -> None:
    cluster = five
    cluster.create_stream("orders", factor=3)
    publish(cluster, "orders", 10)
    cluster.wait_until_in_sync("orders")  # all three have them, also one that stood still meanwhile
    leader = cluster.leader_of("orders")
    behind, ahead = cluster.followers_of("orders")
    cluster.kill(behind)
    publish(cluster, "orders", 5)  # acked once the dead one has left the in-sync set
    eventually(lambda: in_sync(cluster, "orders") == {leader, ahead}, "two have all of them", RECOVERY_SECONDS)
    cluster.kill(ahead)
    publish(cluster, "orders", 5)
    cluster.kill(leader)
    cluster.launch(behind, ahead)
    for name in (behind, ahead):
        cluster.brokers[name].wait_ready(RECOVERY_SECONDS)
    addresses = [cluster.brokers[name].address for name in (behind, ahead)]

    def asked(replica: str) -> Any:
        return eventually(
            lambda: found if len((found := elect(addresses, replica)).logs) == 2 else None,
            "both say what they have",
            RECOVERY_SECONDS,
        )

    found = asked(behind)
    assert not found.elected
    assert (found.lost_from_offset, found.lost_to_offset, found.lost_messages) == (10, 14, 5)
    assert found.silent == (leader,)
    better = asked(ahead)
    assert (better.lost_from_offset, better.lost_messages) == (15, 0)

    assert elect(addresses, behind, confirm=True).elected
    assert cluster.leader_of("orders") == behind
    cluster.launch(leader)
    cluster.brokers[leader].wait_ready(RECOVERY_SECONDS)
    cluster.wait_until_in_sync("orders")
    assert values(cluster, "orders") == [b"%d" % number for number in range(10)]
    publish(cluster, "orders", 1)
    assert len(values(cluster, "orders")) == 11


def in_sync(cluster: Cluster, stream: str) -> frozenset[str]:
    seen = cluster.view(stream)
    return frozenset() if seen is None else seen.in_sync


def elect(addresses: list[str], replica: str, *, confirm: bool = False) -> Any:
    return run(addresses, lambda admin: admin.elect_unclean("orders", 0, replica, confirm=confirm))


def test_an_unclean_election_is_refused_while_somebody_has_everything(cluster: Cluster) -> None:
    cluster.create_stream("orders", factor=3)
    other = cluster.followers_of("orders")[0]
    with pytest.raises(StateError, match="is in sync"):
        elect(cluster.addresses, other, confirm=True)
    with pytest.raises(CallerError, match="no server of the cluster"):
        elect(cluster.addresses, "nobody")
    cluster.create_stream("solo", factor=1)
    (only,) = replicas(cluster, "solo")[0]
    stranger = next(one for one in cluster.servers if one != only)
    with pytest.raises(CallerError, match="has no replica"):
        run(cluster.addresses, lambda admin: admin.elect_unclean("solo", 0, stranger))


# ── who may ──────────────────────────────────────────────────────────────────────────────────────


def test_the_service_is_listed_and_answers_any_client(cluster: Cluster) -> None:
    api: Api = cluster.api("a")
    method = api.channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
    assert b"bascule.Cluster" in next(method(iter([b"\x3a\x00"]), timeout=30))
    assert api.channel.unary_unary("/bascule.Cluster/Status")(b"", timeout=30)
    with pytest.raises(grpc.RpcError) as caught:
        api.channel.unary_unary("/bascule.Cluster/Drain")(b"\x0a\x01x", timeout=30)
    error: Any = caught.value
    assert error.code() is Status.INVALID_ARGUMENT
    assert "its servers are a, b, c" in error.details()
