"""A broker opens a data directory that an older version wrote.

`data_directory/` was written by the commit a530caa, before the source tree was rearranged. It holds two partitions of `orders` with an
idempotent producer and a cursor, a compacted stream, a read-only one, an encrypted one, and the trace of a deleted one.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from bascule.producers import producer_headers
from tests.support.api_client import Api, Status, pb, refused
from tests.support.broker_fixtures import StartBroker
from tests.support.broker_process import BrokerProcess

WRITTEN: Final = Path(__file__).with_name("data_directory")
KEY: Final = "0123456789abcdef0123456789abcdef"
ONCE: Final = 5
"""Messages of the idempotent producer `fixture`, epoch 1, at the end of orders/0."""


@pytest.fixture
def broker(start_broker: StartBroker, tmp_path: Path) -> BrokerProcess:
    directory = tmp_path / "old"
    shutil.copytree(WRITTEN, directory / "data")
    config = {
        "clustering.namespace": "liftbridge-default",
        "cursors.stream.partitions": 1,
        "activity.stream.enabled": True,
    }
    return start_broker(config, directory=directory, env={"BASCULE_ENCRYPTION_KEY": KEY}, embedded=True)


@pytest.fixture
def api(broker: BrokerProcess) -> Iterator[Api]:
    client = broker.api()
    yield client
    client.close()


def found(api: Api, stream: str, partition: int = 0) -> list[tuple[int, bytes, bytes, bytes]]:
    """Offset, key, value and the header `n` of every message."""
    return [(one.offset, one.key, one.value, one.headers["n"]) for one in api.read(stream, partition)]


def written_orders(partition: int) -> list[tuple[int, bytes, bytes, bytes]]:
    numbers = range(partition, 40, 2)
    return [
        (offset, b"customer-%d" % (number % 7), b"value %d" % number, b"%d" % number)
        for offset, number in enumerate(numbers)
    ]


def test_every_message_is_there_and_publishing_goes_on(api: Api) -> None:
    once = [(20 + number, b"", b"once %d" % number, b"") for number in range(ONCE)]
    assert found(api, "orders", 0) == written_orders(0) + once
    assert found(api, "orders", 1) == written_orders(1)
    assert found(api, "latest") == [(n, b"k%d" % (n % 3), b"v%d" % n, b"") for n in range(20)]
    for stream, partition, next_offset in (("orders", 0, 25), ("orders", 1, 20), ("latest", 0, 20)):
        assert api.partition(stream, partition).highWatermark == next_offset - 1
        assert api.publish(stream, b"new", partition, ackPolicy=pb.ALL).offset == next_offset
        assert found(api, stream, partition)[-1] == (next_offset, b"", b"new", b"")


def test_streams_are_as_they_were(api: Api) -> None:
    assert len(api.stream("orders").partitions) == 2
    assert api.stream("orders").subject == "orders.*"
    assert api.stream("gone").error == pb.StreamMetadata.UNKNOWN_STREAM
    assert api.FetchCursor(stream="orders", partition=0, cursorId="reader").offset == 7
    assert [found(api, "readonly"), api.partition("readonly").readonly] == [[(0, b"", b"last word", b"")], True]
    with refused(Status.FAILED_PRECONDITION, "readonly"):
        api.publish("readonly", b"one more")
    activity = {activity_of(one.value) for one in api.read("__activity")}
    assert {"createStreamOp", "deleteStreamOp", "setStreamReadonlyOp"} <= activity


def activity_of(value: bytes) -> Any:
    return pb.ActivityStreamEvent.FromString(value).ListFields()[-1][0].name


def test_an_encrypted_stream_opens_with_its_key(api: Api, broker: BrokerProcess) -> None:
    log = broker.data / "streams" / "secret" / "0" / "00000000000000000000.log"
    assert b"sealed" not in log.read_bytes()
    assert found(api, "secret") == [(0, b"k", b"sealed", b"")]
    assert api.publish("secret", b"more", ackPolicy=pb.ALL).offset == 1
    assert [message[2] for message in found(api, "secret")] == [b"sealed", b"more"]


def test_an_idempotent_producer_is_remembered(api: Api) -> None:
    for number in range(ONCE):
        ack = api.publish("orders", b"once %d" % number, headers=producer_headers(b"fixture", 1, number))
        assert (ack.offset, ack.duplicate) == (20 + number, True)
    with refused(Status.FAILED_PRECONDITION):
        api.publish("orders", b"fenced", headers=producer_headers(b"fixture", 0, ONCE))
    ack = api.publish("orders", b"once 5", headers=producer_headers(b"fixture", 1, ONCE))
    assert (ack.offset, ack.duplicate) == (25, False)


def test_the_old_messages_outlive_a_kill_of_the_new_broker(api: Api, broker: BrokerProcess) -> None:
    before = found(api, "orders")
    api.publish("orders", b"new", ackPolicy=pb.ALL)
    api.close()
    broker.restart()
    with closing(broker.api()) as again:
        assert found(again, "orders") == [*before, (25, b"", b"new", b"")]
        assert again.FetchCursor(stream="orders", partition=0, cursorId="reader").offset == 7
