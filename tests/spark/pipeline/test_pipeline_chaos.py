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
            number = self.count
            value = b"no order" if number % 7 == 0 else json.dumps({"id": number}).encode()
            self._client.publish(self._stream, value, key=b"%d" % number, partition=number % 2, ack="all")
            self.count += 1
            time.sleep(0.01)


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


def batches(folder: Path) -> int:
    return PipelineProgress.load(folder / "state/progress.json").batches


def has_batches(folder: Path, count: int) -> bool:
    return batches(folder) >= count


def everything(client: BlockingClient, stream: str) -> list[Message]:
    last = client.fetch_partition_metadata(stream, 0).newest_offset
    with client.subscribe(stream, start="earliest", stop=last) as messages:
        return list(messages)
