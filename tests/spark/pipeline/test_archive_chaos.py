"""Archives while everything dies by kill -9, at every step: drivers with their Java, workers in the middle of a file, and the broker.

After each death the job is run to its end, and `bascule pipeline verify` is the judge: the archive is equal to the log, and there is
as much in it as was published. Beside the archives a stream is copied into another one exactly once, and goes through the same.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from bascule import blocking
from tests.cli.command_line import run as run_command
from tests.spark.write.test_spark_sink import values
from tests.support.broker_process import BrokerProcess, clean_environ
from tests.support.fault_points import FaultPoints
from tests.support.spark_home import spark_home
from tests.support.spark_processes import Process, descendants, parent
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


def kill_tree(pid: int) -> None:
    """kill -9 of a process and all that it has started."""
    for each in [pid, *descendants(pid)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


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
        """Driver, Java, workers and executors at once, as a machine dies. The number of one that has ended may be another's by now."""
        if self.process.poll() is None:
            kill_tree(self.process.pid)
            self.process.wait()

    def kill_python(self) -> list[Process]:
        """The driver alone. Its Java hears of it and leaves, its workers then: what may be there for a while yet."""
        orphans = [found for pid in descendants(self.process.pid) if (found := Process.of(pid)) is not None]
        self.process.kill()
        self.process.wait()
        return orphans

    def finish(self) -> None:
        code = self.process.wait(RUN_SECONDS_MAX)
        assert code == 0, self.log.read_text("utf-8", "replace")[-8_000:]


class Lakes:
    """Archives, each of the stream that has its name, and a copy of the first stream, all written by one driver."""

    def __init__(self, directory: Path, broker: BrokerProcess, points: FaultPoints, *names: str) -> None:
        self.directory = directory
        self.broker = broker
        self.points = points
        self.names = names
        directory.mkdir()
        self._started: list[Driver] = []
        with blocking.connect(broker.address) as client:
            client.create_stream("copy", partitions=3)
            for name in names:
                client.create_stream(name, partitions=2)
                for partition in range(2):
                    values = [b"%d/%d" % (partition, number) + FILLER for number in range(ROWS // 2)]
                    client.publish_many(name, values, partition=partition, ack="all")

    def start(self, master: str = "local[4,4]") -> Driver:
        jobs = [*(str(self.directory / name) for name in self.names), f"{self.names[0]}=copy={self.directory}/copied"]
        arguments = ["tests.support.archive_driver", self.broker.address, master, *jobs]
        driver = Driver(arguments, self.directory / "driver.log", self.points.environ)
        self._started.append(driver)
        return driver

    def close(self) -> None:
        for driver in self._started:
            driver.kill()

    def files(self, name: str) -> list[Path]:
        """Whatever lies there, whether a commit names it or not."""
        return list((self.directory / name).rglob("date=*/*.parquet"))

    def commits(self, name: str) -> list[str]:
        """Those that append: the first one makes the table."""
        return [path.name for path in (self.directory / name / "_delta_log").glob("*[1-9].json")]

    def noted(self, name: str) -> list[str]:
        """Batches that Spark has noted as done."""
        return [path.name for path in (self.directory / name / "_bascule/checkpoint/commits").glob("[0-9]*")]

    def assert_equal(self, home: Path, *, left_over: dict[str, int]) -> None:
        """Says the judge. What workers left that died is there until the next start."""
        for name in self.names:
            arguments = ("pipeline", "verify", str(self.directory / name), "--json", "--server", self.broker.address)
            proved = run_command(*arguments, home=home)
            assert proved.code == 0, (name, proved)
            found = proved.json
            assert (found["equal"], found["faults"], found["unchecked"]) == (True, [], []), (name, found)
            assert found["messages"] == found["messages_compared_with_the_log"] == ROWS, (name, found)
            unnamed = len(self.files(name)) - found["files"]
            assert unnamed == left_over[name], "what is there has a name, or its writer died"


def test_whoever_dies_at_whatever_step_every_message_is_archived_once(
    tmp_path: Path, broker: BrokerProcess, points: FaultPoints
) -> None:
    lakes = Lakes(tmp_path / "lakes", broker, points, "a", "b")
    try:
        _kill_the_driver(lakes, points)
        _kill_workers_and_the_broker(lakes, points, broker)
    finally:
        lakes.close()
    lakes.assert_equal(tmp_path, left_over={"a": 2, "b": 0})
    with blocking.connect(broker.address) as client:
        assert Counter(values(client, "copy")) == Counter(values(client, "a"))


def _kill_the_driver(lakes: Lakes, points: FaultPoints) -> None:
    """When it has written, and when it has committed; each archive is at another step."""
    steps = ("a:before-commit", "b:after-commit", "copy:written")
    points.arm(*steps)
    driver = lakes.start()
    for step in steps:
        points.wait(step, driver.process, RUN_SECONDS_MAX)
    driver.kill()
    for step in steps:
        points.release(step)
    assert lakes.files("a") and lakes.files("b")
    assert [lakes.commits(name) for name in lakes.names] == [[], ["00000000000000000001.json"]]
    assert lakes.noted("b") == [], "Spark knows nothing of it"


def _kill_workers_and_the_broker(lakes: Lakes, points: FaultPoints, broker: BrokerProcess) -> None:
    """A worker in the middle of a file and behind its end; the broker while it is read from, before a commit and behind one."""
    worker_steps = ("a:file-begun", "a:file-finished", "copy:writing")
    broker_steps = ("b:reading", "b:before-commit", "b:after-commit")
    points.arm(*worker_steps, *broker_steps)
    driver = lakes.start()
    for step in worker_steps:
        os.kill(points.wait(step, driver.process, RUN_SECONDS_MAX), signal.SIGKILL)
    for step in broker_steps:
        points.wait(step, driver.process, RUN_SECONDS_MAX)
        broker.restart()
        points.release(step)
    driver.finish()


# ── the command, for as long as one likes ────────────────────────────────────────────────────────

DRIVER_STEPS: Final = ("before-write", "before-commit", "in-commit", "after-commit")
TASK_STEPS: Final = ("reading", "file-begun", "file-finished")
MILD: Final = [("broker", step) for step in DRIVER_STEPS + TASK_STEPS] + [("task", step) for step in TASK_STEPS]
HARD: Final = [(victim, step) for victim in ("driver", "machine") for step in DRIVER_STEPS + TASK_STEPS]
"""After these a Spark has to start again."""


def deaths(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Who dies where: all there are, in turn, and again in another order."""
    while True:
        mild, hard = rng.sample(MILD, len(MILD)), rng.sample(HARD, len(HARD))
        for one in hard:
            yield from mild[:2]
            del mild[:2]
            yield one


class Torment:
    """`bascule pipeline archive` on one stream, into which messages come whenever somebody is about to die."""

    def __init__(self, directory: Path, broker: BrokerProcess, points: FaultPoints, master: str, seed: int) -> None:
        self.lake = directory / "lake"
        self.broker = broker
        self.happened: Counter[str] = Counter()
        self._points = points
        self._rng = random.Random(seed)
        self._deaths = deaths(self._rng)
        self._log = directory / "driver.log"
        self._environ = {**points.environ, "SPARK_HOME": str(spark_home(directory))}
        self._arguments = ["bascule.cli.main", "pipeline", "archive", str(self.lake), "lake", "--master", master]
        self._arguments += ["--server", broker.address]
        self._has_executors = master.startswith("local-cluster")
        self._driver: Driver | None = None
        self._orphans: list[Process] = []
        self.published = 0

    def publish(self) -> None:
        count = self._rng.randrange(1, 3_000)
        with blocking.connect(self.broker.address, patience=120) as client:
            client.publish_many("lake", [FILLER] * count, partition=self._rng.randrange(2), ack="all")
        self.published += count

    def step(self) -> None:
        """Somebody dies somewhere."""
        if self._driver is None:
            self._driver = Driver([*self._arguments, "--every", "100ms"], self._log, self._environ)
        victim, step = next(self._deaths)
        self._points.arm(f"lake:{step}")
        self.publish()
        pid = self._points.wait(f"lake:{step}", self._driver.process, RUN_SECONDS_MAX)
        if victim == "machine":
            self.kill()
        elif victim == "driver":
            self._orphans += self._driver.kill_python()
            self._driver = None
        elif victim == "broker":
            self.broker.restart()
        elif self._has_executors:  # worker, daemon, Java
            kill_tree(parent(parent(pid)))
        else:
            os.kill(pid, signal.SIGKILL)
        self._points.release(f"lake:{step}")
        self.happened[f"{victim}/{step}"] += 1

    def finish(self) -> None:
        self.kill()
        self._driver = Driver([*self._arguments, "--once"], self._log, self._environ)
        self._driver.finish()

    def kill(self) -> None:
        """All that runs."""
        if self._driver is not None:
            self._driver.kill()
            self._driver = None
        for orphan in self._orphans:
            orphan.kill()
        self._orphans = []


@pytest.mark.soak
@pytest.mark.parametrize("master", ["local[2,8]", "local-cluster[2,1,1024]"])
def test_the_command_archives_everything_once_whoever_dies(
    tmp_path: Path, broker: BrokerProcess, points: FaultPoints, soak_seconds: float, master: str
) -> None:
    with blocking.connect(broker.address) as client:
        client.create_stream("lake", partitions=2)
    torment = Torment(tmp_path, broker, points, master, seed=7)
    deadline = time.monotonic() + soak_seconds
    try:
        while time.monotonic() < deadline:
            torment.step()
        torment.finish()
    finally:
        torment.kill()
        print(dict(torment.happened))
    arguments = ("pipeline", "verify", str(torment.lake), "--json", "--server", broker.address)
    found = run_command(*arguments, home=tmp_path, timeout=300).json
    assert (found["equal"], found["faults"], found["unchecked"]) == (True, [], []), found
    assert found["messages"] == found["messages_compared_with_the_log"] == torment.published, torment.happened
