"""Archives while everything dies by kill -9, at every step: drivers with their Java, workers in the middle of a file, and the broker.

After each death the job is run to its end, and `bascule pipeline verify` is the judge: the archive is equal to the log, and there is
as much in it as was published.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from bascule import blocking
from tests.cli.command_line import run as run_command
from tests.support.broker_process import BrokerProcess, clean_environ
from tests.support.fault_points import FaultPoints
from tests.support.spark_processes import descendants
from tests.support.spark_session import TABLES_CONFIG

ROWS: Final = 10_000
"""Of each stream, in two batches."""

FILLER: Final = b"." * 4_000
"""A broker that dies while a batch of them is read has not sent them all."""

RUN_SECONDS_MAX: Final = 300.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """One that comes back where it was."""
    found = BrokerProcess(tmp_path / "broker", config=TABLES_CONFIG)
    with found:
        found.config["listen"] = found.address
        found.config["flight.listen"] = found.flight_address
        found.config["nats.embedded.port"] = int(found.nats_url.rpartition(":")[2])
        yield found


@pytest.fixture
def points(tmp_path: Path) -> FaultPoints:
    return FaultPoints(tmp_path / "faults")


class Driver:
    """A Spark with everything in it, in a process group of its own."""

    def __init__(self, arguments: list[str], log: Path, environ: dict[str, str]) -> None:
        self.log = log
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                env=clean_environ(environ),
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Driver, Java and workers at once, as a machine dies."""
        for pid in [self.process.pid, *descendants(self.process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def finish(self) -> None:
        code = self.process.wait(RUN_SECONDS_MAX)
        assert code == 0, self.log.read_text("utf-8", "replace")[-8_000:]


class Lakes:
    """Archives, each of the stream that has its name, all written by one driver."""

    def __init__(self, directory: Path, broker: BrokerProcess, points: FaultPoints, *names: str) -> None:
        self.directory = directory
        self.broker = broker
        self.points = points
        self.names = names
        directory.mkdir()
        self._started: list[Driver] = []
        with blocking.connect(broker.address) as client:
            for name in names:
                client.create_stream(name, partitions=2)
                for partition in range(2):
                    values = [b"%d/%d" % (partition, number) + FILLER for number in range(ROWS // 2)]
                    client.publish_many(name, values, partition=partition, ack="all")

    def start(self, master: str = "local[4,4]") -> Driver:
        folders = [str(self.directory / name) for name in self.names]
        arguments = ["tests.support.archive_driver", self.broker.address, master, *folders]
        driver = Driver(arguments, self.directory / "driver.log", self.points.environ)
        self._started.append(driver)
        return driver

    def close(self) -> None:
        for driver in self._started:
            driver.kill()

    def files(self, name: str) -> list[Path]:
        """Whatever lies there, whether a commit names it or not."""
        return list((self.directory / name / "data").rglob("*.parquet"))

    def commits(self, name: str) -> list[str]:
        return [path.name for path in (self.directory / name / "_bascule/commits").iterdir()]

    def noted(self, name: str) -> list[str]:
        """Batches that Spark has noted as done."""
        return [path.name for path in (self.directory / name / "_bascule/checkpoint/commits").glob("[0-9]*")]

    def assert_equal(self, home: Path, *, died_writing: tuple[str, ...]) -> None:
        for name in self.names:
            arguments = ("pipeline", "verify", str(self.directory / name), "--json", "--server", self.broker.address)
            proved = run_command(*arguments, home=home)
            assert proved.code == 0, (name, proved)
            found = proved.json
            assert (found["equal"], found["faults"], found["unchecked"]) == (True, [], []), (name, found)
            assert found["messages"] == found["messages_compared_with_the_log"] == ROWS, (name, found)
            left_over = len(self.files(name)) - found["files"]
            assert left_over == (name in died_writing), (
                "what a task left is removed by the next start, all else is named"
            )


def test_whoever_dies_at_whatever_step_every_message_is_archived_once(
    tmp_path: Path, broker: BrokerProcess, points: FaultPoints
) -> None:
    lakes = Lakes(tmp_path / "lakes", broker, points, "a", "b", "c", "d")
    try:
        _kill_the_driver(lakes, points)
        _kill_workers_and_the_broker(lakes, points, broker)
    finally:
        lakes.close()
    lakes.assert_equal(tmp_path, died_writing=("a", "b"))


def _kill_the_driver(lakes: Lakes, points: FaultPoints) -> None:
    """Before it writes, when it has written, in its commit, and when it has committed: each archive is at another step."""
    steps = ("a:before-write", "b:before-commit", "c:in-commit", "d:after-commit")
    points.arm(*steps)
    driver = lakes.start()
    for step in steps:
        points.wait(step, driver.process)
    driver.kill()
    for step in steps:
        points.release(step)
    assert [bool(lakes.files(name)) for name in lakes.names] == [False, True, True, True]
    assert (lakes.commits("a"), lakes.commits("b")) == ([], [])
    assert len(lakes.commits("c")) == 1 and lakes.commits("c")[0].startswith("."), "written aside"
    assert lakes.commits("d") == ["00000000000000000001.json"]
    assert lakes.noted("d") == [], "Spark knows nothing of it"


def _kill_workers_and_the_broker(lakes: Lakes, points: FaultPoints, broker: BrokerProcess) -> None:
    """A worker in the middle of a file and behind its end; the broker while it is read from, before a commit and behind one."""
    points.arm("a:file-begun", "b:file-finished", "c:reading", "d:before-commit", "d:after-commit")
    driver = lakes.start()
    for step in ("a:file-begun", "b:file-finished"):
        os.kill(points.wait(step, driver.process), signal.SIGKILL)
    for step in ("c:reading", "d:before-commit"):
        points.wait(step, driver.process)
    broker.restart()
    for step in ("c:reading", "d:before-commit"):
        points.release(step)
    points.wait("d:after-commit", driver.process)
    broker.restart()
    points.release("d:after-commit")
    driver.finish()
