"""In what two sequences of messages differ, by their offsets: read side by side, so that a file of any size fits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]


@dataclass(slots=True)
class Differences:
    missing: list[int] = field(default_factory=list)
    """In the log, not in the archive."""
    invented: list[int] = field(default_factory=list)
    doubled: list[int] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)
    late: set[int] = field(default_factory=set)
    """There, but behind a later one."""
    distinct: int = 0
    """Offsets in the archive."""
    missing_count: int = 0
    """Missing rows whose offsets are not known."""

    def __bool__(self) -> bool:
        return bool(self.missing or self.invented or self.doubled or self.changed or self.late or self.missing_count)


def compare(archived: Iterable[pa.RecordBatch], logged: Iterable[pa.RecordBatch] | None) -> Differences:
    """The differences between archive and log. Without `logged`, only the order of the archive is checked."""
    found = Differences()
    ours = _in_order(archived, found)
    if logged is None:
        for _ in ours:
            continue
        return found
    theirs = _rows(logged)
    our, their = next(ours, None), next(theirs, None)
    while our is not None and their is not None:
        if our["offset"] < their["offset"]:
            found.invented.append(our["offset"])
            our = next(ours, None)
        elif their["offset"] < our["offset"]:
            found.missing.append(their["offset"])
            their = next(theirs, None)
        else:
            if our != their:
                found.changed.append(our["offset"])
            our, their = next(ours, None), next(theirs, None)
    while our is not None:
        found.invented.append(our["offset"])
        our = next(ours, None)
    while their is not None:
        found.missing.append(their["offset"])
        their = next(theirs, None)
    found.missing = [offset for offset in found.missing if offset not in found.late]
    return found


def _in_order(batches: Iterable[pa.RecordBatch], found: Differences) -> Iterator[Row]:
    """The rows whose offsets rise; the others are counted in `found`."""
    last = -1
    for row in _rows(batches):
        offset = row["offset"]
        if offset > last:
            found.distinct += 1
            last = offset
            yield row
        elif offset == last:
            found.doubled.append(offset)
        else:
            found.late.add(offset)


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    for batch in batches:
        yield from batch.to_pylist()
