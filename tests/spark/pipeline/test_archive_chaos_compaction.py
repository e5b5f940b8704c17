"""Whoever merges files of an archive dies by kill -9, at each step: the archive is what it was, and the next one goes on."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from bascule.client.arrow.reader import FlightConnection
from bascule.lake.archive import Archive
from bascule.lake.delta.place import LakePlace
from bascule.lake.facts import Commit, Covered
from bascule.lake.files import WriteTask
from bascule.lake.verification import Verification
from tests.cli.command_line import COMMAND
from tests.cli.command_line import run as run_command
from tests.spark.conftest import MakeStream
from tests.support.broker_process import BrokerProcess, clean_environ
from tests.support.fault_points import FaultPoints

COMMITS, ROWS = 6, 100


@pytest.fixture
def lake(tables: BrokerProcess, make_stream: MakeStream, tmp_path: Path) -> Archive:
    """Of two partitions, with many small files: what the job makes, without its Spark."""
    stream = make_stream(COMMITS * ROWS, partitions=2)
    archive = Archive(tmp_path / "lake")
    archive.create([stream])
    with FlightConnection(tables.address) as connection:
        stream_id = connection.offsets([stream])[stream]["id"]
        for number in range(COMMITS):
            start, end = number * ROWS, (number + 1) * ROWS
            files = [
                replace(one, stream_id=stream_id)
                for partition in range(2)
                for one in WriteTask(LakePlace(str(archive.path)), {}).write(
                    connection.read(stream, partition, start, end)
                )
            ]
            covered = tuple(Covered(stream, stream_id, partition, start, end) for partition in range(2))
            archive.commit(Commit(number + 1, "append", 1 + number, "test", number, tuple(files), (), covered))
    return archive


@pytest.mark.parametrize(
    "step",
    [
        "rereading",
        pytest.param("before-compact", marks=pytest.mark.soak),
        pytest.param("in-commit", marks=pytest.mark.soak),
        "after-compact",
        pytest.param("before-head", marks=pytest.mark.soak),
    ],
)
def test_who_dies_while_it_merges_leaves_the_archive_as_it_was_or_as_it_should_be(
    tables: BrokerProcess, lake: Archive, tmp_path: Path, step: str
) -> None:
    points = FaultPoints(tmp_path / "faults")
    points.arm(f"lake:{step}")
    command = [*COMMAND, "pipeline", "compact", str(lake.path), "--keep-replaced", "0s"]
    with subprocess.Popen(command, env=clean_environ(points.environ)) as process:
        os.kill(points.wait(f"lake:{step}", process), signal.SIGKILL)
    files = len(lake.state().files)
    assert (files < 2 * COMMITS) is (step in ("after-compact", "in-commit", "before-head")), (
        "it is the commit that counts"
    )
    with FlightConnection(tables.address) as connection:
        assert Verification(lake, connection, lambda _: None).run().faults == []
    subprocess.run(command, env=clean_environ(points.environ), check=True, timeout=60)
    assert_equal(lake, tables, tmp_path)
    on_disk = {str(path.relative_to(lake.path)) for path in lake.path.rglob("date=*/*.parquet")}
    assert on_disk == set(lake.state().files), "nothing is left of the dead"
    assert not [path for path in (lake.path / "_delta_log").iterdir() if path.suffix not in (".json", ".parquet")]


def assert_equal(lake: Archive, tables: BrokerProcess, home: Path) -> None:
    """Says the command that is the judge."""
    arguments = ("pipeline", "verify", str(lake.path), "--json", "--server", tables.address)
    found = run_command(*arguments, home=home).json
    assert (found["equal"], found["faults"], found["unchecked"]) == (True, [], []), found
    assert (found["files"], found["messages"]) == (2, 2 * COMMITS * ROWS), found
    assert found["messages_compared_with_the_log"] == found["messages"]
