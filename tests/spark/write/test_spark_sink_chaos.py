"""Exactly once while everything dies: drivers with all their processes, workers, and the broker, at any moment of a write."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from bascule import blocking
from bascule.client.blocking import BlockingClient
from tests.spark.conftest import publish
from tests.spark.write.test_spark_sink import values
from tests.spark.write.test_spark_sink_streaming import stored_count
from tests.support.broker_process import BrokerProcess, clean_environ
from tests.support.spark_processes import descendants, workers

DRIVER = """
import sys, bascule.spark
servers, source, target, checkpoint = sys.argv[1:]
spark = bascule.spark.session("chaos", "local[2,4]", **{"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"})
rows = spark.readStream.format("bascule").options(
    servers=servers, stream=source, startingOffsets="earliest", maxOffsetsPerTrigger="2000").load()
query = rows.select("key", "value").writeStream.format("bascule").options(
    servers=servers, stream=target, delivery="exactly-once", partitioner="round-robin", maxInFlight="4",
    checkpointLocation=checkpoint).trigger(availableNow=True).start()
query.awaitTermination()
"""
ROWS = 20_000


class Driver:
    """A Spark with everything in it, in a process group of its own."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, *arguments],
            env=clean_environ(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def kill(self) -> None:
        """kill -9 of driver, Java and workers at once, as a machine dies."""
        for pid in [self.process.pid, *descendants(self.process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def kill_workers(self) -> None:
        for java in list(descendants(self.process.pid)):
            for pid in workers(java):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@pytest.mark.soak
def test_whatever_dies_every_row_is_there_once(tmp_path: Path, soak_seconds: float) -> None:
    broker = BrokerProcess(tmp_path / "broker", config={"flight.enabled": True, "listen": "127.0.0.1:0"})
    rng = random.Random(7)
    with broker:
        broker.config["listen"] = broker.address
        with blocking.connect(broker.address, patience=120) as client:
            client.create_stream("source", partitions=2)
            client.create_stream("target", partitions=3)
            for partition in range(2):
                publish(client, "source", ROWS // 2, partition=partition)
            arguments = (broker.address, "source", "target", str(tmp_path / "checkpoint"))
            deadline = time.monotonic() + soak_seconds
            happened: Counter[str] = Counter()
            while not _run(client, arguments, broker, rng, deadline, happened):
                continue
            assert Counter(values(client, "target")) == Counter(values(client, "source")), happened
    assert happened["driver"] or soak_seconds < 120


def _run(
    client: BlockingClient,
    arguments: tuple[str, ...],
    broker: BrokerProcess,
    rng: random.Random,
    deadline: float,
    happened: Counter[str],
) -> bool:
    """A driver until it has done everything, or dies. Things happen to it whenever some more rows are stored."""
    driver = Driver(*arguments)
    faults: dict[str, Callable[[], object]] = {
        "driver": driver.kill,
        "workers": driver.kill_workers,
        "broker": broker.restart,
    }
    try:
        next_fault = stored_count(client, "target") + rng.randrange(1, 3_000)
        while driver.process.poll() is None:
            time.sleep(0.01)
            if time.monotonic() < deadline and stored_count(client, "target") >= next_fault:
                fault = rng.choice(list(faults))
                happened[fault] += 1
                faults[fault]()
                next_fault = stored_count(client, "target") + rng.randrange(1, 3_000)
        return driver.process.returncode == 0
    finally:
        driver.kill()
