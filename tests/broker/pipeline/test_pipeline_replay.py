"""A replay: all of it, once, in order, whoever dies on the way."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pa = pytest.importorskip("pyarrow")

from bascule import blocking  # noqa: E402
from bascule.cli.main import app  # noqa: E402
from bascule.client.arrow.columns import ColumnPublisher  # noqa: E402
from bascule.client.arrow.reader import FlightConnection  # noqa: E402
from bascule.client.blocking import BlockingClient  # noqa: E402
from bascule.errors import (  # noqa: E402
    BasculeError,
    CallerError,
    InvalidOption,
    OffsetBelowStart,
    RowsChanged,
    StreamNotFound,
)
from bascule.lake.archive import Archive  # noqa: E402
from bascule.lake.delta.place import LakePlace  # noqa: E402
from bascule.lake.facts import REMOVED, Commit, Covered, Lost  # noqa: E402
from bascule.lake.files import WriteTask  # noqa: E402
from bascule.pipeline.jobs import replay as replay_module  # noqa: E402
from bascule.pipeline.jobs import replay_trace  # noqa: E402
from bascule.pipeline.jobs.replay import Replay, ReplayOptions, ReplayReport  # noqa: E402
from bascule.pipeline.jobs.replay_source import ArchiveSource, LogSource, ReplaySource  # noqa: E402
from tests.cli.command_line import COMMAND  # noqa: E402
from tests.cli.command_line import run as run_command  # noqa: E402
from tests.support.broker_fixtures import unique_name  # noqa: E402
from tests.support.broker_process import BrokerProcess, clean_environ  # noqa: E402
from tests.support.waiting import PATIENCE_SECONDS  # noqa: E402


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("replay"), config={"flight.enabled": True}) as broker:
        yield broker
        assert "Traceback" not in broker.said(), broker.tail()


@pytest.fixture(scope="module")
def client(serving: BrokerProcess) -> Iterator[BlockingClient]:
    with blocking.connect(serving.address) as found:
        yield found


@pytest.fixture
def tables(serving: BrokerProcess) -> Iterator[FlightConnection]:
    with FlightConnection(serving.address, timeout=PATIENCE_SECONDS) as found:
        yield found


class Streams:
    """A source with something in it, a target, and ways from the one to the other."""

    def __init__(self, client: BlockingClient, tables: FlightConnection, name: str) -> None:
        self.client = client
        self.tables = tables
        self.source = f"{name}-source"
        self.target = f"{name}-target"

    def fill(self, count: int, partitions: int = 1) -> None:
        """Of every fifty messages the first has a header, and a message follows that deletes a key; a third have no key."""
        self.client.create_stream(self.source, self.source, partitions=partitions)
        for number in range(partitions):
            for at in range(0, count, 50):
                values = [b"%d/%d" % (number, place) for place in range(at, min(at + 50, count))]
                self.client.publish(self.source, values[0], partition=number, headers={"h": b"x" * 3})
                self.client.publish(self.source, None, key=b"deleted", partition=number)
                self._publish(number, values[1:])

    def _publish(self, number: int, values: list[bytes]) -> None:
        keys = [f"k{place % 7}" if place % 3 else "" for place in range(len(values))]
        self.client.publish_many(self.source, values, keys=keys, partition=number, ack="all")

    def run(self, source: ReplaySource | None = None, **options: Any) -> ReplayReport:
        given = {"target": self.target, "create": True, **options}
        return Replay(self.client, self.tables, source or self.log(), ReplayOptions(**given)).run()

    def log(self) -> LogSource:
        return LogSource(self.tables, self.source)

    def rows(self, stream: str, number: int) -> list[dict[str, Any]]:
        return [row for batch in self.tables.read(stream, number) for row in batch.to_pylist()]

    def numbers(self, stream: str) -> list[int]:
        return sorted(self.tables.offsets([stream])[stream]["partitions"])

    def sent(self, stream: str, number: int) -> list[tuple[Any, ...]]:
        """What has to be the same in both: key, value, headers of publishers, and the time it was published first."""
        return [(row["key"], row["value"], _own_headers(row), _first_time(row)) for row in self.rows(stream, number)]

    def must_be_equal(self) -> None:
        for number in self.numbers(self.source):
            assert self.sent(self.target, number) == self.sent(self.source, number)


def _own_headers(row: dict[str, Any]) -> list[tuple[str, bytes]]:
    return [(name, value) for name, value in row["headers"] if not name.startswith("bascule-")]


def _first_time(row: dict[str, Any]) -> int:
    given = dict(row["headers"]).get("bascule-timestamp")
    micros = (row["timestamp"] - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    return int(given) if given is not None else micros * 1000


@pytest.fixture
def streams(client: BlockingClient, tables: FlightConnection, request: pytest.FixtureRequest) -> Streams:
    return Streams(client, tables, unique_name(request.node.name)[-40:].lstrip("-"))


def archived(streams: Streams, path: Path) -> ArchiveSource:
    """An archive of the source, as the archive's job writes it."""
    archive = Archive(path)
    archive.create([streams.source])
    known = streams.tables.offsets([streams.source])[streams.source]
    rows = (
        batch for number in streams.numbers(streams.source) for batch in streams.tables.read(streams.source, number)
    )
    files = tuple(replace(one, stream_id=known["id"]) for one in WriteTask(LakePlace(str(path)), {}, 1000).write(rows))
    covered = tuple(
        Covered(streams.source, known["id"], number, 0, ends["high_watermark"] + 1)
        for number, ends in known["partitions"].items()
    )
    archive.commit(Commit(1, "append", 1, added=files, covered=covered))
    return ArchiveSource(path)


def test_what_an_archive_has_lost_is_counted(streams: Streams, tmp_path: Path) -> None:
    streams.fill(300, partitions=2)
    lake = archived(streams, tmp_path / "lake")
    known = streams.tables.offsets([streams.source])[streams.source]
    end = known["partitions"][1]["high_watermark"] + 1
    lost = Lost(streams.source, known["id"], 1, end, end + 40, REMOVED, at_ns=2)
    covered = Covered(streams.source, known["id"], 1, end, end + 40)
    Archive(tmp_path / "lake").commit(Commit(2, "append", 2, covered=(covered,), lost=(lost,)))
    assert streams.run(lake, id="before").lost == 0
    assert streams.run(ArchiveSource(tmp_path / "lake"), id="one").lost == 40
    assert streams.run(ArchiveSource(tmp_path / "lake"), id="two", end=end + 10).lost == 10


# ── what is kept ─────────────────────────────────────────────────────────────────────────────────


def test_keys_values_headers_times_order_and_partitions_are_kept(streams: Streams) -> None:
    streams.fill(500, partitions=3)
    report = streams.run()
    assert (report.messages, report.duplicates) == (3 * 510, 0)
    streams.must_be_equal()


def test_an_archive_is_replayed_as_its_log_is(streams: Streams, tmp_path: Path) -> None:
    streams.fill(300, partitions=2)
    streams.run(archived(streams, tmp_path / "lake"), id="one")
    streams.must_be_equal()
    assert streams.run(id="one").messages > 0, "the log goes on where the archive was"
    streams.must_be_equal()


def test_a_replay_of_a_replay_keeps_the_first_time(streams: Streams) -> None:
    streams.fill(60)
    streams.run()
    second = Streams(streams.client, streams.tables, streams.source)
    second.source, second.target = streams.target, f"{streams.target}-2"
    second.run()
    second.must_be_equal()
    rows = second.rows(second.target, 0)
    assert [_first_time(row) for row in rows] == [_first_time(row) for row in streams.rows(streams.source, 0)]
    assert all([name for name, _ in row["headers"]].count("bascule-producer") == 1 for row in rows)


def test_messages_as_large_as_can_be_are_replayed(streams: Streams) -> None:
    streams.client.create_stream(streams.source, streams.source)
    for size in (700_000, 10, 900_000, 0):
        streams.client.publish(streams.source, b"x" * size, key=b"k")
    streams.run()
    streams.must_be_equal()


@pytest.mark.parametrize("way", ["key", "round-robin"])
def test_other_ways_to_choose_partitions_lose_nothing(streams: Streams, way: str) -> None:
    streams.fill(200, partitions=2)
    streams.run(way=way, partitions=3, id="w")
    streams.run(way=way, id="w")
    sent = {number: streams.sent(streams.target, number) for number in range(3)}
    everything = [one for number in (0, 1) for one in streams.sent(streams.source, number)]
    assert sorted(map(str, everything)) == sorted(map(str, [one for some in sent.values() for one in some]))
    assert all(sent.values())
    if way == "key":
        places = {
            key: {number for number, some in sent.items() for one in some if one[0] == key} for key in (b"k1", b"k2")
        }
        assert all(len(found) == 1 for found in places.values())
    for number in (0, 1):  # what comes from one partition and goes to one is in order
        mine = b"%d/" % number
        for some in sent.values():
            values = [int(one[1].split(b"/")[1]) for one in some if one[1] and one[1].startswith(mine)]
            assert values == sorted(values)


def test_a_part_by_offsets_or_times(streams: Streams, tmp_path: Path) -> None:
    streams.fill(100)
    rows = streams.rows(streams.source, 0)
    lake = archived(streams, tmp_path / "lake")
    cut = rows[60]["timestamp"]
    later = sum(row["timestamp"] >= cut for row in rows)
    for source in (streams.log(), lake):
        for options, count in (
            ({"start": 10, "end": 20}, 10),
            ({"start": 90}, len(rows) - 90),
            ({"start": cut}, later),
            ({"end": cut}, len(rows) - later),
            ({"start": datetime.now(UTC) + timedelta(days=1)}, 0),
        ):
            assert streams.run(source, **options).messages == count, options


def test_a_rate_is_kept(streams: Streams) -> None:
    streams.fill(300)
    for rate in (200.0, 1000.0):
        begun = time.monotonic()
        report = streams.run(rate=rate)
        seconds = time.monotonic() - begun
        assert report.messages / seconds <= rate * 1.1
        assert seconds < 60, "a busy machine may be late, not by so much"


# ── exactly once ─────────────────────────────────────────────────────────────────────────────────


class Killed(Exception):
    pass


@pytest.mark.parametrize("way", ["same", "key"])
@pytest.mark.parametrize("step", ["before", "sent", "stored"])
def test_a_death_between_any_two_pieces_doubles_and_loses_nothing(
    streams: Streams, step: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small chunks and pieces; some piece is not sent, or is sent and not waited for, or is stored and not noted."""
    monkeypatch.setattr(replay_trace, "CHUNK_OFFSETS", 16)
    monkeypatch.setattr(replay_module, "PIECE_ROWS_MAX", 5)
    streams.fill(40, partitions=2)
    publish = ColumnPublisher.publish
    runs = 0
    while True:
        calls = iter(range(1, 1_000))

        def dies(
            self: ColumnPublisher, *arguments: Any, _calls: Any = calls, _last: int = 3 + runs, **more: Any
        ) -> Any:
            is_last = next(_calls) > _last
            if is_last and step == "before":
                raise Killed
            future = publish(self, *arguments, **more)
            if is_last and step == "stored":
                future.result()
            if is_last:
                raise Killed
            return future

        with monkeypatch.context() as patch:
            patch.setattr(ColumnPublisher, "publish", dies)
            try:
                streams.run(id="again", way=way, partitions=2)
                break
            except Killed:
                runs += 1
        assert runs < 60
    assert runs > 4
    if way == "same":
        streams.must_be_equal()
    both = [
        sorted(str(one) for n in (0, 1) for one in streams.sent(name, n)) for name in (streams.source, streams.target)
    ]
    assert both[0] == both[1]


@pytest.mark.disturbs
def test_a_process_that_is_killed_goes_on_where_it_was(
    streams: Streams, serving: BrokerProcess, tmp_path: Path
) -> None:
    streams.fill(1_500, partitions=2)
    streams.client.create_stream(streams.target, streams.target, partitions=2)
    chance, deaths = random.Random(5), 0
    arguments = [
        "pipeline",
        "replay",
        streams.source,
        "--to",
        streams.target,
        "--id",
        "k",
        "--rate",
        "500",
        "--server",
        serving.address,
        "--timeout",
        "60s",
    ]
    environment = {**clean_environ(), "XDG_CONFIG_HOME": str(tmp_path)}
    for _ in range(40):
        before = _stored(streams)
        process = subprocess.Popen(
            [*COMMAND, *arguments], env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE
        )
        wanted = before + chance.randrange(1, 1000)
        while process.poll() is None and (_stored(streams) < wanted):
            time.sleep(0.005)
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            deaths += 1
        _, said = process.communicate()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, said
    assert process.returncode == 0
    assert deaths
    streams.must_be_equal()


def _stored(streams: Streams) -> int:
    ends = streams.tables.offsets([streams.target])[streams.target]["partitions"]
    return sum(one["high_watermark"] + 1 for one in ends.values())


def test_two_runs_of_one_replay_at_once_double_nothing(streams: Streams, serving: BrokerProcess) -> None:
    streams.fill(3_000)
    streams.client.create_stream(streams.target, streams.target)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            with (
                blocking.connect(serving.address) as client,
                FlightConnection(serving.address, timeout=PATIENCE_SECONDS) as tables,
            ):
                other = Streams(client, tables, "")
                other.source, other.target = streams.source, streams.target
                other.run(id="both")
        except BasculeError as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(failures) < 2
    streams.must_be_equal()


def test_other_publishers_of_the_target_do_not_matter(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_trace, "CHUNK_OFFSETS", 64)
    monkeypatch.setattr(replay_trace, "WINDOW_OFFSETS", 16)
    streams.fill(100)
    streams.client.create_stream(streams.target, streams.target)
    streams.run(id="mine", end=70)
    streams.client.publish_many(streams.target, [b"somebody else's"] * 200)
    report = streams.run(id="mine")
    assert (report.resumed, report.duplicates) == ({0: 64}, 6)
    mine = [one for one in streams.sent(streams.target, 0) if one[1] != b"somebody else's"]
    assert mine == streams.sent(streams.source, 0)


def test_a_source_that_is_not_what_it_was_is_not_hidden(streams: Streams) -> None:
    streams.fill(50)
    streams.run(id="changed", end=20)

    class Compacted(LogSource):
        def read(self, partition: int, start: int, end: int) -> Iterator[Any]:
            for batch in super().read(partition, start, end):
                yield batch.slice(1)

    with pytest.raises(RowsChanged, match="the source is not what it was when the replay `changed` began: offset 1 "):
        streams.run(Compacted(streams.tables, streams.source), id="changed")


# ── what is wrong ────────────────────────────────────────────────────────────────────────────────


def test_what_is_wrong_is_said_before_anything_is_sent(streams: Streams, tmp_path: Path) -> None:
    streams.fill(10, partitions=2)
    with pytest.raises(StreamNotFound, match=f"no stream `{streams.target}` to replay into"):
        streams.run(create=False)
    with pytest.raises(CallerError, match="into itself"):
        streams.run(target=streams.source)
    with pytest.raises(StreamNotFound):
        LogSource(streams.tables, "never-was")
    with pytest.raises(CallerError, match="has 1 partitions, the source has messages of partition 1"):
        streams.run(partitions=1)
    streams.run(way="key", id="x")
    with pytest.raises(CallerError, match="`x` was begun with another source or another `--partition`"):
        streams.run(way="round-robin", id="x")
    lake = archived(streams, tmp_path / "lake")
    with pytest.raises(StreamNotFound, match="has nothing of `other`"):
        ArchiveSource(tmp_path / "lake", "other")
    assert lake.spans(None, None)[1].end == 11


def test_offsets_that_are_gone_are_named(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    streams.fill(10)
    whole = FlightConnection.offsets

    def later(self: FlightConnection, *arguments: Any) -> Any:
        found = whole(self, *arguments)
        found[streams.source]["partitions"][0]["log_start"] = 5
        return found

    monkeypatch.setattr(FlightConnection, "offsets", later)
    with pytest.raises(OffsetBelowStart, match="begins at offset 5, 3 is gone"):
        streams.log().spans(3, None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"id": "a b"}, "`id` is `a b`"),
        ({"id": "x" * 33}, "`id` is"),
        ({"way": "any"}, "`way` is `any`"),
        ({"rate": 0.0}, "`rate` is 0"),
        ({"partitions": 0}, "`partitions` is 0"),
        ({"start": 5, "end": 4}, "`start` is 5, behind `end`, 4"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
def test_an_option_with_a_wrong_value_is_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        ReplayOptions(target="t", **options)


def test_the_command_line_replays(streams: Streams, serving: BrokerProcess, tmp_path: Path) -> None:
    streams.fill(30)
    archived(streams, tmp_path / "lake")

    def run(*arguments: str) -> Any:
        server = ("--server", serving.address, "--timeout", "60s")
        return run_command("pipeline", "replay", *arguments, *server, home=tmp_path)

    done = run(str(tmp_path / "lake"), "--to", streams.target, "--create", "--id", "a", "--json")
    assert (done.code, done.json["messages"], done.json["duplicates"]) == (0, 31, 0), done
    done = run(streams.source, "--to", streams.target, "--id", "a")
    assert (done.code, done.out.split(";")[0]) == (
        0,
        f"Replayed 31 messages of {streams.source} to {streams.target}, 31 of them from an earlier run",
    ), done
    streams.must_be_equal()
    run(streams.source, "--to", "nowhere").failed(3, "nowhere", "--create")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--between", "soon", "latest"), "soon"),
        (("--between", "latest", "latest"), "earliest"),
        (("--between", "earliest", "earliest"), "latest"),
        (("--between", "9", "3"), "behind"),
        (("--partition", "any"), "round-robin"),
        (("--rate", "0"), "`rate` is 0"),
        (("--id", "a b"), "`id` is `a b`"),
        (("--stream", "x"), "`--stream` is `x`"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_the_command_line_names_what_is_wrong(serving: BrokerProcess, given: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(app, ["pipeline", "replay", "orders", "--to", "t", "--server", serving.address, *given])
    assert isinstance(done.exception, InvalidOption)
    assert said in str(done.exception)
