"""Fixtures for tests that speak to real brokers, a plugin of `tests/conftest.py`.

Most tests share one broker per test process and keep apart by the names of their streams; whoever needs other settings, or kills
it, starts one with `start_broker`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest

from tests.support.api_client import Api
from tests.support.broker_process import LIVE, BrokerProcess
from tests.support.nats_client import NatsClient
from tests.support.nats_server import NatsServer

_numbers = itertools.count(1)


class Stream(NamedTuple):
    """A stream of the shared broker. Name and subject differ, so that whoever confuses them is found."""

    name: str
    subject: str


class StartBroker(Protocol):
    def __call__(self, config: dict[str, Any] | None = None, /, **options: Any) -> BrokerProcess: ...


MakeStream = Callable[..., Stream]


def unique_name(hint: str) -> str:
    return f"{re.sub(r'[^A-Za-z0-9]+', '-', hint).strip('-')[:60]}-{next(_numbers)}"


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with NatsServer(tmp_path_factory.mktemp("nats")) as server:
        yield server


class SharedBroker:
    """The broker that tests share; a new one when the last did not survive."""

    def __init__(self, directory: Path, nats: NatsServer) -> None:
        self._directory = directory
        self._nats = nats
        self._broker: BrokerProcess | None = None

    def get(self) -> BrokerProcess:
        if self._broker is None or not self._broker.is_running:
            name = unique_name("shared")
            config = {
                "clustering.namespace": name,
                "cursors.stream.partitions": 1,
                "cursors.stream.auto.pause.time": 0,
            }
            self._broker = BrokerProcess(self._directory / name, nats_url=self._nats.url, config=config)
            self._broker.start()
        return self._broker

    def kill(self) -> None:
        if self._broker is not None:
            self._broker.kill()


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory, nats_server: NatsServer) -> Iterator[SharedBroker]:
    shared = SharedBroker(tmp_path_factory.mktemp("shared"), nats_server)
    yield shared
    shared.kill()


@pytest.fixture
def broker(shared_broker: SharedBroker) -> Iterator[BrokerProcess]:
    """A broker for everybody, with cursors on. It has to outlive every test."""
    found = shared_broker.get()
    said = len(found.said())
    yield found
    if not found.is_running:
        raise AssertionError(f"the broker did not survive this test, it left with {found.wait()}:\n{found.tail()}")
    assert "Traceback" not in found.said()[said:], found.said()[said:]


@pytest.fixture
def api(broker: BrokerProcess) -> Iterator[Api]:
    client = broker.api()
    yield client
    client.close()


@pytest.fixture
def nats(broker: BrokerProcess) -> Iterator[NatsClient]:
    """A connection to the NATS server of `broker`."""
    with NatsClient(broker.nats_url) as client:
        yield client


@pytest.fixture
def make_stream(api: Api, request: pytest.FixtureRequest) -> MakeStream:
    """Create a stream of the shared broker; nobody else has its name or subject."""

    def make(**fields: Any) -> Stream:
        name = fields.pop("name", None) or unique_name(request.node.name)
        stream = Stream(name, fields.pop("subject", f"subject.{name}"))
        api.CreateStream(name=stream.name, subject=stream.subject, **fields)
        return stream

    return make


@pytest.fixture
def start_broker(tmp_path: Path, nats_server: NatsServer) -> Iterator[StartBroker]:
    """Start a broker of one's own, on the shared NATS server unless `embedded=True`. Killed when the test is over."""
    started: list[BrokerProcess] = []

    def start(config: dict[str, Any] | None = None, /, **options: Any) -> BrokerProcess:
        name = unique_name("own")
        embedded = options.pop("embedded", False)
        launch_only = options.pop("launch_only", False)
        options.setdefault("nats_url", None if embedded else nats_server.url)
        settings = {"clustering.namespace": name, **(config or {})}
        found = BrokerProcess(options.pop("directory", tmp_path / name), config=settings, **options)
        started.append(found)
        if launch_only:
            found.launch()
        else:
            found.start()
        return found

    yield start
    for one in started:
        one.kill()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What the brokers said last belongs to the report of a test that failed."""
    del item, call
    report = yield
    if report.failed:
        for broker in list(LIVE.values()):
            report.sections.append((f"broker {broker.address or broker.pid}", broker.tail()))
    return report
