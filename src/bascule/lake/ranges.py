"""Offsets out of an archive's files: of each file only the row groups that have some of them, of each row only the columns asked for.

Statistics of the column `offset` say which row groups those are; those of `timestamp` find a moment without reading what is before it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from bascule import limits
from bascule.flight.schema import schema_of
from bascule.lake.coverage import Coverage
from bascule.lake.delta.place import LakePlace
from bascule.lake.facts import DataFile

if TYPE_CHECKING:
    import pyarrow as pa

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def read_rows(
    place: LakePlace, one: DataFile, start: int, end: int, columns: tuple[str, ...]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows `start <= offset < end` of a file, in batches that are never empty, each with the offset behind its last row.

    Raises OSError or pyarrow's errors for a file that is not there or damaged.
    """
    import pyarrow.parquet as pq

    asked = columns if "offset" in columns else (*columns, "offset")
    with place.open(one.path) as source, pq.ParquetFile(source) as file:
        for group in _groups_in(file.metadata, start, end):
            rows = _rows_at_once(file.metadata.row_group(group))
            for batch in file.iter_batches(rows, row_groups=[group], columns=list(asked)):
                found = _between(batch, start, end)
                if found.num_rows:
                    yield found["offset"][-1].as_py() + 1, _with_columns(found, columns)


def _rows_at_once(group: Any) -> int:
    """As many as brokers would send: neither rows nor bytes without bound."""
    if not group.num_rows:
        return 1
    row_bytes: int = max(1, group.total_byte_size // group.num_rows)
    return max(1, min(limits.FLIGHT_BATCH_ROWS, limits.FLIGHT_BATCH_BYTES // row_bytes))


def _between(batch: pa.RecordBatch, start: int, end: int) -> pa.RecordBatch:
    import pyarrow.compute as pc

    offsets = batch["offset"]
    if not len(offsets) or (offsets[0].as_py() >= start and offsets[-1].as_py() < end):
        return batch
    found: pa.RecordBatch = batch.filter(pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, end)))
    return found


def _with_columns(batch: pa.RecordBatch, columns: tuple[str, ...]) -> pa.RecordBatch:
    """As a broker sends them: Parquet gives the file's order."""
    wanted = schema_of(columns)
    found: pa.RecordBatch = batch.select(list(columns))
    return found if found.schema == wanted else found.cast(wanted)


# ── statistics ───────────────────────────────────────────────────────────────────────────────────


def _groups_in(metadata: Any, start: int, end: int) -> Iterator[int]:
    for group in range(metadata.num_row_groups):
        known = _statistics(metadata, group, "offset")
        if known is None or (known.min < end and known.max >= start):
            yield group


def _statistics(metadata: Any, group: int, name: str) -> Any:
    """The least and the greatest value of a column; None for a file that does not say."""
    row_group = metadata.row_group(group)
    for number in range(row_group.num_columns):
        column = row_group.column(number)
        if column.path_in_schema == name:
            return column.statistics if column.statistics is not None and column.statistics.has_min_max else None
    return None


# ── a moment ─────────────────────────────────────────────────────────────────────────────────────


def offset_at(place: LakePlace, coverage: Coverage, timestamp_us: int) -> int | None:
    """The first offset that is not older; None if all are. Timestamps of a partition never fall, so it is searched by halves.

    Raises OSError or pyarrow's errors like `read_rows`.
    """
    date = (_EPOCH + timedelta(microseconds=timestamp_us)).strftime("%Y-%m-%d")
    later = coverage.from_date(date)
    same_day = later[: bisect_left(later, True, key=lambda one: one.date > date)]
    at = bisect_left(same_day, timestamp_us, key=lambda one: _last_timestamp_us(place, one))
    if at == len(later):
        return None
    one = later[at]
    return one.first_offset if at >= len(same_day) else _offset_in(place, one, timestamp_us)


def _last_timestamp_us(place: LakePlace, one: DataFile) -> int:
    import pyarrow.parquet as pq

    with place.open(one.path) as source, pq.ParquetFile(source) as file:
        known = _statistics(file.metadata, file.metadata.num_row_groups - 1, "timestamp")
    if known is not None:
        last_us: int = (known.max - _EPOCH) // timedelta(microseconds=1)
        return last_us
    return max(moment for _, batch in _moments(place, one) for moment in batch)


def _offset_in(place: LakePlace, one: DataFile, timestamp_us: int) -> int | None:
    for offsets, moments in _moments(place, one):
        at = bisect_left(moments, timestamp_us)
        if at < len(moments):
            return offsets[at]
    return None


def _moments(place: LakePlace, one: DataFile) -> Iterator[tuple[list[int], list[int]]]:
    """Offsets and timestamps of a file, batch after batch."""
    import pyarrow as pa

    for _, batch in read_rows(place, one, one.first_offset, one.last_offset + 1, ("offset", "timestamp")):
        yield batch["offset"].to_pylist(), batch["timestamp"].cast(pa.int64()).to_pylist()
