"""`bascule.spark.table`: a stream with its archive as one DataFrame, whose history Spark reads with its own Parquet scan.

    offsets of a partition      [start ─────────────── seam)[ ─────────── end)
    read by                     Spark's scan of files        the source, in Python

The table is what was archived and committed when `table` was called: the files of one version of the archive, and for each partition
the offsets between them and its end. Offsets, not times, are the seam, so nothing is missing or there twice, however often the archive
is written and compacted meanwhile. Files that a compaction replaces stay until the archive's retention is over.

Spark pushes filters and columns into the scan, which it cannot do into a source in Python. Offsets that the archive has lost, those
before it was begun and those after its end are ranges of the source: each keeps `history`, so that a range is read from the archive if
the log has lost it by then, and a stream that was created again is noticed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bascule.errors import InvalidOption
from bascule.lake.coverage import Coverage
from bascule.lake.delta.place import LakePlace
from bascule.lake.facts import DataFile
from bascule.spark.options.declaration import BATCH
from bascule.spark.options.reading import SourceOptions, source_options
from bascule.spark.options.schema import TABLE
from bascule.spark.read import cluster
from bascule.spark.read.plan import OffsetRange, PartitionKey
from bascule.spark.read.resolve import batch_ranges
from bascule.spark.read.state import Streams, parts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

DATE: Final = "date"
"""The day (UTC) of a message: archives are partitioned by it."""

_DATE_OF: Final = "date_from_unix_date(CAST(unix_micros(timestamp) div 86400000000 AS INT))"
_SCHEMES: Final = {"s3": "s3a", "gs": "gs", "abfss": "abfss"}
"""What Hadoop calls the file system of a store."""

_STRICT: Final = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false", "__globPaths__": "false"}
"""A file that cannot be read fails the query, whatever the session is set to. The last one is how Spark reads names as they are."""

_PLACED: Final = frozenset(
    each.lower()
    for each in (
        *("stream", "path", "subscribe", "subscribePattern", "subjectPattern", "assign"),
        *("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy"),
        *("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
    )
)
"""Options that say what is read: a range of the source has its own."""


def table(
    spark: SparkSession,
    stream: str,
    *,
    history: str | None = None,
    columns: Iterable[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    **options: Any,
) -> DataFrame:
    """A stream as it is now, with what its archive `history` has of it: the columns of a stream and `date`, the day in UTC.

    Spark scans the archive's Parquet files itself: filters, columns and, of `date`, whole days are left out there. Offsets after the
    archive's end come from the log. `columns` selects some, for the log's part too. `options` are those of
    `spark.read.format("bascule")`, such as `servers`, `startingTimestamp` or `onDataLoss`; `storage_options` those of an object store.
    """
    given = {name: str(value) for name, value in options.items()}
    if storage_options:
        given["storageOptions"] = json.dumps(dict(storage_options))
    if history is not None:
        given["history"] = history
    chosen = _checked_columns(columns)
    checked = source_options({**given, "stream": stream}, BATCH)
    ranges, _, streams = batch_ranges(checked, cluster.connect_with_history(checked))
    root = spark_root(spark, checked.history.place) if _is_scannable(checked) else None
    scanned, logged = _divided(ranges, streams) if root is not None else ([], [ranges])
    frames = [] if root is None else list(_scans(spark, root, scanned))
    frames += [_from_source(spark, given, each, chosen) for each in logged if each]
    return _union(spark, frames, chosen)


def scan(spark: SparkSession, place: LakePlace, files: Iterable[DataFile], columns: Iterable[str]) -> DataFrame | None:
    """Whole files of an archive; None where Spark has no file system for its store."""
    root = spark_root(spark, place)
    if root is None:
        return None
    whole = [FilePart(one, one.first_offset, one.last_offset + 1) for one in files]
    return _union(spark, list(_scans(spark, root, whole)), columns)


def _checked_columns(columns: Iterable[str] | None) -> list[str]:
    known = [*TABLE.fieldNames(), DATE]
    if columns is None:
        return known
    chosen = [columns] if isinstance(columns, str) else list(columns)
    for name in chosen:
        if name not in known:
            raise InvalidOption(f"`columns` names `{name}`", hint=f"there are {', '.join(known)}")
    if not chosen or len(set(chosen)) != len(chosen):
        raise InvalidOption(f"`columns` is {chosen}", hint="name one column or more, each once, or leave it out")
    return chosen


def _is_scannable(options: SourceOptions) -> bool:
    """Typed values are decoded in Python, and options of a store are not known to Spark's file system."""
    return options.history.path is not None and options.value.format is None and not options.history.storage


def spark_root(spark: SparkSession, place: LakePlace) -> str | None:
    """The path of an archive as Spark writes it; None where it has no file system for the store, or cannot be asked for one."""
    if place.local is not None:
        return f"file://{place.local.absolute()}"
    scheme, _, rest = place.uri.partition("://")
    java: Any = getattr(spark, "_jvm", None) if not place.options else None
    if java is None or scheme not in _SCHEMES:
        return None
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    hadoop: Any = spark
    try:
        java.org.apache.hadoop.fs.FileSystem.getFileSystemClass(_SCHEMES[scheme], hadoop._jsc.hadoopConfiguration())
    except Py4JJavaError:
        return None
    return f"{_SCHEMES[scheme]}://{rest}"


# ── the archive's part ───────────────────────────────────────────────────────────────────────────


class FilePart(NamedTuple):
    """Offsets `start` to before `end` of a file."""

    file: DataFile
    start: int
    end: int

    @property
    def is_whole(self) -> bool:
        return self.start <= self.file.first_offset and self.end > self.file.last_offset


def file_parts(coverage: Coverage, start: int, end: int) -> Iterator[FilePart]:
    """The files that have offsets of a range, each with its part of them. No offset is in two, even where files overlap."""
    position = start
    for one in coverage.files_in(start, end):
        first, following = max(position, one.first_offset), min(end, one.last_offset + 1)
        if first < following:
            yield FilePart(one, first, following)
            position = following


def _divided(
    ranges: Mapping[PartitionKey, OffsetRange], streams: Streams
) -> tuple[list[FilePart], list[dict[PartitionKey, OffsetRange]]]:
    """What is scanned; and what the source reads: one range of each partition at a time, because it takes no more in one read."""
    scanned: dict[str, FilePart] = {}
    logged: list[dict[PartitionKey, OffsetRange]] = []
    for key, each in ranges.items():
        state = streams[key.stream].partitions[key.partition]
        number = 0
        for part in parts(state, each.start, each.end):
            if part.is_archived and state.archived is not None:
                for one in file_parts(state.archived, part.start, part.end):
                    _add(scanned, one)
                continue
            if number == len(logged):
                logged.append({})
            logged[number][key] = OffsetRange(part.start, part.end)
            number += 1
    return list(scanned.values()), logged


def _add(scanned: dict[str, FilePart], one: FilePart) -> None:
    """A file that was written over a hole is one part: the offsets of the hole are not in it."""
    before = scanned.get(one.file.path)
    scanned[one.file.path] = one if before is None else FilePart(one.file, before.start, one.end)


def _scans(spark: SparkSession, root: str, scanned: list[FilePart]) -> Iterator[DataFrame]:
    """One scan of the files that are wanted whole; others by partition, so that a range of offsets means one file."""
    whole = [one for one in scanned if one.is_whole]
    if whole:
        yield _parquet(spark, root, whole)
    layers: list[dict[int, FilePart]] = []
    for one in scanned:
        if not one.is_whole:
            free = next((layer for layer in layers if one.file.partition not in layer), None)
            if free is None:
                layers.append(free := {})
            free[one.file.partition] = one
    for layer in layers:
        wanted = (
            f"(partition = {number} AND offset >= {one.start} AND offset < {one.end})" for number, one in layer.items()
        )
        yield _parquet(spark, root, layer.values()).where(" OR ".join(wanted))


def _parquet(spark: SparkSession, root: str, scanned: Iterable[FilePart]) -> DataFrame:
    paths = [f"{root}/{one.file.path}" for one in scanned]
    return spark.read.schema(_scanned()).options(basePath=root, **_STRICT).parquet(*paths)


def _scanned() -> StructType:
    from pyspark.sql.types import DateType, StructField, StructType

    return StructType([*TABLE.fields, StructField(DATE, DateType())])


# ── the log's part ───────────────────────────────────────────────────────────────────────────────


def _from_source(
    spark: SparkSession, given: Mapping[str, str], ranges: Mapping[PartitionKey, OffsetRange], columns: list[str]
) -> DataFrame:
    """A range of each of some partitions, by the source in Python."""
    kept = {name: value for name, value in given.items() if name.lower() not in _PLACED}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for key, each in ranges.items():
        starts.setdefault(key.stream, {})[str(key.partition)] = each.start
        ends.setdefault(key.stream, {})[str(key.partition)] = each.end
    assigned = {name: [int(number) for number in numbers] for name, numbers in starts.items()}
    reader = spark.read.format("bascule").options(
        **kept,
        assign=json.dumps(assigned),
        startingOffsets=json.dumps(starts),
        endingOffsets=json.dumps(ends),
    )
    if not any(name.lower() == "valueformat" for name in given):
        needed = {"timestamp" if name == DATE else name for name in columns}
        reader = reader.schema(type(TABLE)([field for field in TABLE if field.name in needed]))
    found = reader.load()
    return with_date(found) if DATE in columns else found


def with_date(frame: DataFrame) -> DataFrame:
    """Messages with their days."""
    return frame.selectExpr("*", f"{_DATE_OF} AS {DATE}")


def _union(spark: SparkSession, frames: list[DataFrame], columns: Iterable[str]) -> DataFrame:
    chosen = [f"`{name}`" for name in columns]
    if not frames:
        return spark.createDataFrame([], _scanned()).selectExpr(*chosen)
    first, *others = (each.selectExpr(*chosen) for each in frames)
    for each in others:
        first = first.union(each)
    return first
