"""The files that a batch read of Spark visits are those of docs/internals/walks.md: planning in the driver, reading in a task."""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

pytest.importorskip("pyspark")

from bascule.client import blocking
from bascule.spark.read import cluster
from bascule.spark.source import BasculeSource
from tests.broker.walks.pages import SOURCE, files_of
from tests.support.broker_process import BrokerProcess
from tests.support.tables import SERVING

FILES_MAX = 20


@contextmanager
def visited(files: set[str]) -> Iterator[None]:
    """Adds the files below src/bascule whose functions are called meanwhile, in any thread."""

    def note(frame: FrameType, event: str, _argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(SOURCE):
            files.add(path.relative_to(SOURCE).as_posix())

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, config=SERVING) as found:
        with blocking.connect(found.address) as client:
            client.create_stream("orders", partitions=2)
            for number in range(10):
                client.publish("orders", b"%d" % number, partition=number % 2)
        yield found


def read(broker: BrokerProcess, files: set[str], **options: str) -> int:
    """The rows of a read by a driver and a worker that have no connection yet."""
    given = {"stream": "orders", "servers": broker.address, **options}
    rows = 0
    with visited(files):
        source = BasculeSource(given)
        schema = source.schema()
        reader = source.reader(schema)  # type: ignore[arg-type] # text only with typed values
        tasks = reader.partitions()
    disconnect()
    there = pickle.loads(pickle.dumps(reader))
    with visited(files):
        for task in tasks:
            rows += sum(batch.num_rows for batch in there.read(task))
    disconnect()
    return rows


def disconnect() -> None:
    for _, options in list(cluster._connected):
        cluster.disconnect(options)


def test_a_batch_read_visits_the_files_of_the_page(broker: BrokerProcess) -> None:
    read(broker, set())  # imports everything: what runs at import is no part of the walk
    files: set[str] = set()
    assert read(broker, files) == 10
    assert files == files_of("Spark batch read")
    assert len(files) <= FILES_MAX
    assert not any(file.startswith(("net/grpc/", "net/nats/")) for file in files), (
        "one transport: Flight, or local files"
    )
