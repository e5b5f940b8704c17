"""`/metrics` of real brokers: what it says is what the API says, and how far readers are behind is right to the message."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import bascule
from bascule.broker.metrics.catalogue import METRICS
from tests.support.api_client import Api, Status, pb, refused
from tests.support.broker_fixtures import MakeStream, StartBroker, Stream
from tests.support.broker_process import BrokerProcess
from tests.support.monitoring import get, scrape
from tests.support.nats_client import NatsClient
from tests.support.prometheus_text import Samples
from tests.support.waiting import eventually


def until(broker: BrokerProcess, name: str, value: float, **labels: object) -> Samples:
    """The first page on which the metric has this value."""

    def look() -> Samples | None:
        found = scrape(broker)
        return found if list(found.find(name, **labels).values()) == [value] else None

    return eventually(look, f"{name}{labels} is {value}")


def scrape_cursors(broker: BrokerProcess) -> Samples:
    """The first page that knows all cursors. Whoever keeps them has a second to tell them; a page that had to do without says so."""
    return until(broker, "bascule_cursors_unknown_partitions", 0)


# ── partitions ───────────────────────────────────────────────────────────────────────────────────


def test_what_it_says_of_partitions_is_what_the_api_says(
    broker: BrokerProcess, api: Api, nats: NatsClient, make_stream: MakeStream
) -> None:
    stream = make_stream(partitions=2)
    for number in range(120):
        nats.publish(stream.subject, b"%d" % number)
    for number in range(30):
        api.publish(stream.name, b"x" * number, partition=1, ackPolicy=pb.ALL)
    eventually(lambda: api.partition(stream.name).newestOffset == 119, "all have arrived")
    subscriptions = [api.subscribe(stream.name, partition=1) for _ in range(3)]
    for one in subscriptions:
        one.take(30)
    found = scrape(broker)
    for number, records in ((0, 120), (1, 30)):
        place = {"stream": stream.name, "partition": number}
        said = api.partition(stream.name, number)
        assert found.value("bascule_partition_high_watermark", **place) == said.highWatermark == records - 1
        assert found.value("bascule_partition_log_end_offset", **place) == said.newestOffset + 1
        assert found.value("bascule_partition_log_start_offset", **place) == 0
        assert found.value("bascule_partition_records", **place) == records
        assert found.value("bascule_partition_messages_received_total", **place) == records
        assert found.value("bascule_partition_messages_refused_total", **place) == 0
        assert found.value("bascule_partition_replicas", **place) == len(said.replicas)
        assert found.value("bascule_partition_in_sync_replicas", **place) == len(said.isr)
        assert found.value("bascule_partition_leader", **place) == 1
        newest = said.messagesReceivedTimestamps.latestTimestamp / 1e9
        assert found.value("bascule_partition_last_timestamp_seconds", **place) == pytest.approx(newest, abs=1e-3)
    assert found.value("bascule_partition_subscribers", stream=stream.name, partition=1) == 3
    assert found.value("bascule_partition_messages_delivered_total", stream=stream.name, partition=1) == 90
    size = sum(file.stat().st_size for file in (broker.data / "streams" / stream.name / "1").glob("*.log"))
    assert found.value("bascule_partition_size_bytes", stream=stream.name, partition=1) == size
    (server,) = api.FetchMetadata().brokers
    assert found.value("bascule_partitions", role="leader") >= server.leaderCount
    for one in subscriptions:
        one.cancel()


def test_counters_go_on_when_subscribers_leave(broker: BrokerProcess, api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    for number in range(10):
        api.publish(stream.name, b"%d" % number)
    place = {"stream": stream.name, "partition": 0}
    assert len(api.read(stream.name)) == 10
    assert len(api.read(stream.name, reverse=True, startPosition=pb.LATEST, stopPosition=pb.STOP_ON_CANCEL)) == 10
    until(broker, "bascule_partition_subscribers", 0, **place)
    found = until(broker, "bascule_partition_messages_delivered_total", 20, **place)
    assert found.value("bascule_partition_delivered_bytes_total", **place) > 20
    assert len(api.read(stream.name)) == 10
    until(broker, "bascule_partition_messages_delivered_total", 30, **place)


def test_what_is_refused_is_counted(broker: BrokerProcess, api: Api, make_stream: MakeStream) -> None:
    stream = make_stream(optimisticConcurrencyControl=True)
    api.publish(stream.name, b"a", expectedOffset=0)
    with refused((Status.FAILED_PRECONDITION, Status.INTERNAL, Status.UNKNOWN)):
        api.publish(stream.name, b"b", expectedOffset=0)
    until(broker, "bascule_partition_messages_refused_total", 1, stream=stream.name, partition=0)


def test_an_idle_partition_is_counted_and_not_opened_for_it(start_broker: StartBroker) -> None:
    broker = start_broker()
    api = broker.api()
    api.CreateStream(name="s", subject="s", partitions=3)
    api.publish("s", b"x", partition=1)
    broker.restart()
    until(broker, "bascule_partitions_idle", 3)
    for _ in range(2):
        found = scrape(broker)
        assert found.value("bascule_partitions_idle") == 3
        assert found.value("bascule_partition_leader", stream="s", partition=1) == 1
        assert not found.find("bascule_partition_log_end_offset")
    api.close()


def test_a_deleted_stream_leaves_the_page(broker: BrokerProcess, api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    api.publish(stream.name, b"x")
    assert scrape(broker).find("bascule_partition_records", stream=stream.name)
    api.DeleteStream(name=stream.name)
    assert not scrape(broker).find("bascule_partition_records", stream=stream.name)


# ── the server ───────────────────────────────────────────────────────────────────────────────────


def test_the_page_tells_of_the_process_the_links_and_the_controller(start_broker: StartBroker) -> None:
    broker = start_broker({"clustering.server.id": "a-server"})
    api = broker.api()
    api.CreateStream(name="s", subject="s")
    before = scrape(broker)
    for _ in range(50):
        api.publish("s", b"x" * 100)
    found = scrape(broker)
    version = bascule.__version__
    (labels,) = found["bascule_build_info"].samples
    assert {("version", version), ("server", "a-server")} <= labels
    assert found.value("bascule_ready") == 1
    assert found.value("bascule_uptime_seconds") > before.value("bascule_uptime_seconds") > 0
    assert found.value("process_cpu_seconds_total") >= before.value("process_cpu_seconds_total") > 0
    assert 10e6 < found.value("process_resident_memory_bytes") < 1e9
    assert 5 < found.value("process_open_fds") < found.value("process_max_fds")
    assert abs(found.value("process_start_time_seconds") - time.time()) < 600
    assert 0 < found.value("bascule_data_free_bytes") < found.value("bascule_data_size_bytes")
    assert found.value("bascule_ingest_messages_total") - before.value("bascule_ingest_messages_total") == 50
    assert found.value("bascule_publish_messages_total") - before.value("bascule_publish_messages_total") == 50
    assert found.value("bascule_ingest_bytes_total") > 5_000
    for link in ("streams", "replication", "control"):
        assert found.value("bascule_nats_connected", link=link) == 1
    assert found.value("bascule_nats_messages_received_total", link="streams") >= 50
    assert found.value("bascule_controller") == found.value("bascule_controller_known") == 1
    assert found.value("bascule_controller_info", controller="a-server") == 1
    assert found.value("bascule_raft_applied_index") >= found.value("bascule_raft_term") >= 1
    assert found.value("bascule_cluster_streams") == found.value("bascule_cluster_partitions") == 1
    assert found.value("bascule_cluster_servers", state="answering") == 1
    assert found.value("bascule_cluster_partitions_leaderless") == 0
    assert found.value("bascule_http_responses_total", status=200) >= 1
    known = {metric.name: metric for metric in METRICS}
    for name, family in found.items():
        assert (family.kind, family.help) == (known[name].kind, known[name].help)
        for one in family.samples:
            assert {label for label, _ in one} <= set(known[name].labels)
    api.close()


def test_a_page_may_be_asked_for_by_many_at_once(broker: BrokerProcess, make_stream: MakeStream) -> None:
    stream = make_stream(partitions=20)
    with ThreadPoolExecutor(8) as pool:
        pages = list(pool.map(lambda _: scrape(broker), range(40)))
    assert all(len(page.find("bascule_partition_leader", stream=stream.name)) == 20 for page in pages)


def test_head_and_unknown_paths(broker: BrokerProcess) -> None:
    head = get(broker.http_address, "/metrics", method="HEAD")
    assert (head.status, head.body) == (200, b"")
    assert int(head.headers["content-length"]) > 1_000
    lost = get(broker.http_address, "/metric")
    assert lost.status == 404
    assert "/metrics" in lost.text
    refused_method = get(broker.http_address, "/metrics", method="DELETE")
    assert (refused_method.status, refused_method.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00" * 4096,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 5_000,
        b"GET " + b"/" * 100_000,
        b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 30,
        b"",
    ],
)
def test_garbage_hurts_nobody(broker: BrokerProcess, garbage: bytes) -> None:
    host, _, port = broker.http_address.rpartition(":")
    for _ in range(3):
        with (
            socket.create_connection((host, int(port))) as one,
            contextlib.suppress(ConnectionError),  # it may hang up before it has all of it
        ):
            one.sendall(garbage)
    assert get(broker.http_address, "/healthz").status == 200


# ── cursors and groups ───────────────────────────────────────────────────────────────────────────


LAGS = ("bascule_cursor_lag_offsets", "bascule_cursor_lag_bytes", "bascule_cursor_lag_seconds")


def test_how_far_a_cursor_is_behind(broker: BrokerProcess, api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    place = {"cursor": "a job", "stream": stream.name, "partition": 0}
    offsets, sizes, published = [], [], []
    for number in range(20):
        offsets.append(api.publish(stream.name, b"%02d" % number, ackPolicy=pb.ALL).offset)
        published.append(time.time())
        sizes.append(scrape(broker).value("bascule_partition_size_bytes", stream=stream.name, partition=0))
    assert not scrape_cursors(broker).find("bascule_cursor_offset", **place)
    for dealt_with in (-1, 4, 18):
        api.SetCursor(stream=stream.name, partition=0, cursorId="a job", offset=dealt_with)
        asked = time.time()
        found = scrape_cursors(broker)
        assert found.value("bascule_cursor_offset", **place) == dealt_with
        assert found.value(LAGS[0], **place) == 19 - dealt_with
        assert found.value(LAGS[1], **place) == sizes[-1] - (sizes[dealt_with] if dealt_with >= 0 else 0)
        # It was stamped before its ack came, and the page was made between two looks at the clock.
        lag = found.value(LAGS[2], **place)
        assert asked - published[dealt_with + 1] <= lag + 0.002
        assert lag <= time.time() - (published[dealt_with] if dealt_with >= 0 else published[0] - 60)
    again = scrape_cursors(broker)
    assert again.value(LAGS[2], **place) > found.value(LAGS[2], **place)
    assert again.value(LAGS[1], **place) == found.value(LAGS[1], **place)
    api.SetCursor(stream=stream.name, partition=0, cursorId="a job", offset=19)
    found = scrape_cursors(broker)
    assert [found.value(name, **place) for name in LAGS] == [0, 0, 0]
    api.publish(stream.name, b"one more", ackPolicy=pb.ALL)
    found = scrape_cursors(broker)
    assert found.value(LAGS[0], **place) == 1
    assert found.value(LAGS[1], **place) > 0


@pytest.mark.parametrize("offset", [2**63 - 1, 500, -(2**63)])
def test_cursors_may_stand_anywhere(broker: BrokerProcess, api: Api, make_stream: MakeStream, offset: int) -> None:
    stream = make_stream()
    for _ in range(3):
        api.publish(stream.name, b"x", ackPolicy=pb.ALL)
    api.SetCursor(stream=stream.name, partition=0, cursorId='odd "\\ ü', offset=offset)
    place = {"cursor": 'odd "\\ ü', "stream": stream.name, "partition": 0}
    found = scrape_cursors(broker)
    assert found.value("bascule_cursor_offset", **place) == float(max(offset, -1))
    assert found.value(LAGS[0], **place) == (3 if offset < 0 else 0)


def test_what_retention_took_is_not_waited_for(broker: BrokerProcess, api: Api, make_stream: MakeStream) -> None:
    stream = make_stream(segmentMaxBytes=1, retentionMaxMessages=5, cleanerInterval=50)
    api.SetCursor(stream=stream.name, partition=0, cursorId="late", offset=1)
    for number in range(20):
        api.publish(stream.name, b"%d" % number, ackPolicy=pb.ALL)
    place = {"stream": stream.name, "partition": 0}
    until(broker, "bascule_partition_log_start_offset", 15, **place)  # the cleaner is done
    found = scrape_cursors(broker)
    start = found.value("bascule_partition_log_start_offset", **place)
    assert found.value(LAGS[0], cursor="late", **place) == 20 - start
    # what the guide says to alert on
    assert start > found.value("bascule_cursor_offset", cursor="late", **place) + 1


def test_a_consumer_group_has_its_lag_and_its_members(broker: BrokerProcess, api: Api, make_stream: MakeStream) -> None:
    stream: Stream = make_stream(partitions=2)
    for number in range(10):
        api.publish(stream.name, b"%d" % number, partition=number % 2, ackPolicy=pb.ALL)
    group = f"group of {stream.name}"

    async def consume(count: int) -> Samples:
        async with bascule.connect(broker.address) as client:
            consumer = client.consumer(group, [stream.name], start="earliest")
            async with consumer:
                seen = 0
                async for _ in consumer:
                    seen += 1
                    if seen == count:
                        break
                return await asyncio.to_thread(scrape, broker)

    while_reading = asyncio.run(consume(10))
    assert while_reading.value("bascule_group_members", group=group) == 1
    assert while_reading.value("bascule_groups") >= 1
    place = {"cursor": f"__group:{group}", "stream": stream.name, "group": group}
    for number in range(2):
        until(broker, LAGS[0], 0, **place, partition=number)
    api.publish(stream.name, b"more", partition=1, ackPolicy=pb.ALL)
    found = scrape_cursors(broker)
    assert [found.value(LAGS[0], **place, partition=number) for number in range(2)] == [0, 1]
    holds = [label for labels in found["bascule_cursor_offset"].samples for label in labels if "__hold" in label[1]]
    assert not holds


@pytest.fixture
def restarted(start_broker: StartBroker) -> Iterator[BrokerProcess]:
    """A broker that was killed with a cursor two messages behind; nobody has used anything since."""
    broker = start_broker({"cursors.stream.partitions": 3, "cursors.stream.auto.pause.time": "500ms"})
    api = broker.api()
    api.CreateStream(name="s", subject="s")
    for _ in range(5):
        api.publish("s", b"x", ackPolicy=pb.ALL)
    api.SetCursor(stream="s", partition=0, cursorId="c", offset=2)
    broker.restart()
    api.close()
    yield broker


def test_lag_is_known_right_after_a_restart_and_while_cursors_are_paused(restarted: BrokerProcess) -> None:
    """Lags of readers that are down matter most: neither their streams nor the cursors are in use then."""
    place = {"cursor": "c", "stream": "s", "partition": 0}
    assert scrape_cursors(restarted).value(LAGS[0], **place) == 2

    def paused() -> bool:
        api = restarted.api()
        try:
            return all(one.paused for one in api.stream("__cursors").partitions.values())
        finally:
            api.close()

    eventually(paused, "the cursors are paused")
    for _ in range(3):
        assert scrape_cursors(restarted).value(LAGS[0], **place) == 2
    assert paused(), "looking must not wake them up"


# ── what it costs ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.soak  # a thousand logs to make
def test_a_thousand_partitions_are_told_in_small_turns(start_broker: StartBroker) -> None:
    """CPU time, the best of many, and much more than it takes: 25 ms and turns of 3 ms where this was written."""
    broker = start_broker({"streams.sync": "interval"})
    api = broker.api()
    api.CreateStream(name="s", subject="s", partitions=1_000)
    with NatsClient(broker.nats_url) as nats:
        nats.send(b"".join(nats.publication("s" if n == 0 else f"s.{n}", b"x") for n in range(1_000)))
        nats.flush()
    until(broker, "bascule_partitions_idle", 0)
    costs = []
    for _ in range(7):
        found = scrape(broker)
        assert len(found.find("bascule_partition_log_end_offset", stream="s")) == 1_000
        costs.append((found.value("bascule_scrape_cpu_seconds"), found.value("bascule_scrape_turn_seconds_max")))
    assert min(cost for cost, _ in costs) < 0.5
    assert min(turn for _, turn in costs) < min(cost for cost, _ in costs) / 2, "all of it in one turn"
    api.close()
