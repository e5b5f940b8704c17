"""File handles under attack: idle connections leave enough of them for logs, and CreateStream reports partitions that cannot start."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator

from tests.support.api_client import Status, pb, refused
from tests.support.broker_fixtures import StartBroker
from tests.support.broker_process import BrokerProcess
from tests.support.raw_http2 import RawGrpc
from tests.support.waiting import eventually


@contextlib.contextmanager
def idle_connections(address: str, count: int) -> Iterator[list[RawGrpc]]:
    made: list[RawGrpc] = []
    try:
        for _ in range(count):
            with contextlib.suppress(OSError):
                made.append(RawGrpc(address))
        yield made
    finally:
        for one in made:
            one.close()


def is_open(client: RawGrpc) -> bool:
    try:
        client.socket.settimeout(0.01)
        while client.socket.recv(1 << 16):
            pass
    except TimeoutError:
        return True
    except OSError:
        pass
    return False


def limit_handles(broker: BrokerProcess, soft: int) -> None:
    _, hard = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (soft, hard))


def test_idle_connections_leave_handles_for_logs(start_broker: StartBroker) -> None:
    broker = start_broker(handles=1024)
    assert "accepts 128 client connections" in broker.said()
    api = broker.api()
    api.FetchMetadata()
    with idle_connections(broker.address, 1000) as connections:
        eventually(lambda: sum(map(is_open, connections)) <= 128, "the server refuses connections beyond its share")
        api.CreateStream(name="orders", subject="orders", partitions=100)
        for partition in range(100):
            api.Publish(stream="orders", partition=partition, value=b"x", ackPolicy=pb.LEADER)
    api.close()


def test_the_soft_limit_of_handles_is_raised_at_start(start_broker: StartBroker) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, soft), hard))
    try:
        broker = start_broker()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)[0] == min(hard, 1 << 20)


def test_create_stream_is_not_ok_when_partitions_cannot_start(start_broker: StartBroker) -> None:
    broker = start_broker(handles=1024)
    api = broker.api()
    api.FetchMetadata()
    limit_handles(broker, 3)  # every handle that is open stays open; no other can be opened
    with refused(Status.INTERNAL, "cannot start"):
        api.CreateStream(name="orders", subject="orders")
    limit_handles(broker, 1024)

    def can_publish() -> bool:
        with contextlib.suppress(Exception):
            return bool(api.Publish(stream="orders", value=b"x", ackPolicy=pb.LEADER, timeout=2).ack)
        return False

    eventually(can_publish, "the partition starts once there are handles again")
    api.close()
