"""A command that is killed takes the processes of its Spark with it, also while no broker answers them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bascule import blocking
from tests.spark.conftest import publish
from tests.support.broker_process import BrokerProcess, clean_environ
from tests.support.spark_processes import Process, command_line, descendants
from tests.support.spark_session import TABLES_CONFIG
from tests.support.waiting import eventually

GONE_SECONDS_MAX = 30.0
"""They go within two; a read of a broker that is dead is given up after sixty."""


def started_by(pid: int) -> dict[Process, str]:
    return {one: command_line(child) for child in descendants(pid) if (one := Process.of(child)) is not None}


@pytest.mark.soak
def test_processes_of_a_spark_end_with_the_command_while_the_broker_is_dead(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "broker", config=TABLES_CONFIG)
    with broker, blocking.connect(broker.address) as client:
        client.create_stream("orders")
        publish(client, "orders", 10)
        command = [sys.executable, "-m", "bascule.cli.main", "pipeline", "archive", str(tmp_path / "lake"), "orders"]
        with (tmp_path / "log").open("wb") as log:
            driver = subprocess.Popen(
                [*command, "--every", "100ms", "--master", "local[2]", "--server", broker.address],
                env=clean_environ({"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        found: dict[Process, str] = {}
        try:
            eventually(lambda: list((tmp_path / "lake/_delta_log").glob("*1.json")), "the archive has begun", 300)
            found = started_by(driver.pid)
            assert len(found) >= 2, "a Java and a worker"
            broker.kill()
            time.sleep(2)  # twenty triggers: somebody asks the broker that is dead
            found |= started_by(driver.pid)
            driver.kill()
            driver.wait()
            deadline = time.monotonic() + GONE_SECONDS_MAX
            while left := {one.pid: said for one, said in found.items() if Process.of(one.pid) == one}:
                assert time.monotonic() < deadline, left
                time.sleep(0.1)
        finally:
            driver.kill()
            for one in found:
                one.kill()
