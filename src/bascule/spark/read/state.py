"""Streams as brokers report them, with what an archive has of each partition; and which offsets are read from where. Pure.

An archive has the offsets `start` to before `end`, except those that were lost before they could be archived; a log has those from its
start to its end. Where both have an offset, it is the same row.

- Offsets that the archive has are read from the archive: brokers have no work with them.
- Other offsets are read from the log: those after the archive's end, and those before its start if the archive was begun late.
- Offsets that neither has are missing. `missing` returns them, `resume` the first offset after them that can be read.

    log      ................[log start ═══════════════════ end)
    archive  [start ══════════════════ end)
    read     [archive ───────────────────)[log ────────────)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from typing import Final, NamedTuple

from bascule.config.values.duration import format_duration
from bascule.config.values.size import format_size
from bascule.errors import DataLost
from bascule.lake.coverage import Coverage
from bascule.lake.holes import count
from bascule.spark.read.plan import Backlog, OffsetRange, Pieces

FILES_WEIGHED_MAX: Final = 64
"""Archived files of a backlog that are weighed one by one; the files after them share one average."""

HINT_SKIP: Final = "to continue without them set `onDataLoss` to `skip`"


def weight(size_bytes: int, offsets: int) -> Fraction:
    """Bytes of one offset, rounded up to a multiple of 1/1024: fractions with one denominator are added up fast."""
    return Fraction(-(-size_bytes * 1024 // offsets), 1024) if offsets > 0 else Fraction(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """A partition as its leader reports it."""

    log_start_offset: int
    end_offset: int
    """The offset after the last committed record: reads end here."""

    log_end_offset: int
    size_bytes: int
    last_timestamp_ns: int | None = None
    archived: Coverage | None = None
    """The offsets that an archive has of it, if one is read too."""

    @property
    def first_offset(self) -> int:
        """The oldest offset that can be read, from the log or from the archive."""
        start = self.log_start_offset
        return start if self.archived is None else min(start, self.archived.start)

    @property
    def bytes_per_offset(self) -> Fraction:
        """The average of the log."""
        return weight(self.size_bytes, self.log_end_offset - self.log_start_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """A stream and its partitions."""

    name: str
    id: int
    subject: str
    partitions: Mapping[int, PartitionState]
    retention: Mapping[str, int] = field(default_factory=dict)
    """`max_age_ns`, `max_bytes` and `max_messages` that the stream keeps; 0 for no limit."""

    archive: str = ""
    """The folder of the archive that is read too; "" for none."""

    is_live: bool = True
    """False for a stream that is deleted and read from its archive alone."""

    def only(self, numbers: tuple[int, ...]) -> StreamState:
        """The stream with these partitions alone."""
        return replace(self, partitions={number: self.partitions[number] for number in numbers})


Streams = Mapping[str, StreamState]


# ── archive and log ──────────────────────────────────────────────────────────────────────────────


class ReadPart(NamedTuple):
    """Offsets that are read from one place."""

    start: int
    end: int
    is_archived: bool


def joined(state: PartitionState, coverage: Coverage | None) -> PartitionState:
    """A partition with what the archive has of it.

    The archive got its rows from below the high watermark. They can be read even if a new leader does not know that watermark yet.
    """
    if coverage is None:
        return replace(state, archived=None)
    end = max(state.end_offset, min(coverage.end, state.log_end_offset))
    return clipped(replace(state, end_offset=end), coverage)


def clipped(state: PartitionState, coverage: Coverage | None) -> PartitionState:
    """A partition with what the archive has of it before the partition's end, which does not move."""
    return replace(state, archived=None if coverage is None else coverage.within(coverage.start, state.end_offset))


def parts(state: PartitionState, start: int, end: int) -> list[ReadPart]:
    """The places that the offsets of a range are read from, in order. Missing offsets are in none of them."""
    found: list[ReadPart] = []
    position = start
    for first, following in [] if state.archived is None else state.archived.held(start, end):
        found.append(ReadPart(max(position, state.log_start_offset), first, is_archived=False))
        found.append(ReadPart(first, following, is_archived=True))
        position = following
    found.append(ReadPart(max(position, state.log_start_offset), end, is_archived=False))
    return [part for part in found if part.start < part.end]


def missing(state: PartitionState, start: int, end: int) -> tuple[int, int] | None:
    """The first offsets of a range that neither the log nor the archive has; None if all are there."""
    position = start
    for part in parts(state, start, end):
        if part.start > position:
            return position, part.start
        position = part.end
    return (position, end) if position < end else None


def resume(state: PartitionState, position: int) -> int:
    """The first offset from `position` on that the log or the archive has or will have."""
    if position >= state.log_start_offset:
        return position
    held = [] if state.archived is None else state.archived.held(position, state.log_start_offset)
    return held[0][0] if held else state.log_start_offset


def file_ranges(archived: Coverage, bytes_max: int) -> list[tuple[int, int]]:
    """An archived range, cut at the borders of files into ranges of at most `bytes_max`, or of one file that is larger."""
    cuts: list[int] = []
    size = 0
    for one in archived.files:
        size += one.bytes
        if size > bytes_max and one.first_offset > max([archived.start, *cuts[-1:]]):
            cuts.append(one.first_offset)
            size = one.bytes
    bounds = [archived.start, *cuts, archived.end]
    return list(pairwise(bounds))


# ── bytes ────────────────────────────────────────────────────────────────────────────────────────


def weighed(state: PartitionState, start: int, end: int) -> Backlog:
    """A range with the bytes of its offsets: the log's average, each archived file's own; missing offsets have none."""
    if state.archived is None or start >= end:
        return OffsetRange(start, max(start, end), state.bytes_per_offset)
    found: list[OffsetRange] = []
    for each in _weighed_parts(state, state.archived, start, end):
        position = found[-1].end if found else start
        if position < each.start:
            found.append(OffsetRange(position, each.start))
        found.append(each)
    position = found[-1].end if found else start
    if position < end:
        found.append(OffsetRange(position, end))
    return found[0] if len(found) == 1 else Pieces(tuple(found))


def _weighed_parts(state: PartitionState, archived: Coverage, start: int, end: int) -> Iterator[OffsetRange]:
    for part in parts(state, start, end):
        if part.is_archived:
            yield from _weighed_files(archived, part.start, part.end)
        else:
            yield OffsetRange(part.start, part.end, state.bytes_per_offset)


def _weighed_files(archived: Coverage, start: int, end: int) -> Iterator[OffsetRange]:
    files = archived.files_in(start, end)
    position = start
    for one in files[:FILES_WEIGHED_MAX]:
        first, following = max(position, one.first_offset), min(end, one.last_offset + 1)
        if first < following:
            yield OffsetRange(first, following, weight(one.bytes, one.last_offset + 1 - one.first_offset))
            position = following
    if len(files) > FILES_WEIGHED_MAX:
        yield OffsetRange(position, end, weight(archived.bytes_in(position, end), end - position))


def average(state: PartitionState, start: int, end: int) -> OffsetRange:
    """A range with one average of bytes for all its offsets."""
    if state.archived is None:
        return OffsetRange(start, end, state.bytes_per_offset)
    archived = sum(
        state.archived.bytes_in(part.start, part.end) for part in parts(state, start, end) if part.is_archived
    )
    logged = sum(part.end - part.start for part in parts(state, start, end) if not part.is_archived)
    return OffsetRange(start, end, weight(archived + int(logged * state.bytes_per_offset), end - start))


# ── lost records ─────────────────────────────────────────────────────────────────────────────────


def must_be_there(stream: StreamState, number: int, start: int, end: int) -> None:
    """Raises DataLost when offsets of a range are neither in the log nor in the archive, and when `start` is below both."""
    state = stream.partitions[number]
    gone = missing(state, start, max(end, min(start + 1, state.log_start_offset)))
    if gone is None:
        return
    if stream.archive:
        raise lost_everywhere(stream, number, gone)
    raise lost(stream.name, number, start, state.log_start_offset, stream.retention)


def lost(
    stream: str, partition: int, wanted: int, log_start_offset: int, retention: Mapping[str, int] | None = None
) -> DataLost:
    """The error for offsets that the log no longer has."""
    return DataLost(
        f"`{stream}`/{partition} was to be read from offset {wanted}, but its log starts at {log_start_offset}: "
        f"{_gone(log_start_offset - wanted)}{_kept(retention or {})}",
        hint=f"let the stream keep more, or read it more often; {HINT_SKIP}",
    )


def lost_everywhere(stream: StreamState, number: int, gone: tuple[int, int]) -> DataLost:
    """The error for offsets that the archive does not have either."""
    state = stream.partitions[number]
    first, end = gone
    named = f"offset {first} is" if end - first == 1 else f"offsets {first} to {end - 1} are"
    return DataLost(
        f"`{stream.name}`/{number}: {named} neither in its log, which starts at {state.log_start_offset}, nor in the archive "
        f"{stream.archive}, which has {held(state.archived)}: {_gone(end - first)}{_kept(stream.retention)}",
        hint=f"let the stream keep more, or archive it more often; {HINT_SKIP}",
    )


def held(archived: Coverage | None) -> str:
    """The offsets that an archive has of a partition, in words."""
    if archived is None:
        return "nothing of it"
    lost = count(archived.lost)
    without = f" without {lost} that were gone before they were archived" if lost else ""
    return f"offsets {archived.start} to {archived.end - 1}{without}"


def retention_text(retention: Mapping[str, int]) -> str:
    """The limits of a stream in words, such as `24h and 1GiB`; "" for none."""
    words: dict[str, Callable[[int], str]] = {
        "max_age_ns": format_duration,
        "max_bytes": format_size,
        "max_messages": "{} messages".format,
    }
    return " and ".join(show(retention[name]) for name, show in words.items() if retention.get(name))


def _gone(count: int) -> str:
    return f"{count} offset{'s are' if count != 1 else ' is'} gone"


def _kept(retention: Mapping[str, int]) -> str:
    text = retention_text(retention)
    return f"; the stream keeps {text}" if text else ""
