"""Requests that are damaged, or no protobuf at all: each gets a status, the broker lives, and what was stored stays readable."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest

from tests.support.api_client import Api
from tests.support.broker_fixtures import unique_name
from tests.support.broker_process import BrokerProcess
from tests.support.nats_server import NatsServer
from tests.support.waiting import PATIENCE_SECONDS

METHODS = ("Publish", "PublishToSubject", "CreateStream", "SetCursor", "FetchMetadata", "JoinConsumerGroup")


STREAM = "orders"


@pytest.fixture(scope="module")
def shared_api(tmp_path_factory: pytest.TempPathFactory, nats_server: NatsServer) -> Iterator[Api]:
    """Of a broker for these tests alone: a damaged request may well create something."""
    config = {"clustering.namespace": unique_name("fuzzed")}
    broker = BrokerProcess(tmp_path_factory.mktemp("fuzzed"), nats_url=nats_server.url, config=config)
    connected = broker.start().api()
    yield connected
    connected.close()
    broker.kill()


@pytest.fixture
def api(shared_api: Api) -> Iterator[Api]:
    """With a stream that is new."""
    shared_api.CreateStream(name=STREAM, subject=STREAM)
    yield shared_api
    shared_api.DeleteStream(name=STREAM)


def mutated(rng: random.Random, data: bytes) -> bytes:
    damaged = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(damaged) + 1)
        match rng.randrange(4):
            case 0:
                damaged[at:at] = rng.randbytes(rng.randint(1, 8))
            case 1:
                del damaged[at : at + rng.randint(1, 8)]
            case 2 if at < len(damaged):
                damaged[at] = rng.randrange(256)
            case _:
                damaged = damaged[:at]
    return bytes(damaged)


def request_of(api: Api, method: str, stream: str = STREAM) -> Any:
    fields: dict[str, dict[str, Any]] = {
        "Publish": {"stream": stream, "value": b"v" * 20, "key": b"k", "headers": {"a": b"1"}, "correlationId": "c"},
        "PublishToSubject": {"subject": stream, "value": b"v", "headers": {"a": b"1"}},
        "CreateStream": {"name": f"{stream}-x", "subject": "x"},
        "SetCursor": {"stream": stream, "cursorId": "c", "offset": 3},
        "FetchMetadata": {"streams": [stream]},
        "JoinConsumerGroup": {"groupId": "g", "consumerId": "c", "streams": [stream]},
    }
    return api.input(method)(**fields[method])


@pytest.mark.parametrize("method", METHODS)
def test_damaged_requests_are_answered(api: Api, method: str) -> None:
    good = request_of(api, method).SerializeToString()
    rng = random.Random(method)
    # to a damaged subject nobody may listen: then no ack comes, and the deadline is the right answer
    to_subject = method == "PublishToSubject"
    wrong = {grpc.StatusCode.UNAVAILABLE} | (set() if to_subject else {grpc.StatusCode.DEADLINE_EXCEEDED})
    for _ in range(400):
        try:
            api.raw(method, mutated(rng, good), timeout=0.02 if to_subject else 60)
        except grpc.RpcError as error:
            assert error.code() not in wrong, error.details()
    last = api.publish(STREAM, b"after")
    assert api.read(STREAM)[-1].value == b"after"
    assert last.offset >= 0


@pytest.mark.parametrize("seed", range(4))
def test_damaged_messages_in_a_session_end_it_or_are_answered(api: Api, seed: int) -> None:
    good = request_of(api, "Publish").SerializeToString()
    rng = random.Random(seed)
    call = api.channel.stream_stream("/proto.API/PublishAsync")
    for _ in range(40):
        sent = [good, *(mutated(rng, good) for _ in range(rng.randint(1, 10))), good]
        try:
            for _ in call(iter(sent), timeout=PATIENCE_SECONDS):
                pass
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.INTERNAL, error.details()
    assert api.publish(STREAM, b"after").offset >= 40


@pytest.mark.parametrize("seed", range(2))
def test_damaged_subscriptions_are_refused_or_served(api: Api, seed: int) -> None:
    api.publish(STREAM, b"x")
    request = api.input("Subscribe")(stream=STREAM, startPosition=2, stopPosition=2).SerializeToString()
    rng = random.Random(seed)
    call = api.channel.unary_stream("/proto.API/Subscribe")
    for _ in range(150):
        try:
            for _ in call(mutated(rng, request), timeout=0.3):
                pass
        except grpc.RpcError as error:
            assert error.code() != grpc.StatusCode.UNAVAILABLE, error.details()
    assert [message.value for message in api.read(STREAM)] == [b"x"]
