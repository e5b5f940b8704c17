"""Where a replay reads: the log of a stream, or an archive of it. Both know ranges of offsets, and give rows in their order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from bascule.errors import CallerError, OffsetBelowStart, StreamNotFound
from bascule.lake import holes
from bascule.lake.archive import Archive
from bascule.lake.coverage import Coverage, coverage_of
from bascule.lake.delta.place import LakePlace
from bascule.lake.ranges import offset_at, read_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from bascule.client.arrow.reader import FlightConnection

COLUMNS: Final = ("key", "value", "offset", "timestamp", "headers")
Position = int | datetime | None
"""An offset, a time, or the beginning or the end of everything."""


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets `start` to before `end`."""

    start: int
    end: int


class ReplaySource(Protocol):
    name: str
    """For people, and to tell one replay from another: two sources never have the same."""

    def spans(self, start: Position, end: Position) -> dict[int, Span]:
        """What there is of each partition between two positions."""

    def lost(self, partition: int, span: Span) -> int:
        """How many offsets of a span were gone before the source got them."""

    def read(self, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """The columns `COLUMNS` of these offsets, as many as there are."""


class LogSource:
    """A stream, as brokers have it."""

    def __init__(self, tables: FlightConnection, stream: str) -> None:
        self._tables = tables
        self._stream = stream
        self._id = int(tables.offsets([stream])[stream]["id"])
        self.name = f"{stream}#{self._id}"

    def spans(self, start: Position, end: Position) -> dict[int, Span]:
        ends = self._tables.offsets([self._stream])[self._stream]["partitions"]
        starts_at, ends_at = self._offsets(start, ends), self._offsets(end, ends)
        found = {}
        for number, one in ends.items():
            first, last = one["log_start"], one["high_watermark"] + 1
            if isinstance(start, int) and start < first:
                raise OffsetBelowStart(
                    f"{self._stream}/{number} begins at offset {first}, {start} is gone",
                    hint="begin later, or replay from an archive",
                )
            found[number] = Span(
                max(first, starts_at.get(number, first)), max(first, min(last, ends_at.get(number, last)))
            )
        return found

    def _offsets(self, position: Position, ends: dict[int, Any]) -> dict[int, int]:
        if position is None:
            return {}
        if isinstance(position, int):
            return dict.fromkeys(ends, position)
        asked = {self._stream: dict.fromkeys(ends, max(0, _micros(position) * 1_000))}
        found = self._tables.offsets([self._stream], asked)[self._stream]["partitions"]
        return {number: one["timestamp_offset"] for number, one in found.items()}

    def lost(self, _partition: int, _span: Span) -> int:
        return 0  # it had them all once

    def read(self, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        return self._tables.read(self._stream, partition, start, end, COLUMNS, stream_id=self._id)


class ArchiveSource:
    """A stream, as an archive has it."""

    def __init__(self, path: str | Path | LakePlace, stream: str | None = None) -> None:
        self._archive = Archive(path)
        self._stream = stream or self._only_stream()
        self._id, self._partitions = self._look()
        self.name = f"{self._stream}#{self._id}"

    def _only_stream(self) -> str:
        names = sorted(coverage_of(self._archive.state()))
        if len(names) != 1:
            listed = ", ".join(f"`{name}`" for name in names) or "nothing"
            raise CallerError(f"{self._archive.place} holds {listed}", hint="say which stream to replay")
        return names[0]

    def _look(self) -> tuple[int, dict[int, Coverage]]:
        found = coverage_of(self._archive.state()).get(self._stream, {})
        if len(found) != 1:
            has = "nothing" if not found else "more than one stream of that name"
            raise StreamNotFound(f"{self._archive.place} has {has} of `{self._stream}`")
        return next(iter(found.items()))

    def spans(self, start: Position, end: Position) -> dict[int, Span]:
        return {
            number: Span(
                max(one.start, self._offset(one, start, one.start)), min(one.end, self._offset(one, end, one.end))
            )
            for number, one in self._partitions.items()
        }

    def _offset(self, coverage: Coverage, position: Position, otherwise: int) -> int:
        if position is None:
            return otherwise
        if isinstance(position, int):
            return position
        found = offset_at(self._archive.place, coverage, max(0, _micros(position)))
        return coverage.end if found is None else found

    def lost(self, partition: int, span: Span) -> int:
        return holes.count(holes.within(span.start, span.end, self._partitions[partition].lost))

    def read(self, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Files may be replaced by others with the same rows meanwhile: then it goes on in those."""
        position = start
        while position < end:
            files = self._partitions[partition].files_in(position, end)
            try:
                for one in files:
                    for following, batch in read_rows(self._archive.place, one, position, end, COLUMNS):
                        yield batch
                        position = following
                return
            except FileNotFoundError:
                _, self._partitions = self._look()
                if self._partitions[partition].files_in(position, end) == files:
                    raise


def _micros(position: datetime) -> int:
    return (position - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
