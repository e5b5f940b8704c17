"""Readers on the broker's machine read its files: real processes, and proof that they do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bascule import TlsOptions, limits
from bascule.client.arrow.reader import FlightConnection
from tests.support.broker_fixtures import StartBroker
from tests.support.broker_process import BrokerProcess
from tests.support.guarded_broker import Guarded
from tests.support.monitoring import scrape
from tests.support.tables import (
    SERVING,
    Counting,
    handles_of,
    log_directory,
    numbers,
    stream,
    tables_api,
    tables_broker,
)

__all__ = ["stream", "tables_api", "tables_broker"]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits a second for a broker that stands still reads over Flight, which is right, and not what is looked at here."""
    monkeypatch.setattr(limits, "FLIGHT_LOCAL_SECONDS", 60.0)


def test_rows_come_from_files_and_are_the_same(tables_broker: BrokerProcess, stream: str) -> None:
    with Counting(tables_broker.address, local=True) as near, Counting(tables_broker.address) as far:
        near.put(stream, numbers(5_000, size=300))
        before = scrape(tables_broker)
        rows = list(near.read(stream, 0, batch_rows=700))
        assert near.asked == []
        page = scrape(tables_broker)
        read, nbytes = (
            page.value(name) - before.value(name)
            for name in ("bascule_flight_rows_total", "bascule_flight_bytes_total")
        )
        assert read == 5_000
        assert nbytes > 5_000 * 300
        assert page.value("bascule_ingest_ack_seconds", policy="all") > 0
        assert "bascule_log_sync_seconds" in page
        assert [row for batch in rows for row in batch.to_pylist()] == [
            row for batch in far.read(stream, 0) for row in batch.to_pylist()
        ]
        assert far.asked
        assert max(batch.num_rows for batch in rows) == 700


def test_a_reader_that_has_the_files_outlives_broker_and_stream(start_broker: StartBroker) -> None:
    broker = start_broker(dict(SERVING))
    api = broker.api()
    api.CreateStream(name="s", subject="s")
    with Counting(broker.address, local=True) as tables:
        tables.put("s", numbers(3_000, size=300))
        reading = tables.read("s", 0, batch_rows=100)
        found = next(reading)["offset"].to_pylist()
        api.DeleteStream(name="s")
        api.close()
        assert broker.stop() == 0
        found += [offset for batch in reading for offset in batch["offset"].to_pylist()]
        assert (found, tables.asked) == (list(range(3_000)), [])


def test_damage_is_left_to_the_broker_to_tell(tables_broker: BrokerProcess, stream: str) -> None:
    with Counting(tables_broker.address, local=True) as tables:
        for first in range(0, 3_000, 100):
            tables.put(stream, numbers(100, first=first, size=100))
        path = sorted(log_directory(tables_broker, stream).glob("*.log"))[-1]
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 2)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 0xFF]))
            file.flush()
            found: list[int] = []
            with pytest.raises(Exception, match="checksum"):
                for batch in tables.read(stream, 0, batch_rows=10):
                    found += batch["offset"].to_pylist()
            assert found == list(range(len(found)))
            assert 0 < len(found) < 3_000
            assert len(tables.asked) == 1  # by a DoGet
            file.seek(-1, os.SEEK_CUR)
            file.write(byte)
        assert [row["offset"] for batch in tables.read(stream, 0) for row in batch.to_pylist()] == list(range(3_000))


def test_who_does_not_want_it_has_it_not(start_broker: StartBroker) -> None:
    broker = start_broker({**SERVING, "flight.local": False})
    api = broker.api()
    api.CreateStream(name="s", subject="s")
    api.close()
    with Counting(broker.address, local=True) as tables:
        tables.put("s", numbers(10))
        assert sum(batch.num_rows for batch in tables.read("s", 0)) == 10
        assert len(tables.asked) == 1


def test_behind_tls_nobody_gets_files(start_broker: StartBroker, tmp_path: Path) -> None:
    guarded = Guarded(start_broker, tmp_path / "tls", dict(SERVING))
    with FlightConnection(guarded.broker.address, tls=TlsOptions(ca=guarded.authority.file)) as tables:
        tables.offsets()
        assert tables._local_names == {}
    sockets = {line.split()[6] for line in Path("/proc/net/unix").read_text().splitlines() if "@bascule-" in line}
    assert not {f"socket:[{inode}]" for inode in sockets} & handles_of(guarded.broker.pid)
