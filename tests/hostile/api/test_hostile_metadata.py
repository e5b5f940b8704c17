"""Small requests for metadata that ask for a large answer; and names that older servers have stored."""

from __future__ import annotations

import time
import urllib.request
from typing import Final

from tests.support.api_client import Api, Status, refused
from tests.support.broker_fixtures import StartBroker
from tests.support.broker_process import BrokerProcess

MIB: Final = 1 << 20


def wide_broker(start_broker: StartBroker) -> tuple[BrokerProcess, Api]:
    broker = start_broker({"http.listen": "127.0.0.1:0"})
    api = broker.api()
    api.CreateStream(name="wide", subject="wide", partitions=1_000)
    return broker, api


def test_a_stream_that_is_named_many_times_is_in_the_answer_once(start_broker: StartBroker) -> None:
    broker, api = wide_broker(start_broker)
    once = api.FetchMetadata(streams=["wide"]).ByteSize()
    before = broker.rss_bytes()
    answer = api.FetchMetadata(streams=["wide"] * 10_000, groups=["g"] * 10_000)
    assert [stream.name for stream in answer.streamMetadata] == ["wide"]
    assert [group.groupId for group in answer.groupMetadata] == ["g"]
    assert answer.ByteSize() < once + MIB
    assert broker.rss_bytes() - before < 64 * MIB
    api.close()


def test_a_request_that_names_too_many_is_refused_at_once(start_broker: StartBroker) -> None:
    broker, api = wide_broker(start_broker)
    before = broker.rss_bytes()
    for fields in ({"streams": ["wide"] * 20_000}, {"groups": [str(number) for number in range(20_000)]}):
        with refused(Status.INVALID_ARGUMENT, "has 20000 names, at most 10000 are allowed"):
            api.FetchMetadata(**fields)
    assert broker.rss_bytes() - before < 64 * MIB
    api.close()


def test_other_clients_are_served_while_many_ask_for_everything(start_broker: StartBroker) -> None:
    _, api = wide_broker(start_broker)
    for number in range(20):
        api.CreateStream(name=f"s{number}", subject=f"s{number}", partitions=100)
    asking = [api.future("FetchMetadata", streams=[], includeSettings=bool(number % 2)) for number in range(100)]
    began = time.monotonic()
    assert api.publish("s0", b"x").offset == 0
    assert time.monotonic() - began < 30
    assert {call.code() for call in asking} == {Status.OK}
    api.close()


# ── what older servers have stored ───────────────────────────────────────────────────────────────


def test_cursors_with_long_names_are_read_and_are_no_labels(start_broker: StartBroker) -> None:
    """An older server stored them, as here a client that publishes to the stream of cursors."""
    from bascule.proto.internal_pb2 import Cursor

    broker = start_broker(
        {"http.listen": "127.0.0.1:0", "cursors.stream.partitions": 1, "cursors.stream.auto.pause.time": 0}
    )
    api = broker.api()
    api.CreateStream(name="s", subject="s")
    api.publish("s", b"x")
    api.SetCursor(stream="s", partition=0, cursorId="short", offset=3)
    for number in range(50):
        long = f"{number}-" + "x" * 60_000
        cursor = Cursor(stream="s", partition=0, cursor_id=long, offset=number).SerializeToString()
        api.publish("__cursors", cursor, key=f"{long},s,0".encode())
        assert api.FetchCursor(stream="s", partition=0, cursorId=long).offset == number
    with urllib.request.urlopen(f"http://{broker.http_address}/metrics", timeout=60) as answer:
        page = answer.read().decode()
    assert 'cursor="short"' in page
    assert "xxxxxxxx" not in page
    assert len(page) < MIB
    api.close()
