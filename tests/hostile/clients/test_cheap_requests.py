"""Small requests that once caused much work or memory. Each attack runs against a real broker while another client publishes: that
client goes on being served, and the broker's memory stays bounded.

The bounds here are generous, because the machine may be busy. `test_the_strict_bounds_hold` has the real ones.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from tests.support.api_client import Api, pb
from tests.support.broker_fixtures import StartBroker, unique_name
from tests.support.broker_process import BrokerProcess
from tests.support.bystander import watched
from tests.support.hostile_http2 import (
    RESOURCE_EXHAUSTED,
    answers_without_window,
    binary_metadata,
    compressed_requests,
    reflection_without_reading,
    settings_storm,
    unfinished_requests,
)

LATENCY_SECONDS: Final = 3.0
"""Generous: the attacks that these tests repeat kept others waiting for half a minute, or cost more than the memory below."""

RSS_BYTES: Final = 512 << 20
STRICT_LATENCY_SECONDS: Final = 0.25


@contextmanager
def wide_stream(api: Api, partitions: int = 1000) -> Iterator[bytes]:
    """The request whose answer describes every partition of a wide stream."""
    name = unique_name("wide")
    api.CreateStream(name=name, subject=f"subject.{name}", partitions=partitions)
    yield pb.FetchMetadataRequest(streams=[name]).SerializeToString()
    api.DeleteStream(name=name)


def test_window_values_by_the_thousand_for_ten_thousand_calls(broker: BrokerProcess, api: Api) -> None:
    with watched(broker, api, unique_name("bystander")) as seen:
        settings_storm(broker.address)
    seen.check(p99_seconds=LATENCY_SECONDS, rss_bytes=RSS_BYTES)


def test_unfinished_requests_share_one_budget(broker: BrokerProcess, api: Api) -> None:
    with watched(broker, api, unique_name("bystander")) as seen:
        refused = unfinished_requests(broker.address)
    assert RESOURCE_EXHAUSTED in refused
    seen.check(p99_seconds=LATENCY_SECONDS, rss_bytes=RSS_BYTES)


def test_reflection_without_a_window(broker: BrokerProcess, api: Api) -> None:
    with watched(broker, api, unique_name("bystander")) as seen:
        refused = reflection_without_reading(broker.address)
    assert set(refused) == {RESOURCE_EXHAUSTED}
    seen.check(p99_seconds=LATENCY_SECONDS, rss_bytes=RSS_BYTES)


def test_large_answers_without_a_window(broker: BrokerProcess, api: Api) -> None:
    with wide_stream(api) as request, watched(broker, api, unique_name("bystander")) as seen:
        refused = answers_without_window(broker.address, "/proto.API/FetchMetadata", request)
    assert RESOURCE_EXHAUSTED in refused
    seen.check(p99_seconds=LATENCY_SECONDS, rss_bytes=RSS_BYTES)


def test_binary_metadata_of_commas(broker: BrokerProcess, api: Api) -> None:
    with watched(broker, api, unique_name("bystander")) as seen:
        refused = binary_metadata(broker.address)
    assert set(refused) == {RESOURCE_EXHAUSTED}
    seen.check(p99_seconds=LATENCY_SECONDS, rss_bytes=RSS_BYTES)


@pytest.mark.parametrize("path", ["/proto.API/CreateStream", "/proto.API/Publish", "/proto.API/PublishAsync"])
def test_requests_that_grow_a_thousandfold(broker: BrokerProcess, api: Api, path: str) -> None:
    with watched(broker, api, unique_name("bystander")) as seen:
        compressed_requests(broker.address, path)
    seen.check(p99_seconds=LATENCY_SECONDS, rss_bytes=RSS_BYTES)


ATTACKS: Final[dict[str, Callable[[str, bytes], object]]] = {
    "settings": lambda address, _: settings_storm(address),
    "unfinished": lambda address, _: unfinished_requests(address),
    "reflection": lambda address, _: reflection_without_reading(address),
    "answers": lambda address, request: answers_without_window(address, "/proto.API/FetchMetadata", request),
    "metadata": lambda address, _: binary_metadata(address),
    "gzip-unary": lambda address, _: compressed_requests(address, "/proto.API/CreateStream"),
    "gzip-publish": lambda address, _: compressed_requests(address, "/proto.API/PublishAsync"),
}


@pytest.mark.soak
@pytest.mark.parametrize("attack", ATTACKS)
def test_the_strict_bounds_hold(start_broker: StartBroker, attack: str) -> None:
    """For minutes: other clients' p99 below 250 ms, memory below 512 MiB."""
    seconds = float(os.environ.get("BASCULE_SOAK_SECONDS", "60")) / len(ATTACKS)
    broker = start_broker()
    api = broker.api()
    with wide_stream(api) as request, watched(broker, api, "bystander") as seen:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            ATTACKS[attack](broker.address, request)
    api.close()
    print(f"{attack}: p99 {seen.p99():.3f} s, {seen.rss_bytes_max >> 20} MiB, slowest {seen.slowest()}")
    assert seen.p99() < STRICT_LATENCY_SECONDS
    assert seen.rss_bytes_max < RSS_BYTES
