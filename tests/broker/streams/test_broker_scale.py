"""Many of everything, and clients that do not keep up. What one client costs is bounded, and the others do not notice."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from typing import Final, Protocol

import pytest

from tests.support.api_client import Api, pb
from tests.support.broker_fixtures import MakeStream, StartBroker, unique_name
from tests.support.broker_process import BrokerProcess
from tests.support.nats_client import NatsClient
from tests.support.raw_http2 import WINDOW_MAX, RawGrpc
from tests.support.waiting import eventually

MIB: Final = 1 << 20
SLOWEST_SECONDS: Final = 20.0
"""For an ack that takes milliseconds, on a machine that is busy with other things."""


def subscribe_request(stream: str) -> bytes:
    request: bytes = pb.SubscribeRequest(stream=stream, startPosition=pb.EARLIEST).SerializeToString()
    return request


class Connect(Protocol):
    def __call__(self, broker: BrokerProcess, window: int = 65_535) -> RawGrpc: ...


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Open a connection by hand; closed when the test is over, however it went."""
    opened: list[RawGrpc] = []

    def open_one(broker: BrokerProcess, window: int = 65_535) -> RawGrpc:
        opened.append(RawGrpc(broker.address, window))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def many_files(wanted: int) -> None:
    """This process is the client of thousands of connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))


@pytest.mark.parametrize("window", [0, 65_535, WINDOW_MAX])
def test_subscribers_that_never_read_cost_little_and_slow_nobody(
    start_broker: StartBroker, connect: Connect, window: int
) -> None:
    broker = start_broker()
    api = broker.api()
    api.CreateStream(name="s", subject="s")
    api.publish("s", b"warm")
    reader = api.subscribe("s")
    reader.take(1)
    before = broker.rss_bytes()
    stalled = [connect(broker, window) for _ in range(10)]
    for one in stalled:
        for _ in range(5):
            one.call("/proto.API/Subscribe", subscribe_request("s"))
    value, count = b"x" * 500_000, 200
    session = api.publish_async()
    for _ in range(count):
        session.send("s", value)
    session.take(count)
    assert [len(message.value) for message in reader.take(count)] == [len(value)] * count
    session.finish()
    grown = broker.rss_bytes() - before
    assert grown < 256 * MIB, f"{grown >> 20} MiB for 50 subscriptions that never read 100 MiB"
    for one in stalled:
        one.close()
    assert api.publish("s", b"still here").offset == count + 1
    api.close()


def test_a_stalled_subscriber_that_reads_again_gets_everything(
    connect: Connect, api: Api, broker: BrokerProcess, make_stream: MakeStream
) -> None:
    stream = make_stream()
    slow = api.subscribe(stream.name)
    stalled = connect(broker, WINDOW_MAX)
    call = stalled.call("/proto.API/Subscribe", subscribe_request(stream.name))
    session = api.publish_async()
    for number in range(2000):
        session.send(stream.name, b"%08d" % number * 500)
    session.take(2000)
    session.finish()
    assert [message.value[:8] for message in slow.take(2000)] == [b"%08d" % number for number in range(2000)]
    slow.cancel()
    stalled.pump_until(lambda: stalled.received[call] > 2000 * 4000)
    stalled.close()


def test_a_session_that_never_reads_its_answers_costs_little_and_slows_nobody(
    start_broker: StartBroker, connect: Connect
) -> None:
    broker = start_broker()
    api = broker.api()
    api.CreateStream(name="s", subject="s")
    api.CreateStream(name="other", subject="other")
    api.publish("other", b"warm")
    before = broker.rss_bytes()
    deaf = connect(broker, window=0)
    call = deaf.open("/proto.API/PublishAsync")
    message = pb.PublishRequest(stream="s", value=b"x" * 100, correlationId="c" * 100).SerializeToString()
    framed = b"\0" + len(message).to_bytes(4, "big") + message
    burst = framed * (15_000 // len(framed))
    sent, slowest, until = 0, 0.0, time.monotonic() + 4
    while time.monotonic() < until and sent < 100 * MIB:
        if deaf.room(call) >= len(burst):
            deaf.send_data(call, burst)
            sent += len(burst)
            deaf.pump(0)
        else:
            deaf.pump(0.01)
        if sent % 20 == 0 or deaf.room(call) < len(burst):
            begun = time.monotonic()
            api.publish("other", b"x")
            slowest = max(slowest, time.monotonic() - begun)
    grown = broker.rss_bytes() - before
    assert grown < 150 * MIB, f"{grown >> 20} MiB for a client that sent {sent >> 20} MiB and never reads"
    assert slowest < SLOWEST_SECONDS, f"somebody else waited {slowest:.1f} s for an ack"
    deaf.close()
    assert api.publish("s", b"still here").offset >= 0
    api.close()


def test_half_a_request_costs_nothing_more_than_itself(
    connect: Connect, broker: BrokerProcess, api: Api, make_stream: MakeStream
) -> None:
    stream = make_stream()
    lazy = [connect(broker) for _ in range(50)]
    for one in lazy:
        call = one.open("/proto.API/Publish")
        one.send_data(call, b"\0\0\0\x10\0half of it")
    assert api.publish(stream.name, b"x").offset == 0
    for one in lazy:
        one.close()
    assert api.publish(stream.name, b"x").offset == 1


def test_five_thousand_idle_subscriptions(start_broker: StartBroker, connect: Connect) -> None:
    """Over five hundred connections. One message wakes them all."""
    many_files(2048)
    broker = start_broker()
    api = broker.api()
    api.CreateStream(name="s", subject="s")
    before = broker.rss_bytes()
    clients = [connect(broker) for _ in range(500)]
    for client in clients:
        for _ in range(10):
            client.call("/proto.API/Subscribe", subscribe_request("s"))
    for client in clients:
        client.pump_until(lambda client=client: len(client.received) == 10)  # the handshakes
    cost = (broker.rss_bytes() - before) // 5000
    assert cost < 40_000, f"{cost} bytes for each idle subscription"
    cpu = broker.cpu_seconds()
    api.publish("s", b"wake up")
    for client in clients:
        client.pump_until(lambda client=client: min(client.received.values()) > 5)
    assert broker.cpu_seconds() - cpu < 10
    for client in clients:
        client.close()
    eventually(lambda: broker.open_files() < 200, "the connections are gone")
    assert api.publish("s", b"still here").offset == 1
    api.close()


def test_connections_that_come_and_go_leave_nothing_behind(start_broker: StartBroker, connect: Connect) -> None:
    broker = start_broker()
    api = broker.api()
    api.CreateStream(name="s", subject="s")

    def storm() -> None:
        for _ in range(200):
            client = connect(broker)
            client.call("/proto.API/Subscribe", subscribe_request("s"))
            client.open("/proto.API/PublishAsync")
            client.close()
        eventually(lambda: broker.open_files() < 100, "the connections are gone")

    storm()
    before = broker.rss_bytes()
    for _ in range(4):
        storm()
    grown = broker.rss_bytes() - before
    assert grown < 20 * MIB, f"{grown >> 10} KiB were left behind by 800 connections"
    api.close()


@pytest.mark.parametrize("count", [600, pytest.param(2000, marks=pytest.mark.soak)])
def test_many_streams_on_one_broker(start_broker: StartBroker, count: int) -> None:
    broker = start_broker()
    api = broker.api()
    before = broker.rss_bytes()
    for start in range(0, count, 100):
        calls = [
            api.future("CreateStream", name=f"s{number}", subject=f"many.{number}", timeout=60)
            for number in range(start, start + 100)
        ]
        for call in calls:
            call.result()
    assert len(api.FetchMetadata().streamMetadata) == count
    session = api.publish_async()
    for number in range(count):
        session.send(f"s{number}", b"%d" % number)
    assert {answer.ack.offset for answer in session.take(count)} == {0}
    session.finish()
    grown = broker.rss_bytes() - before
    assert grown < 400 * MIB, f"{grown >> 20} MiB for {count} streams"
    with NatsClient(broker.nats_url) as nats:
        nats.send(b"".join(nats.publication(f"many.{number}", b"plain") for number in range(count)))
        nats.flush()
    for number in range(0, count, 97):
        eventually(lambda: api.partition(f"s{number}").newestOffset == 1, f"s{number} got its message")  # noqa: B023
        assert [message.value for message in api.read(f"s{number}")] == [b"%d" % number, b"plain"]
    api.close()
    broker.kill()
    broker.start()
    api = broker.api()
    assert api.publish("s77", b"after").offset == 2
    api.close()


@pytest.mark.parametrize("count", [300, pytest.param(1000, marks=pytest.mark.soak)])
def test_many_partitions_of_one_stream(api: Api, make_stream: MakeStream, count: int) -> None:
    stream = make_stream(partitions=count)
    session = api.publish_async()
    for partition in range(count):
        session.send(stream.name, b"x", partition=partition)
    assert {answer.ack.offset for answer in session.take(count)} == {0}
    session.finish()
    assert len(api.stream(stream.name).partitions) == count
    api.DeleteStream(name=stream.name)


def test_a_reader_from_the_beginning_does_not_slow_a_writer(api: Api, make_stream: MakeStream) -> None:
    stream, count = make_stream(), 5_000
    session = api.publish_async()
    for number in range(count):
        session.send(stream.name, b"%d" % number)
    session.take(count)
    readers = [api.subscribe(stream.name) for _ in range(5)]
    slowest = 0.0
    for _ in range(50):
        begun = time.monotonic()
        session.send(stream.name, b"during")
        session.next()
        slowest = max(slowest, time.monotonic() - begun)
    assert slowest < SLOWEST_SECONDS
    for reader in readers:
        assert len(reader.take(count)) == count
        reader.cancel()
    session.finish()


def test_a_flood_of_small_plain_messages_is_kept_while_the_api_answers(
    api: Api, make_stream: MakeStream, nats: NatsClient
) -> None:
    stream, count, name = make_stream(), 100_000, unique_name("beside")
    api.CreateStream(name=name, subject=name)
    block = b"".join(nats.publication(stream.subject, b"%d" % number) for number in range(count))
    slowest = 0.0
    for start in range(0, len(block), 100_000):
        nats.send(block[start : start + 100_000])
        begun = time.monotonic()
        api.publish(name, b"x")
        slowest = max(slowest, time.monotonic() - begun)
    eventually(lambda: api.partition(stream.name).newestOffset == count - 1, "everything arrived")
    assert slowest < SLOWEST_SECONDS
    tail = api.subscribe(stream.name, startPosition=pb.OFFSET, startOffset=count - 5)
    assert [int(message.value) for message in tail.take(5)] == list(range(count - 5, count))
    tail.cancel()
