"""Archive and log as one stream for clients without Spark: subscriptions, tables and the command line."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import bascule
from bascule import blocking
from bascule.client.arrow.reader import FlightConnection
from bascule.client.blocking import BlockingClient
from bascule.client.messages import Message
from bascule.errors import ArchiveUnreachable, DataLost, InvalidOption, StreamNotFound, StreamRecreated
from bascule.history.past import Past
from tests.support.archives import archive_rows, compact
from tests.support.broker_fixtures import unique_name
from tests.support.broker_process import BrokerProcess
from tests.support.tables import tables, tables_broker
from tests.support.waiting import eventually

__all__ = ["tables", "tables_broker"]

SHORT = {"retention_max_messages": 100, "segment_max_bytes": 1, "cleaner_interval": 0.05}


@pytest.fixture(scope="module")
def client(tables_broker: BrokerProcess) -> Iterator[BlockingClient]:
    with blocking.connect(tables_broker.address) as found:
        yield found


class Lake:
    """A stream of two partitions, of which the archive has the beginning and the log the end."""

    def __init__(self, client: BlockingClient, tables: FlightConnection, path: Path, servers: str, **options: Any):
        self.client, self.tables, self.path, self.servers = client, tables, path, servers
        self.stream = unique_name("history")
        self.archived = {0: 0, 1: 0}
        client.create_stream(self.stream, f"subject.{self.stream}", partitions=2, **options)

    def publish(self, first: int, end: int) -> None:
        for number in self.archived:
            for start in range(first, end, 20):
                rows = [f"{number}/{offset}".encode() for offset in range(start, min(end, start + 20))]
                self.client.publish_many(self.stream, rows, partition=number, ack="all")

    def archive(self, *partitions: int) -> None:
        found = self.tables.offsets([self.stream])[self.stream]
        for number in partitions or self.archived:
            start, end = self.archived[number], found["partitions"][number]["high_watermark"] + 1
            archive_rows(self.path, found["id"], self.tables.read(self.stream, number, start, end))
            self.archived[number] = end

    def wait_for_retention(self, start: int) -> None:
        def log_starts() -> set[int]:
            partitions = self.tables.offsets([self.stream])[self.stream]["partitions"].values()
            return {int(one["log_start"]) for one in partitions}

        eventually(lambda: log_starts() == {start}, f"retention removed what is below {start}")

    def messages(self, *, stop: Any = "latest", **options: Any) -> dict[int, list[Message]]:
        found: dict[int, list[Message]] = {0: [], 1: []}
        with self.client.subscribe(self.stream, stop=stop, history=self.path, **options) as subscription:
            for message in subscription:
                found[message.partition].append(message)
        return found

    def offsets(self, **options: Any) -> dict[int, list[int]]:
        return {number: [one.offset for one in found] for number, found in self.messages(**options).items()}

    def table(self, **options: Any) -> list[tuple[int, int]]:
        rows = bascule.read_table(self.stream, servers=self.servers, history=self.path, **options)
        return list(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))


@pytest.fixture
def make_lake(
    client: BlockingClient, tables: FlightConnection, tables_broker: BrokerProcess, tmp_path: Path
) -> Callable[..., Lake]:
    def make(**options: Any) -> Lake:
        return Lake(client, tables, tmp_path / "lake", tables_broker.address, **options)

    return make


@pytest.fixture
def lake(make_lake: Callable[..., Lake]) -> Lake:
    """Offsets 0 to 99 of both partitions are archived; the log has 80 to 179."""
    found = make_lake(**SHORT)
    found.publish(0, 100)
    found.archive()
    found.publish(100, 180)
    found.wait_for_retention(80)
    return found


def both(*offsets: int) -> dict[int, list[int]]:
    return {0: list(offsets), 1: list(offsets)}


def rows(*offsets: int) -> list[tuple[int, int]]:
    return [(number, offset) for number in (0, 1) for offset in offsets]


def test_a_message_of_the_archive_is_the_message_of_the_log(make_lake: Callable[..., Lake]) -> None:
    lake = make_lake()
    lake.client.publish(lake.stream, b"", key=b"k", headers={"a": b"1", "b": b"\xff\x00"}, partition=0)
    lake.client.publish(lake.stream, None, key=b"k", partition=0)
    lake.client.publish(lake.stream, b"\x00" * 3, partition=1)
    with lake.client.subscribe(lake.stream, stop="latest") as subscription:
        expected = sorted(subscription, key=lambda one: (one.partition, one.offset))
    lake.archive()
    found = [one for number in (0, 1) for one in lake.messages()[number]]

    def told(one: Message) -> tuple[Any, ...]:
        at = one.timestamp // 1000
        return one.offset, one.key, one.value, at, one.stream, one.partition, one.subject, one.reply, one.headers

    assert [told(one) for one in found] == [told(one) for one in expected]
    assert [one.value for one in found] == [b"", None, b"\x00" * 3]


def test_subscriptions_and_tables_read_the_archive_and_then_the_log(lake: Lake) -> None:
    assert lake.offsets() == both(*range(180)) and lake.table() == rows(*range(180))
    assert lake.offsets(start=95, stop=105) == both(*range(95, 106))
    assert lake.offsets(start=10, stop=20) == both(*range(10, 21)) and lake.offsets(stop=0) == both(0)
    assert lake.offsets(start=150) == both(*range(150, 180)) and lake.offsets(start="latest") == both(179)
    assert lake.table(start=95, end=105) == rows(*range(95, 105))
    assert lake.table(start={0: 170}, end={0: 175, 1: 3}) == [(0, n) for n in range(170, 175)] + [
        (1, n) for n in range(3)
    ]
    assert lake.table(partitions=[1], columns=["offset", "partition"]) == [(1, n) for n in range(180)]
    moments = {one.offset: one.timestamp for one in lake.messages()[0]}
    middle = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=moments[45] // 1000)
    since = [offset for offset in range(180) if moments[offset] // 1000 >= moments[45] // 1000]
    assert lake.offsets(start=middle, partition=0)[0] == since and lake.table(start=middle, partitions=[0]) == [
        (0, offset) for offset in since
    ]
    until = [offset for offset in range(180) if moments[offset] <= moments[45] // 1000 * 1000]
    assert lake.offsets(stop=middle, partition=0)[0] == until
    one = lake.client.subscribe(lake.stream, partition=1, start=40, history=lake.path)
    with one:
        assert next(one).offset == 40
        one.seek(99)
        assert [next(one).offset for _ in range(3)] == [99, 100, 101]
        lake.publish(180, 181)
        assert [next(one).offset for _ in range(79)][-1] == 180, "and new messages as they come"


def test_memory_is_bounded_while_nobody_takes_messages(make_lake: Callable[..., Lake]) -> None:
    lake = make_lake()
    for _ in range(12):
        lake.client.publish_many(lake.stream, [b"x" * 100_000] * 20, partition=0, ack="all")
    lake.archive(0)
    with lake.client.subscribe(lake.stream, partition=0, stop="latest", history=lake.path) as subscription:
        reader: Any = subscription._part._readers[0]
        eventually(lambda: bool(reader._left), "the first batch is there")
        held, seen = [], 0
        for message in subscription:
            seen += 1
            held.append(sum(one.nbytes for one in list(reader._left)))
            assert message.value is not None
        assert seen == 240 and max(held) < 20 << 20


def test_what_retention_takes_between_archive_and_log_is_read_from_the_archive(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While an archive of years is read, the log loses what was archived meanwhile."""
    usual, done = Past.read, threading.Event()

    def read(self: Past, *arguments: Any) -> Iterator[Any]:
        yield from usual(self, *arguments)
        if not done.is_set():
            done.set()
            lake.archive()
            compact(lake.path)
            lake.publish(180, 240)
            lake.wait_for_retention(140)

    monkeypatch.setattr(Past, "read", read)
    with lake.client.subscribe(lake.stream, stop=239, partition=0, history=lake.path) as subscription:
        assert [one.offset for one in subscription] == list(range(240))
    assert done.is_set()


def test_losses_are_errors_that_name_them_or_are_skipped(lake: Lake) -> None:
    lake.publish(180, 240)
    lake.wait_for_retention(140)
    with pytest.raises(DataLost, match="offsets 100 to 139 are neither in its log") as caught:
        lake.offsets()
    assert "`on_data_loss` to `skip`" in (caught.value.hint or "")
    with pytest.raises(DataLost, match="offsets 100 to 139"):
        lake.table()
    expected = (*range(100), *range(140, 240))
    assert lake.offsets(on_data_loss="skip") == both(*expected)
    assert lake.table(on_data_loss="skip") == rows(*expected)


def test_a_loss_at_the_seam_ends_the_subscription_before_a_later_message(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = Past.read

    def read(self: Past, *arguments: Any) -> Iterator[Any]:
        yield from usual(self, *arguments)
        lake.publish(180, 240)
        lake.wait_for_retention(140)

    monkeypatch.setattr(Past, "read", read)
    seen = []
    subscription = lake.client.subscribe(lake.stream, partition=0, history=lake.path)
    with pytest.raises(DataLost, match="offsets 100 to 139"), subscription:
        seen += [one.offset for one in iter(subscription)]
    assert seen == [] or seen == list(range(100))


def test_other_streams_and_wrong_options_are_refused_by_name(lake: Lake, tmp_path: Path) -> None:
    other = unique_name("other")
    lake.client.create_stream(other, f"subject.{other}")

    def read(**options: Any) -> None:
        chosen = {"history": lake.path, **options}
        stream = chosen.pop("stream", lake.stream)
        with lake.client.subscribe(stream, stop="latest", **chosen) as subscription:
            list(subscription)

    with pytest.raises(InvalidOption, match=f"which is an archive of `{lake.stream}`, not of `{other}`"):
        read(stream=other)
    with pytest.raises(ArchiveUnreachable, match="there is no archive in"):
        read(history=tmp_path / "nothing")
    with pytest.raises(InvalidOption, match="`on_data_loss` is 'forget'"):
        read(on_data_loss="forget")
    with pytest.raises(InvalidOption, match="`reverse` is set, and `history`"):
        read(reverse=True)
    with pytest.raises(InvalidOption, match=r"option `history` is `ftp://x/y`"):
        read(history="ftp://x/y")
    lake.client.delete_stream(lake.stream)
    assert lake.table(on_data_loss="archive") == rows(*range(100)), "a deleted stream ends with its archive"
    with pytest.raises(StreamNotFound):
        lake.table()
    lake.client.create_stream(lake.stream, f"subject.{lake.stream}", partitions=2)
    with pytest.raises(StreamRecreated, match="is of a former stream"):
        read()


def test_every_read_is_whole_while_an_archive_is_written_and_compacted(make_lake: Callable[..., Lake]) -> None:
    lake = make_lake()
    lake.publish(0, 20)
    lake.archive()
    ended, end, failed = threading.Event(), [20], list[BaseException]()

    def write() -> None:
        try:
            while not ended.is_set():
                lake.publish(end[0], end[0] + 20)
                end[0] += 20
                lake.archive()
                if end[0] % 60 == 0:
                    compact(lake.path)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(8):
            for found in lake.offsets().values():
                assert found == list(range(len(found))) and len(found) >= 20
            table = lake.table()
            for number in (0, 1):
                mine = [offset for part, offset in table if part == number]
                assert mine == list(range(len(mine)))
    finally:
        ended.set()
        thread.join()
    assert not failed and lake.offsets() == both(*range(end[0]))


def test_asyncio_clients_and_the_command_line_read_history_too(lake: Lake) -> None:
    async def read() -> list[int]:
        async with bascule.connect(lake.servers) as client:
            subscription = client.subscribe(lake.stream, partition=0, stop="latest", history=str(lake.path))
            return [message.offset async for message in subscription]

    assert asyncio.run(read()) == list(range(180))

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "bascule.cli.main", "subscribe", lake.stream, "-s", lake.servers, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    found = run("--history", str(lake.path), "-e", "-p", "1", "--template", r"{offset}\n")
    assert [int(line) for line in found.stdout.split()] == list(range(180)), found.stderr
    assert "`--on-data-loss` is given without `--history`" in run("--on-data-loss", "skip").stderr
    assert "`--reverse` and `--history`" in run("--history", "x", "--reverse").stderr
