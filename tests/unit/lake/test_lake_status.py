"""How far an archive is, said of brokers that answer in every way they can."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")

from bascule.errors import OffsetBelowStart, StreamNotFound  # noqa: E402
from bascule.lake.facts import ArchiveState  # noqa: E402
from bascule.lake.status import PROBES_MAX, archive_status  # noqa: E402


class Brokers:
    def __init__(self, partitions: dict[int, tuple[int, int]], stream_id: int = 7, ages: Any = ()) -> None:
        self.partitions = partitions
        self.stream_id = stream_id
        self.ages = dict(ages)
        self.probes: list[tuple[int, int]] = []
        self.questions = 0

    def offsets(self, streams: list[str]) -> dict[str, Any]:
        self.questions += 1
        if set(streams) - {"orders"}:
            raise StreamNotFound("no")
        ends = {
            number: {"log_start": start, "high_watermark": watermark, "log_end": watermark + 1, "size_bytes": 1000}
            for number, (start, watermark) in self.partitions.items()
        }
        return {"orders": {"id": self.stream_id, "subject": "orders", "partitions": ends}}

    def read(self, _stream: str, partition: int, start: int, *_: Any, **__: Any) -> Iterator[Any]:
        self.probes.append((partition, start))
        age = self.ages.get(partition)
        if age == "gone":
            raise OffsetBelowStart("gone")
        if age is not None:
            moment = pa.array([int((time.time() - age) * 1e6)], pa.timestamp("us", "UTC"))
            yield pa.RecordBatch.from_arrays([moment], ["timestamp"])


def state(**ends: int) -> ArchiveState:
    return ArchiveState(3, {}, {("orders", 7, int(name[1:])): end for name, end in ends.items()}, 10**18)


def test_the_lag_is_of_all_partitions_and_the_oldest_message() -> None:
    brokers = Brokers({0: (0, 99), 1: (0, 49)}, ages={0: 30.0, 1: 90.0})
    found = archive_status(state(p0=80, p1=40), brokers)  # type: ignore[arg-type]
    assert (found["lag"]["offsets"], found["lag"]["bytes"]) == (30, 200 + 200)
    assert 90 <= found["lag"]["seconds"] < 300
    assert brokers.probes == [(0, 80), (1, 40)]


def test_nothing_is_asked_of_what_is_not_behind() -> None:
    brokers = Brokers({0: (0, 99)})
    found = archive_status(state(p0=100), brokers)  # type: ignore[arg-type]
    assert found["lag"] == {"offsets": 0, "bytes": 0, "seconds": 0.0}
    assert brokers.probes == []


def test_a_partition_that_has_nothing_here_yet_is_behind_by_all_of_its_log() -> None:
    found = archive_status(state(p0=10), Brokers({0: (0, 9), 1: (5, 9)}))  # type: ignore[arg-type]
    assert [(one["partition"], one["next_offset"], one["behind"], one["lost"]) for one in found["partitions"]] == [
        (0, 10, 0, 0),
        (1, 0, 5, 0),
    ]
    fresh = archive_status(ArchiveState(), Brokers({0: (0, 9)}), ["orders"])  # type: ignore[arg-type]
    assert (fresh["lag"]["offsets"], fresh["last_commit"]) == (10, None)


def test_what_was_removed_before_it_was_archived_is_said() -> None:
    found = archive_status(state(p0=10), Brokers({0: (25, 99)}, ages={0: "gone"}))  # type: ignore[arg-type]
    (one,) = found["partitions"]
    assert (one["lost"], one["behind"], one["behind_seconds"]) == (15, 75, None)
    assert one["problem"] == "15 offsets were removed before they were archived"


def test_a_stream_that_is_gone_or_another_is_said() -> None:
    (one,) = archive_status(state(p0=10), Brokers({0: (0, 3)}, stream_id=8))["partitions"][:1]  # type: ignore[arg-type]
    assert (one["behind"], one["problem"]) == (None, "the stream was deleted and created again")
    gone = ArchiveState(1, {}, {("gone", 1, 0): 5}, 1)
    (one,) = archive_status(gone, Brokers({}))["partitions"]  # type: ignore[arg-type]
    assert one["problem"] == "the stream does not exist any more"


def test_so_many_questions_and_no_more() -> None:
    brokers = Brokers(dict.fromkeys(range(PROBES_MAX + 5), (0, 9)), ages={0: 5.0})
    found = archive_status(state(p0=0), brokers)  # type: ignore[arg-type]
    assert len(brokers.probes) == PROBES_MAX
    assert found["lag"]["offsets"] == 10 * (PROBES_MAX + 5)


def test_streams_that_are_gone_cost_few_questions() -> None:
    ends = {(f"gone-{number:02d}", 1, 0): 5 for number in range(3)} | {("orders", 7, 0): 10}
    brokers = Brokers({0: (0, 19)})
    found = archive_status(ArchiveState(1, {}, ends, 1), brokers)  # type: ignore[arg-type]
    assert [one["problem"] for one in found["partitions"]] == ["the stream does not exist any more"] * 3 + [None]
    assert brokers.questions <= 7
    assert found["lag"]["offsets"] == 10
