"""The parts of a page of metrics that grow: bounded, in an order that stays, and in turns that leave the loop to others."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from bascule import limits
from bascule.broker.metrics import cluster, cursors, partitions
from bascule.broker.metrics.catalogue import METRICS
from bascule.broker.metrics.cursors import CursorLags, Known
from bascule.broker.metrics.exposition import Page
from bascule.log import PartitionLog, new_batch
from bascule.log.partition.backlog import Backlog, backlog
from bascule.metadata.core.model.groups import ConsumerGroup, GroupMember
from bascule.metadata.core.model.ops import BrokerPlace, CreateStream
from bascule.metadata.core.model.refusal import Refusal
from bascule.metadata.core.model.streams import Stream
from bascule.metadata.core.state import ClusterMetadata
from bascule.metadata.stream_options import settings_of
from bascule.partition.replica import LedPartition
from bascule.readers.pace import Pace
from tests.support.prometheus_text import Samples, parse


class Simple:
    """Whatever it is given."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__ |= fields


def services_of(streams: dict[str, int], log: PartitionLog) -> Any:
    """Led by `me`, all with the same log: enough for whoever only looks."""
    metadata = ClusterMetadata()
    for index, (name, count) in enumerate(streams.items(), 1):
        op = CreateStream(
            name=name,
            subject=name,
            partitions=count,
            replication_factor=1,
            brokers=(BrokerPlace("me", ""),),
            created_ns=1,
            config={},
        )
        assert not isinstance(metadata.apply(index, op), Refusal)
    running = {
        (stream.name, number): _led(stream, number, log)
        for stream in metadata.streams.values()
        for number in range(len(stream.partitions))
    }
    return Simple(
        controller=Simple(
            server_id="me",
            metadata=metadata,
            leader="me",
            is_leader=True,
            members=["me", "other"],
            driver=Simple(
                node=Simple(
                    term=3, commit_index=9, last_index=9, membership=Simple(voters=["me", "other"], learners=[])
                )
            ),
        ),
        partitions=_Running(running),
    )


class _Running(dict[tuple[str, int], Any]):
    failing_count = 0

    def __iter__(self) -> Any:
        return iter(list(self.values()))

    def led(self, stream: str, number: int) -> Any:
        return self.get((stream, number))


def _led(stream: Stream, number: int, log: PartitionLog) -> LedPartition:
    sink: Any = Simple(received=7, refused=1, duplicates=2, lost=0, dropping=False)
    nothing: Any = lambda *_: Simple(begin=lambda: None, core=Simple(followers={}))  # noqa: E731
    local = LedPartition(
        stream, stream.partitions[number], settings_of(stream), lambda _settings: log, sink, nothing, nothing
    )
    _ = local.log
    return local


@pytest.fixture
def log(tmp_path: Path) -> Any:
    made = PartitionLog(str(tmp_path / "log"))
    batch = new_batch()
    for number in range(5):
        batch.add(None, b"%d" % number)
    made.append(batch)
    made.advance_high_watermark(4)
    yield made
    made.close()


def written(page: Page) -> Samples:
    return parse(b"".join(page.pieces()))


def test_partitions_that_do_not_fit_are_counted_and_the_same_ones_stay(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "METRICS_PARTITIONS_MAX", 4)
    services = services_of({"z": 2, "a": 5}, log)
    for _ in range(2):
        page = Page(METRICS)
        assert asyncio.run(partitions.collect(page, services.partitions, services.controller.metadata, Pace())) == 3
        found = written(page)
        assert found.value("bascule_partitions", role="leader") == 7
        shown = found.find("bascule_partition_records")
        assert {(dict(one)["stream"], dict(one)["partition"]) for one in shown} == {("a", str(n)) for n in range(4)}
        assert found.value("bascule_partition_messages_duplicate_total", stream="a", partition=0) == 2


def test_cursors_and_groups_that_do_not_fit_are_counted(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METRICS_CURSORS_MAX", 3)
    monkeypatch.setattr(limits, "METRICS_GROUPS_MAX", 2)
    services = services_of({"s": 2}, log)
    known = Known({("s", 0): {"b": 1, "a": 0}, ("s", 1): {"c": 2, "d": 3}, ("gone", 0): {"e": 1}}, left_out=10)
    page = Page(METRICS)
    assert asyncio.run(CursorLags().collect(page, services.partitions, known, Pace())) == 11
    found = written(page)
    assert {dict(one)["cursor"] for one in found.find("bascule_cursor_lag_offsets")} == {"a", "b", "c"}
    for name in ("g1", "g2", "g3"):
        group = ConsumerGroup(name, "me", 1, {"m": GroupMember("m", ["s"])})
        services.controller.metadata.groups[name] = group
    services.controller.metadata.groups["elsewhere"] = ConsumerGroup("elsewhere", "other", 1)
    page = Page(METRICS)
    assert asyncio.run(cluster.collect(page, services.controller, {"me"}, Pace())) == 1
    found = written(page)
    assert found.value("bascule_groups") == 3
    assert len(found.find("bascule_group_members")) == 2
    assert found.value("bascule_cluster_servers", state="silent") == 1


def test_thousands_of_partitions_leave_the_loop_to_others(log: PartitionLog) -> None:
    """With turns of no length: it asks at least every twenty partitions, 1 ms of work, whether it is the others' turn."""
    services = services_of({"s": 3_000}, log)

    async def run() -> int:
        turns = 0
        over = False

        async def others() -> None:
            nonlocal turns
            while not over:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(others())
        await partitions.collect(Page(METRICS), services.partitions, services.controller.metadata, Pace(0.0))
        over = True
        await other
        return turns

    assert asyncio.run(run()) >= 150


class Clocks:
    """Those that a pace looks at; they go when they are told to."""

    def __init__(self) -> None:
        self.wall = self.cpu = 100.0

    def perf_counter(self) -> float:
        return self.wall

    def thread_time(self) -> float:
        return self.cpu


def test_a_turn_ends_when_it_was_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks()
    monkeypatch.setattr("bascule.readers.pace.time", clocks)

    async def run() -> None:
        pace = Pace(0.25)
        for wall, cpu, seen in (
            (0.125, 0.125, 0.0),
            (0.125, 0.0625, 0.1875),
            (0.25, 0.125, 0.3125),
            (0.125, 0.125, 0.3125),
        ):
            clocks.wall += wall
            clocks.cpu += cpu
            await pace.rest()
            assert pace.cpu_seconds == seen
        pace.end()
        assert (pace.cpu_seconds, pace.turn_seconds_max) == (0.4375, 0.1875)

    asyncio.run(run())


def test_a_reader_that_stands_still_costs_no_second_look(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    services = services_of({"s": 1}, log)
    looked: list[int] = []

    def look(log: PartitionLog, offset: int, end_offset: int) -> Backlog | None:
        looked.append(offset)
        return backlog(log, offset, end_offset)

    monkeypatch.setattr(cursors, "backlog", look)
    lags = CursorLags()

    def collect(offset: int) -> Samples:
        page = Page(METRICS)
        asyncio.run(lags.collect(page, services.partitions, Known({("s", 0): {"c": offset}}), Pace()))
        return written(page)

    place = {"cursor": "c", "stream": "s", "partition": 0}
    first, second = collect(1), collect(1)
    assert looked == [2]
    assert first.value("bascule_cursor_lag_bytes", **place) == second.value("bascule_cursor_lag_bytes", **place) > 0
    assert second.value("bascule_cursor_lag_seconds", **place) >= first.value("bascule_cursor_lag_seconds", **place)
    collect(2)
    assert looked == [2, 3]
    assert collect(4).value("bascule_cursor_lag_seconds", **place) == 0
    assert looked == [2, 3]


def test_the_guide_names_metrics_that_exist() -> None:
    guide = Path(__file__).resolve().parents[3] / "docs" / "guides" / "monitoring.md"
    named = set(re.findall(r"\b(?:bascule|process)_[a-z_]+[a-z]\b", guide.read_text("utf-8")))
    assert len(named) > 10
    assert named - {name for metric in METRICS for name in (metric.name, *metric.series)} == set()
