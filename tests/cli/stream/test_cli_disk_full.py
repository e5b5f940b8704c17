"""A full disk: every tool says which server's it is, and lower retention makes room again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command_line import Outcome, Run
from tests.support.api_client import Api, Status, grpc, pb
from tests.support.broker_process import BrokerProcess
from tests.support.monitoring import get, scrape
from tests.support.nats_server import NatsServer
from tests.support.small_disk import SmallDisk, is_permitted
from tests.support.waiting import eventually

DISK_BYTES = 8 << 20
VALUE = b"x" * 100_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, nats_server: NatsServer) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("disk-full")
    if not is_permitted(directory / "probe"):
        pytest.skip("mounting a file system is not permitted here")
    disk = SmallDisk(directory / "disk", DISK_BYTES)
    config = {"clustering.namespace": directory.name, "clustering.server.id": "lone"}
    found = BrokerProcess(directory / "broker", nats_url=nats_server.url, config=config)
    found.data = disk.path / "data"
    try:
        yield found.start()
    finally:
        found.kill()
        disk.close()


@pytest.fixture
def bascule(broker: BrokerProcess, call: Run) -> Run:
    def run(*arguments: str) -> Outcome:
        return call(*arguments, "--server", broker.address)

    return run


def publish_until_refused(api: Api, stream: str) -> grpc.RpcError:
    for _ in range(2 * DISK_BYTES // len(VALUE)):
        try:
            api.Publish(stream=stream, value=VALUE, ackPolicy=pb.ALL)
        except grpc.RpcError as error:
            return error
    raise AssertionError("the disk takes more than its size")


def test_a_full_disk_is_named_everywhere_and_lower_retention_makes_room(
    broker: BrokerProcess, bascule: Run, tmp_path: Path
) -> None:
    bascule("stream", "create", "orders").ok()
    api = broker.api()
    refused = publish_until_refused(api, "orders")
    assert refused.code() is Status.RESOURCE_EXHAUSTED
    assert "the disk of server `lone` is full: the message was not stored" in refused.details()

    # The publisher, /readyz, the metric, and doctor.
    (tmp_path / "value").write_bytes(VALUE)
    publishing = bascule("publish", "orders", "--file", str(tmp_path / "value"))
    publishing.failed(4, "disk of server `lone` is full", "bascule stream set NAME")
    answer = get(broker.http_address, "/readyz")
    assert (answer.status, "the disk is full" in answer.text) == (503, True)
    assert scrape(broker).value("bascule_disk_full") == 1
    checks = bascule("doctor", "--json")
    assert checks.code == 3
    found = {one["check"]: one for one in checks.json}["disk of lone"]
    assert (found["state"], "refuse messages" in found["found"]) == ("failed", True)
    assert bascule("subscribe", "orders", "--no-follow", "--count", "1").ok().out, "a full disk can be read"

    # Metadata still changes, and that is the way out: the log is one segment, which is rolled and removed.
    stored = api.partition("orders").newestOffset + 1
    assert bascule("stream", "set", "orders", "--max-bytes", "1MB").ok().lines == ["Changed stream `orders`."]
    eventually(lambda: takes_messages(api), "there is room again")
    described = bascule("stream", "describe", "orders", "--json").ok().json
    assert described["settings"]["retention_max_bytes"] == 1_000_000
    (partition,) = described["partitions"]
    assert partition["log_start_offset"] > 0
    assert partition["size_bytes"] < DISK_BYTES // 2
    assert partition["newest_offset"] >= stored, "no offset is used twice"
    assert get(broker.http_address, "/readyz").status == 200
    assert scrape(broker).value("bascule_disk_full") == 0
    assert bascule("doctor", "--json").code == 0

    # The new setting outlives a restart.
    broker.stop()
    broker.start()
    described = bascule("stream", "describe", "orders", "--json").ok().json
    assert described["settings"]["retention_max_bytes"] == 1_000_000


def takes_messages(api: Api) -> bool:
    try:
        api.Publish(stream="orders", value=VALUE, ackPolicy=pb.ALL)
    except grpc.RpcError:
        return False
    return True


def test_what_cannot_be_set_is_refused_and_named(bascule: Run) -> None:
    bascule("stream", "create", "fixed").ok()
    bascule("stream", "set", "fixed").failed(2, "no setting is given", "--max-age")
    bascule("stream", "set", "no-such", "--max-age", "1h").failed(3, "`no-such`")
    bascule("stream", "set", "fixed", "--max-messages", "-1").failed(2, "--max-messages")
    bascule("stream", "set", "fixed", "--compact").failed(2, "--compact")
    for name in ("__cursors", "__audit"):
        assert bascule("stream", "set", name, "--max-age", "1h").code in (2, 3)


def test_other_limits_follow(bascule: Run) -> None:
    bascule("stream", "create", "aged", "--max-age", "7d").ok()
    bascule("stream", "set", "aged", "--max-age", "1h", "--sync-interval", "3s", "--auto-pause", "10m").ok()
    settings = bascule("stream", "describe", "aged", "--json").ok().json["settings"]
    assert (settings["retention_max_age"], settings["segment_max_age"]) == ("1h", "1h")
    assert (settings["sync_interval"], settings["auto_pause_time"]) == ("3s", "10m")
    bascule("stream", "set", "aged", "--segment-age", "10m", "--max-age", "0").ok()
    settings = bascule("stream", "describe", "aged", "--json").ok().json["settings"]
    assert (settings["retention_max_age"], settings["segment_max_age"]) == ("0", "10m")
