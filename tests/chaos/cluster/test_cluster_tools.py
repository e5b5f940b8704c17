"""The tools of the cluster tests work: lines that are cut, disks that are full, routes of NATS, machines whose clock and disk fail."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.api_client import grpc, pb
from tests.support.broker_faults import Machine
from tests.support.broker_process import BrokerProcess
from tests.support.nats_client import NatsClient
from tests.support.nats_cluster import NatsCluster
from tests.support.nats_server import NatsServer
from tests.support.small_disk import NotPermitted, SmallDisk
from tests.support.tcp_proxy import DELAY_SECONDS, HOLD, RESET, SWALLOW, ProxyProcess
from tests.support.waiting import eventually

SILENCE_SECONDS = 0.2


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path / "nats") as server:
        yield server


@pytest.fixture
def proxy() -> Iterator[ProxyProcess]:
    process = ProxyProcess()
    yield process
    process.close()


def through(proxy: ProxyProcess, nats: NatsServer) -> str:
    return f"nats://127.0.0.1:{proxy.open('line', nats.port)}"


def test_what_is_held_comes_late(nats: NatsServer, proxy: ProxyProcess) -> None:
    with NatsClient(through(proxy, nats)) as far, NatsClient(nats.url) as near:
        near.subscribe("x")
        proxy.cut("line", HOLD)
        far.send(far.publication("x", b"late"))
        assert near.poll(SILENCE_SECONDS) is None
        proxy.heal("line")
        assert near.next().payload == b"late"
        far.flush()


def test_what_is_swallowed_never_comes(nats: NatsServer, proxy: ProxyProcess) -> None:
    url = through(proxy, nats)
    with NatsClient(url) as far, NatsClient(nats.url) as near:
        near.subscribe("x")
        proxy.cut("line", SWALLOW)
        far.send(far.publication("x", b"lost"))
        assert near.poll(SILENCE_SECONDS) is None
        proxy.heal("line")
        with pytest.raises(OSError):
            far.flush()
        with NatsClient(url) as again:
            again.publish("x", b"new")
            assert near.next().payload == b"new"


def test_who_is_reset_is_told_at_once(nats: NatsServer, proxy: ProxyProcess) -> None:
    url = through(proxy, nats)
    with NatsClient(url) as far:
        proxy.cut("line", RESET)
        with pytest.raises(OSError):
            far.flush()
    with pytest.raises(OSError):
        NatsClient(url)
    proxy.heal("line")
    NatsClient(url).close()


def test_a_slow_line_keeps_the_order_also_when_it_is_fast_again(nats: NatsServer, proxy: ProxyProcess) -> None:
    with NatsClient(through(proxy, nats)) as far, NatsClient(nats.url) as near:
        near.subscribe("x")
        proxy.slow_down("line")
        began = time.monotonic()
        far.publish("x", b"1")
        assert near.next().payload == b"1"
        assert time.monotonic() - began >= DELAY_SECONDS
        far.publish("x", b"2")
        proxy.heal("line")
        far.publish("x", b"3")
        assert [near.next().payload for _ in range(2)] == [b"2", b"3"]


def test_much_passes_a_line_unharmed(nats: NatsServer, proxy: ProxyProcess) -> None:
    with NatsClient(through(proxy, nats)) as far, NatsClient(nats.url) as near:
        near.subscribe("x")
        payloads = [b"%d " % number * 10_000 for number in range(100)]
        for payload in payloads:
            far.publish("x", payload)
        assert [near.next().payload for _ in payloads] == payloads


def test_a_small_disk_is_full_and_has_room_again(tmp_path: Path) -> None:
    try:
        disk = SmallDisk(tmp_path / "disk", 2 << 20)
    except (NotPermitted, OSError) as error:
        pytest.skip(f"mounting a file system is not permitted here: {error}")
    kept, more = disk.path / "kept", disk.path / "more"
    kept.write_bytes(bytes(100_000))
    disk.fill()
    assert disk.free_bytes() == 0
    with pytest.raises(OSError) as caught:
        more.write_bytes(b"x")
    assert caught.value.errno == errno.ENOSPC
    disk.relieve()
    more.write_bytes(bytes(1_000_000))
    assert kept.stat().st_size == 100_000
    assert list((tmp_path / "disk").iterdir()) == []  # nobody else's directory
    disk.close()


def test_nats_servers_have_routes_and_may_be_restarted(tmp_path: Path) -> None:
    with NatsCluster(tmp_path) as cluster:

        def passes(here: int, there: int) -> bool:
            with NatsClient(cluster.servers[here].url) as sender, NatsClient(cluster.servers[there].url) as receiver:
                receiver.subscribe("x")
                sender.publish("x")
                return receiver.poll(SILENCE_SECONDS) is not None

        eventually(lambda: passes(0, 2), "a message gets from one server to the other")
        cluster.servers[2].stop()
        eventually(lambda: passes(0, 1), "two go on without the third")
        cluster.servers[2].start()
        eventually(lambda: passes(2, 0), "the third is back")


def test_a_cut_route_separates_two_nats_servers_that_both_reach_the_third(tmp_path: Path, proxy: ProxyProcess) -> None:
    cluster = NatsCluster(tmp_path)
    cluster.route_through(proxy)

    def passes(here: int, there: int) -> bool:
        with NatsClient(cluster.servers[here].url) as sender, NatsClient(cluster.servers[there].url) as receiver:
            receiver.subscribe("x")
            receiver.flush()
            sender.publish("x")
            return receiver.poll(SILENCE_SECONDS) is not None

    with cluster:
        for pair in ((0, 1), (1, 2), (2, 0)):
            eventually(lambda pair=pair: passes(*pair), f"a message gets from {pair[0]} to {pair[1]}")  # type: ignore[misc]
        for line in cluster.lines_between(0, 1):
            proxy.cut(line, RESET)
        eventually(lambda: not passes(0, 1), "the route is cut")
        for pair in ((0, 2), (2, 1), (1, 2), (2, 0)):
            assert passes(*pair)
        assert not passes(1, 0)
        for line in cluster.lines_between(0, 1):
            proxy.heal(line)
        eventually(lambda: passes(0, 1) and passes(1, 0), "the route is back")


# ── machines ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "machine")


@pytest.fixture
def broker(tmp_path: Path, nats: NatsServer, machine: Machine) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "broker", nats_url=nats.url, env=machine.environ) as process:
        yield process


def test_a_clock_jumps_under_a_broker_both_ways(broker: BrokerProcess, machine: Machine) -> None:
    api = broker.api()
    api.CreateStream(name="s", subject="s")

    def committed_at() -> float:
        return float(api.publish("s", b"x").commitTimestamp) / 1e9

    for seconds in (3600.0, -3600.0, 0.0):
        machine.set(clock_seconds=seconds)
        assert abs(committed_at() - time.time() - seconds) < 600
    received = [message.timestamp for message in api.subscribe("s", stopPosition=pb.STOP_LATEST).rest()]
    assert len(received) == 3
    assert received == sorted(received), "timestamps of a log never decrease"
    api.close()


def test_a_disk_with_errors_refuses_messages_and_has_the_others_when_it_is_good_again(
    broker: BrokerProcess, machine: Machine
) -> None:
    """EIO on writes and on reads. No other replica can take over: the broker continues, or leaves and is started again."""
    api = broker.api()
    api.CreateStream(name="s", subject="s")
    acked = [api.publish("s", b"before").offset]
    machine.set(write_chance=1.0)
    with pytest.raises(grpc.RpcError):
        api.publish("s", b"refused")
    assert machine.counts["writes refused"] > 0
    machine.heal()
    machine.set(read_chance=1.0)
    with pytest.raises(grpc.RpcError):
        next(iter(api.subscribe("s", startPosition=pb.EARLIEST, timeout=20.0).call))
    assert machine.counts["reads refused"] > 0
    machine.heal()

    def works() -> bool:
        if not broker.is_running:
            broker.kill()
            broker.start()
        try:
            return bool(api.publish("s", b"after").ackError == pb.Ack.OK)
        except grpc.RpcError:
            return False

    eventually(works, "the broker stores messages again")
    values = [
        message.value for message in api.subscribe("s", startPosition=pb.EARLIEST, stopPosition=pb.STOP_LATEST).rest()
    ]
    assert values[0] == b"before" and values[-1] == b"after"
    assert b"refused" not in values
    assert acked == [0]
    api.close()


def test_a_slow_disk_delays_acks_and_loses_nothing(broker: BrokerProcess, machine: Machine) -> None:
    api = broker.api()
    api.CreateStream(name="s", subject="s")
    api.publish("s", b"fast")
    machine.set(delay_seconds=0.02, sync_delay_seconds=0.1)
    for _ in range(5):
        api.publish("s", b"slow", timeout=30.0)
    assert machine.counts["operations slowed"] >= 5
    api.close()
