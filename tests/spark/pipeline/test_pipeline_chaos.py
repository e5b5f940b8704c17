"""A pipeline whose driver dies by kill -9, again and again, while messages come in: every sink has each of them once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bascule.client.arrow.reader import FlightConnection
from bascule.client.blocking import BlockingClient
from bascule.client.messages import Message
from bascule.lake.archive import Archive
from bascule.lake.verification import Verification
from bascule.pipeline.progress import PipelineProgress
from tests.spark.conftest import MakeStream
from tests.support.broker_fixtures import unique_name
from tests.support.broker_process import BrokerProcess, clean_environ
from tests.support.waiting import eventually

pytestmark = pytest.mark.soak

DEATHS = 2


class Publisher(threading.Thread):
    """Orders 0, 1, 2 …; every seventh is none."""

    def __init__(self, client: BlockingClient, stream: str) -> None:
        super().__init__(daemon=True)
        self._client, self._stream = client, stream
        self.count = 0
        self.is_over = False

    def run(self) -> None:
        while not self.is_over:
            self.publish(self.count)
            self.count += 1
            time.sleep(0.01)

    def publish(self, number: int) -> None:
        value = b"no order" if number % 7 == 0 else json.dumps({"id": number}).encode()
        self._client.publish(self._stream, value, key=b"%d" % number, partition=number % 2, ack="all")


class Shop(Publisher):
    """An order every tenth of a second of event time, every seventh is none; and a payment for each, a second later."""

    def __init__(self, client: BlockingClient, orders: str, payments: str) -> None:
        super().__init__(client, orders)
        self._payments = payments

    def publish(self, number: int) -> None:
        self.sell(number, number / 10)

    def sell(self, number: int, second: float) -> None:
        order = {"id": number, "customer": f"c{number % 3}", "at": moment(second)}
        value = b"no order" if number % 7 == 0 else json.dumps(order).encode()
        self._client.publish(self._stream, value, partition=number % 2, ack="all")
        payment = {"order": number, "cents": number, "at": moment(second + 1)}
        self._client.publish(self._payments, json.dumps(payment).encode(), ack="all")


def moment(second: float) -> str:
    return (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)).isoformat()


class Driver:
    """`bascule pipeline run` as a process: with its Java and all workers it is one group that dies at once."""

    def __init__(self, file: Path, *options: str) -> None:
        command = (sys.executable, "-m", "bascule.cli.main", "pipeline", "run", str(file), "--master", "local[2]")
        self.process = subprocess.Popen(
            [*command, *options],
            env=clean_environ({"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


def test_a_driver_that_dies_again_and_again_leaves_every_message_once(
    tables: BrokerProcess, client: BlockingClient, make_stream: MakeStream, tmp_path: Path
) -> None:
    stream, copy, dead = make_stream(0, partitions=2), make_stream(0, name=unique_name("copy")), unique_name("dead")
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        f"""
name: mortal
servers: {tables.address}
source: {{stream: {stream}, value: {{format: json, schema: id BIGINT}}}}
steps: [dedup: {{key: value.id, within: 1h}}, where: value.id % 3 <> 0]
sinks: [{{archive: lake}}, {{stream: {copy}}}, {{table: table}}]
dlq: {{stream: {dead}}}
trigger: 0s
checkpoint: state
"""
    )
    publisher = Publisher(client, stream)
    publisher.start()
    chance = random.Random(7)
    for _ in range(DEATHS):
        wanted_batches = batches(tmp_path) + 2
        driver = Driver(file)
        eventually(partial(has_batches, tmp_path, wanted_batches), "two batches are done", 300)
        time.sleep(chance.random() * 3)
        driver.kill()
    publisher.is_over = True
    publisher.join()
    said, _ = Driver(file, "--once").process.communicate(timeout=300)
    assert b"mortal: " in said, said.decode()

    good = [number for number in range(publisher.count) if number % 7]
    wanted = Counter(number for number in good if number % 3)
    read = Counter(json.loads(message.value or b"")["id"] for message in everything(client, copy))
    assert read == wanted
    written = pq.read_table(tmp_path / "table", columns=["offset", "partition"])
    assert written.num_rows == sum(wanted.values())
    assert len(everything(client, dead)) == publisher.count - len(good)
    with FlightConnection(tables.address) as connection:
        report = Verification(Archive(tmp_path / "lake"), connection, lambda _: None).run()
    assert (report.is_equal, report.rows) == (True, publisher.count)
    progress = PipelineProgress.load(tmp_path / "state/progress.json")
    assert (progress.read, progress.rows) == (publisher.count, sum(wanted.values()))


def test_windows_of_joined_streams_are_in_every_sink_once_whenever_the_driver_dies(
    tables: BrokerProcess, client: BlockingClient, make_stream: MakeStream, tmp_path: Path
) -> None:
    orders, payments = make_stream(0, partitions=2), make_stream(0, name=unique_name("payments"))
    sums, dead = make_stream(0, name=unique_name("sums")), unique_name("dead")
    (tmp_path / "customers.csv").write_text("id,name\nc0,Ann\nc1,Bob\n")
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        f"""
name: windows
servers: {tables.address}
source:
  stream: {orders}
  value: {{format: json, schema: "id BIGINT, customer STRING, at TIMESTAMP"}}
  time: {{from: value.at, watermark: 5m}}
tables: [csv: {{name: customers, path: customers.csv, schema: "id STRING, name STRING"}}]
steps:
  - join: {{table: customers, on: value.customer = customers.id, kind: left}}
  - join:
      stream: {payments}
      as: paid
      value: {{format: json, schema: "order BIGINT, cents BIGINT, at TIMESTAMP"}}
      time: {{from: value.at, watermark: 5m}}
      on: value.id = paid.value.order
      after: 10s
  - window:
      size: 5s
      by: {{name: "coalesce(customers.name, 'nobody')"}}
      aggregates: {{orders: count(*), cents: sum(paid.value.cents)}}
  - key: name
sinks: [{{stream: {sums}}}, {{table: {{path: few, when: orders < 10}}}}, {{table: {{path: many, when: otherwise}}}}]
dlq: {{stream: {dead}}}
trigger: 0s
checkpoint: state
"""
    )
    shop = Shop(client, orders, payments)
    shop.start()
    chance = random.Random(11)
    for _ in range(DEATHS):
        wanted_batches = batches(tmp_path) + 2
        driver = Driver(file)
        eventually(partial(has_batches, tmp_path, wanted_batches), "two batches are done", 300)
        time.sleep(chance.random() * 3)
        driver.kill()
        (tmp_path / "customers.csv").write_text("id,name\nc0,Ann\nc1,Bob\n")
    shop.is_over = True
    shop.join()
    shop.sell(shop.count * 7 + 1, 100_000)  # all windows before it are complete
    said, _ = Driver(file, "--once").process.communicate(timeout=300)
    assert b"windows: " in said, said.decode()

    wanted: dict[tuple[str, str], list[int]] = {}
    for number in range(shop.count):
        if number % 7:
            name = ("Ann", "Bob", "nobody")[number % 3]
            wanted.setdefault((moment(number // 50 * 5)[:19], name), []).append(number)
    sums_wanted = Counter((start, name, len(ids), sum(ids)) for (start, name), ids in wanted.items())
    rows = [json.loads(message.value or b"") for message in everything(client, sums)]
    assert Counter((row["window_start"][:19], row["name"], row["orders"], row["cents"]) for row in rows) == sums_wanted
    columns = ["window_start", "name", "orders", "cents"]
    for folder, is_few in (("few", True), ("many", False)):
        found = (
            pq.read_table(tmp_path / folder, columns=columns).to_pylist() if (tmp_path / folder).glob("batch=*") else []
        )
        stored = Counter(
            (f"{row['window_start']:%Y-%m-%dT%H:%M:%S}", *(row[name] for name in columns[1:])) for row in found
        )
        assert stored == Counter({row: 1 for row in sums_wanted if (row[2] < 10) is is_few})
    assert len(everything(client, dead)) == (shop.count + 6) // 7
    progress = PipelineProgress.load(tmp_path / "state/progress.json")
    assert (progress.read, progress.late) == (2 * (shop.count + 1), 0)


def batches(folder: Path) -> int:
    return PipelineProgress.load(folder / "state/progress.json").batches


def has_batches(folder: Path, count: int) -> bool:
    return batches(folder) >= count


def everything(client: BlockingClient, stream: str) -> list[Message]:
    last = client.fetch_partition_metadata(stream, 0).newest_offset
    with client.subscribe(stream, start="earliest", stop=last) as messages:
        return list(messages)
