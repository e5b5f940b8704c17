"""A broker that serves tables, and what tests of it share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from bascule.client.arrow.reader import FlightConnection
from bascule.flight.tickets import ReadTicket
from tests.support.api_client import Api
from tests.support.broker_fixtures import unique_name
from tests.support.broker_process import BrokerProcess
from tests.support.nats_server import NatsServer

SERVING: Final = {"flight.enabled": True}


class Counting(FlightConnection):
    """Remembers which servers it asked for record batches, and from which offset. Reads no local files unless `local` is set."""

    def __init__(self, *arguments: Any, local: bool = False, **options: Any) -> None:
        super().__init__(*arguments, local=local, **options)
        self.asked: list[tuple[str, int | None]] = []
        batches = self._servers.batches

        def counted(location: str, ticket: ReadTicket) -> Iterator[tuple[int, pa.RecordBatch]]:
            self.asked.append((location, ticket.start))
            return batches(location, ticket)

        self._servers.batches = counted  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def tables_broker(tmp_path_factory: pytest.TempPathFactory, nats_server: NatsServer) -> Iterator[BrokerProcess]:
    """For the tests of a module; it has to outlive them."""
    name = unique_name("tables")
    env = {"BASCULE_ENCRYPTION_KEY": "0123456789abcdef"}
    broker = BrokerProcess(
        tmp_path_factory.mktemp(name),
        nats_url=nats_server.url,
        config={"clustering.namespace": name, **SERVING},
        env=env,
    )
    with broker:
        yield broker
        assert broker.is_running, broker.tail()
        assert "Traceback" not in broker.said(), broker.tail()


@pytest.fixture
def tables(tables_broker: BrokerProcess) -> Iterator[FlightConnection]:
    with FlightConnection(tables_broker.address, patience=20) as connection:
        yield connection


@pytest.fixture
def tables_api(tables_broker: BrokerProcess) -> Iterator[Api]:
    api = tables_broker.api()
    yield api
    api.close()


@pytest.fixture
def stream(tables_api: Api, request: pytest.FixtureRequest) -> str:
    """With two partitions, and nobody else's."""
    name = unique_name(request.node.name)
    tables_api.CreateStream(name=name, subject=f"subject.{name}", partitions=2)
    return name


def numbers(count: int, *, first: int = 0, size: int = 0) -> pa.Table:
    """Rows for partition 0 whose values are numbers, in order."""
    values = [(b"%d" % number).ljust(size, b".") for number in range(first, first + count)]
    return pa.table({"value": values, "partition": pa.array([0] * count, pa.int32())})


def log_directory(broker: BrokerProcess, stream: str, partition: int = 0) -> Path:
    return broker.data / "streams" / stream / str(partition)


def read_rows(tables: FlightConnection, *arguments: Any, **options: Any) -> list[dict[str, Any]]:
    return [row for batch in tables.read(*arguments, **options) for row in batch.to_pylist()]


def handles_of(pid: int) -> set[str]:
    """What a process has open, as /proc names it."""
    found = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found.add(str(path.readlink()))
    return found
