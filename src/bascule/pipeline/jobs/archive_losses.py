"""The offsets of a batch that were removed before they could be archived, in a job with `onDataLoss=skip`. Reads files, changes none.

Tasks of the archive's own query report what they could not read. Rows that come through Spark have no such report: the planned offsets
are compared with the written ones, and those missing below the start of the log are lost. Holes that compaction had left there are
counted too, because they cannot be told apart any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import pairwise

from bascule.lake import holes
from bascule.lake.delta.place import LakePlace
from bascule.lake.facts import DELETED, REMOVED, Began, Covered, DataFile, Lost, PartitionId
from bascule.lake.files import UNKNOWN_ID
from bascule.lake.ranges import read_rows
from bascule.pipeline.jobs.archive_ranges import Plan
from bascule.spark.read.state import StreamState

Floors = Mapping[tuple[str, int], int]
"""The next offset of each partition that the archive has."""

Logs = Callable[[Collection[str]], Mapping[str, StreamState]]
"""Streams as brokers have them now, those of the names that are there."""


def not_read(
    place: LakePlace, plan: Plan, floors: Floors, files: Collection[DataFile], ids: Mapping[str, int], logs: Logs
) -> Iterator[Lost]:
    """What was planned, is in no file, and cannot be read any more. Brokers are asked only if something is missing."""
    missing = {key: found for key in plan if (found := _Missing(plan, floors, key, files))}
    there = logs({stream for stream, _ in missing}) if missing else {}
    for (stream, number), found in missing.items():
        log = there.get(stream)
        is_gone = log is None or log.id != ids.get(stream, log.id)
        limit = found.end if is_gone or log is None else log.partitions[number].log_start_offset
        for start, end in found.below(place, limit):
            yield Lost(stream, UNKNOWN_ID, number, start, end, DELETED if is_gone else REMOVED, at_ns=0)


class _Missing:
    """Offsets of a partition that were planned and are in no file: between the files, and inside of those that are not dense."""

    def __init__(self, plan: Plan, floors: Floors, key: tuple[str, int], files: Collection[DataFile]) -> None:
        mine = [one for one in files if (one.stream, one.partition) == key]
        self.start, self.end = max(plan[key].start, floors.get(key, 0)), plan[key].end
        self._between = holes.without(self.start, self.end, ((one.first_offset, one.last_offset + 1) for one in mine))
        self._sparse = [one for one in mine if one.rows < one.last_offset + 1 - one.first_offset]

    def __bool__(self) -> bool:
        return bool(self._between or self._sparse)

    def below(self, place: LakePlace, limit: int) -> list[holes.Span]:
        inside = [hole for one in self._sparse if one.first_offset < limit for hole in _holes_in(place, one)]
        return holes.within(self.start, min(self.end, limit), [*self._between, *inside])


def _holes_in(place: LakePlace, one: DataFile) -> Iterator[holes.Span]:
    position = one.first_offset
    for following, batch in read_rows(place, one, one.first_offset, one.last_offset + 1, ("offset",)):
        offsets = [position - 1, *batch["offset"].to_pylist()]
        yield from ((before + 1, after) for before, after in pairwise(offsets) if after > before + 1)
        position = following


# ── what a commit says ───────────────────────────────────────────────────────────────────────────


def covered_by(files: Collection[DataFile], lost: Collection[Lost]) -> tuple[Covered, ...]:
    """Of each partition one range that has all of these."""
    found: dict[PartitionId, list[int]] = {}
    spans = [((one.stream, one.stream_id, one.partition), one.first_offset, one.last_offset + 1) for one in files]
    spans += [((one.stream, one.stream_id, one.partition), one.start, one.end) for one in lost]
    for key, start, end in spans:
        ends = found.setdefault(key, [start, end])
        ends[0], ends[1] = min(ends[0], start), max(ends[1], end)
    return tuple(Covered(*key, start, end) for key, (start, end) in sorted(found.items()))


def begun_by(covered: Collection[Covered], plan: Plan, known: Collection[PartitionId]) -> tuple[Began, ...]:
    """Where partitions begin that come for the first time. Nothing where no note says what was planned."""
    return tuple(
        Began(one.stream, one.stream_id, one.partition, plan[one.stream, one.partition].start)
        for one in covered
        if (one.stream, one.stream_id, one.partition) not in known and (one.stream, one.partition) in plan
    )
