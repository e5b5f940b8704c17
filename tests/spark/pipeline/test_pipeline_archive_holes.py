"""An archive that goes on without what retention took says what that was; one whose disk is full stops, and goes on with room."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from bascule.cli.main import app
from bascule.client.arrow.reader import FlightConnection
from bascule.client.blocking import BlockingClient
from bascule.errors import DiskFull
from bascule.lake.archive import Archive
from bascule.lake.facts import REMOVED, ArchiveState
from bascule.lake.holes import Span, joined
from bascule.pipeline.jobs.archive import ArchiveOptions, run_archive
from bascule.pipeline.status import pipeline_status
from tests.spark.conftest import MakeStream, Read, publish
from tests.spark.pipeline.test_archive_chaos_streams import RETENTION, slowly
from tests.spark.pipeline.test_pipeline_run import Play, play
from tests.support.broker_process import BrokerProcess
from tests.support.small_disk import MountedDisk, NotPermitted, SmallDisk
from tests.support.waiting import eventually

__all__ = ["play"]


def verified(tables: BrokerProcess, lake: Path) -> list[str]:
    done = CliRunner().invoke(app, ["pipeline", "verify", str(lake), "--server", tables.address])
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


def overtaken(tables: BrokerProcess, client: BlockingClient, stream: str) -> None:
    """Let retention take some of what comes behind offset 10. How much it takes in the end, the archive tells."""
    slowly(client, stream, 140, first=10)
    with FlightConnection(tables.address) as connection:
        eventually(
            lambda: connection.offsets([stream])[stream]["partitions"][0]["log_start"] > 20, "retention has taken some"
        )


def lost_of(state: ArchiveState) -> list[Span]:
    """Retention may be faster than a task more than once: then one range follows the other."""
    (found,) = state.lost.values()
    assert {one.reason for one in found} == {REMOVED}
    return joined((one.start, one.end) for one in found)


# ── losses ───────────────────────────────────────────────────────────────────────────────────────


def test_what_an_archive_went_on_without_is_named_by_all_who_read_it(
    spark: SparkSession,
    tables: BrokerProcess,
    client: BlockingClient,
    make_stream: MakeStream,
    read: Read,
    tmp_path: Path,
) -> None:
    stream, lake = make_stream(**RETENTION), tmp_path / "lake"
    slowly(client, stream, 10)
    source = {"onDataLoss": "skip"}
    options = ArchiveOptions(streams=(stream,), path=str(lake), servers=tables.address, source=source)
    run_archive(spark, options, once=True)
    overtaken(tables, client, stream)
    state = run_archive(spark, options, once=True)
    ((first, start),) = lost_of(state)
    assert (first, [*state.began.values()], [*state.next_offsets.values()]) == (10, [0], [150])
    assert (state.rows, start > 20) == (10 + 150 - start, True)

    *named, last = verified(tables, lake)
    assert named[0].startswith(f"lost: {stream}/0: offsets 10 to ")
    assert ", retention deleted them first, since 20" in named[0]
    assert last.startswith(f"equal but for {start - 10} offsets that were never archived: {state.rows} messages in ")
    with pytest.raises(PySparkException, match=rf"\[DATA_LOST\] .* offsets 10 to {start - 1} are neither in its log"):
        read(stream=stream, history=str(lake)).count()
    found = read(stream=stream, history=str(lake), onDataLoss="skip").select("offset").toArrow()
    assert sorted(found["offset"].to_pylist()) == [*range(10), *range(start, 150)]


def test_a_pipeline_whose_archive_went_on_names_it_too(
    play: Play, tables: BrokerProcess, client: BlockingClient, make_stream: MakeStream, tmp_path: Path
) -> None:
    stream, lake = make_stream(**RETENTION), tmp_path / "lake"
    slowly(client, stream, 10)
    play.run(f"""
name: holes
source: {{stream: {stream}, on_data_loss: skip}}
sinks: [archive: {{path: lake}}]
""")
    overtaken(tables, client, stream)
    play.run()
    state = Archive(lake).state()
    ((first, start),) = lost_of(state)
    assert (first, start > 20, [*state.began.values()], state.rows) == (10, True, [0], 10 + 150 - start)
    assert verified(tables, lake)[-1].startswith(f"equal but for {start - 10} offsets that were never archived: ")
    assert play.spec is not None
    assert pipeline_status(play.spec)["lost"] == start - 10


# ── a full disk ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SmallDisk]:
    try:
        made = getattr(request, "param", MountedDisk)(tmp_path / "small", 8 << 20)
    except (NotPermitted, OSError) as error:
        pytest.skip(f"mounting a file system is not permitted here: {error}")
    yield made
    made.close()


def files_of(lake: Path) -> set[str]:
    return {str(path.relative_to(lake)) for path in lake.rglob("date=*/*") if path.is_file()}


def known_to(lake: Path) -> set[str]:
    return {one.path for one in Archive(lake).state().files.values()}


@pytest.mark.parametrize(
    ("disk", "is_beside"),
    [pytest.param(MountedDisk, False, marks=pytest.mark.soak), (MountedDisk, True)],
    indirect=["disk"],
)
def test_an_archive_whose_disk_is_full_stops_and_goes_on_when_there_is_room(
    spark: SparkSession,
    tables: BrokerProcess,
    client: BlockingClient,
    make_stream: MakeStream,
    disk: SmallDisk,
    tmp_path: Path,
    is_beside: bool,
) -> None:
    """With its checkpoint on the same disk it is Spark that finds no room first, else it is a task."""
    stream, lake = make_stream(100), disk.path / "lake"
    more: dict[str, Any] = {} if is_beside else {"checkpoint": str(tmp_path / "checkpoint")}
    options = ArchiveOptions(streams=(stream,), path=str(lake), servers=tables.address, **more)
    run_archive(spark, options, once=True)
    before = known_to(lake)
    publish(client, stream, 200, first=100)
    disk.fill()
    with pytest.raises(DiskFull, match=r"no room") as full:
        run_archive(spark, options, once=True)
    assert full.value.hint is not None and "make room" in full.value.hint
    assert files_of(lake) == known_to(lake) == before, "and nothing half is left"
    disk.relieve()
    assert run_archive(spark, options, once=True).rows == 300
    assert verified(tables, lake)[-1].startswith("equal: 300 messages in 2 files, 300 compared")


def test_a_pipeline_whose_archive_has_no_room_stops_and_goes_on(
    play: Play, tables: BrokerProcess, client: BlockingClient, make_stream: MakeStream, disk: SmallDisk
) -> None:
    stream, lake = make_stream(100), disk.path / "lake"
    play.run(f"""
name: full
source: {{stream: {stream}}}
sinks: [archive: {{path: {lake}}}]
""")
    publish(client, stream, 200, first=100)
    disk.fill()
    with pytest.raises(DiskFull, match=r"no room in .*/lake for date="):
        play.run()
    assert files_of(lake) == known_to(lake)
    disk.relieve()
    assert play.run().read == 300
    assert verified(tables, lake)[-1].startswith("equal: 300 messages in 2 files, 300 compared")
