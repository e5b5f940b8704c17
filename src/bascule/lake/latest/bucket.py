"""What a task does with one bucket: merges the rows of a batch into what the table has, and writes it anew if that changes it."""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bascule.errors import InvalidRecord
from bascule.flight.arrow import require
from bascule.kernels.wire.checksum import crc32c
from bascule.lake.delta.documents import sync_directory, writing
from bascule.lake.latest.merge import DELETED, Floors, KeptRows, empty, graves_schema, merge
from bascule.lake.latest.table import GRAVES, ROWS, Bucket

if TYPE_CHECKING:
    import pyarrow as pa

BUCKET: Final = "_bucket"
"""The column of a batch that says which bucket a row belongs to."""
ROW_GROUP_ROWS: Final = 64 * 1024
GRAVES_KEPT_US: Final = 24 * 3_600_000_000
"""How far partitions may be apart, in the times of their messages, for a deletion in one to hold against an older message of another:
as long as the log keeps tombstones."""


@dataclass(frozen=True, slots=True)
class Merged:
    """What became of one bucket."""

    ends: dict[str, dict[int, int]]
    """By stream and partition: one behind the last offset of the batch's rows."""
    bucket: Bucket | None
    """None: as it was."""


@dataclass(frozen=True, slots=True)
class BucketTask:
    """Pickled, so nothing is open in it."""

    root: str
    schema: bytes
    """Of the table's rows, serialized."""
    key: str
    floors: Floors
    buckets: dict[int, Bucket]
    """As the newest snapshot has them."""
    null_keys: str = "keep"
    compression: str = "zstd"

    def merge(self, number: int, batch: pa.Table) -> Merged:
        """`batch` has the rows of this bucket, and `DELETED`; other columns do not matter."""
        pa = require()
        schema = pa.ipc.read_schema(pa.py_buffer(self.schema))
        names = [*schema.names, DELETED]
        rows = batch.select(names).cast(pa.schema([*schema, pa.field(DELETED, pa.bool_())]))
        ends = _ends(rows)
        if not rows.num_rows:
            return Merged(ends, None)
        before = self.buckets.get(number, Bucket(number))
        newest_us = _newest_us(rows)
        after = merge(
            self._kept(before, schema),
            self._keyed(rows),
            self.key,
            self.floors,
            graves_from_us=newest_us - GRAVES_KEPT_US,
        )
        return Merged(ends, None if after is None else self._written(number, after))

    def _keyed(self, rows: pa.Table) -> pa.Table:
        import pyarrow.compute as pc

        if self.null_keys == "keep" or not rows[self.key].null_count:
            return rows
        if self.null_keys == "skip":
            return rows.filter(pc.is_valid(rows[self.key]))
        first = rows.filter(pc.is_null(rows[self.key])).slice(0, 1).to_pylist()[0]
        raise InvalidRecord(
            f"{first['stream']}/{first['partition']}: the message at offset {first['offset']} has no key",
            hint="set `null_keys` to `keep` or `skip`, or choose another key",
        )

    def _kept(self, bucket: Bucket, schema: pa.Schema) -> KeptRows:
        import pyarrow.parquet as pq

        kept = empty(schema, self.key)
        root = Path(self.root)
        if bucket.path:
            kept = KeptRows(pq.ParquetFile(root / bucket.path).read().cast(schema), kept.graves)
        if bucket.graves_path:
            graves = pq.ParquetFile(root / bucket.graves_path).read()
            kept = KeptRows(kept.rows, graves.cast(graves_schema(schema, self.key)))
        return kept

    def _written(self, number: int, kept: KeptRows) -> Bucket:
        rows_path, size, crc = self._write(ROWS, number, kept.rows)
        graves_path, _, _ = self._write(GRAVES, number, kept.graves)
        return Bucket(number, rows_path, kept.rows.num_rows, size, crc, graves_path, kept.graves.num_rows)

    def _write(self, folder: str, number: int, rows: pa.Table) -> tuple[str, int, int]:
        """The name of a new file, its size and checksum; no file for no rows."""
        import pyarrow.parquet as pq

        if not rows.num_rows:
            return "", 0, 0
        name = f"{folder}/{number:04d}-{uuid.uuid4().hex}.parquet"
        path = Path(self.root) / name
        try:
            with writing(Path(self.root), name):
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("xb") as file:
                    pq.write_table(rows, file, compression=self.compression, row_group_size=ROW_GROUP_ROWS)
                    file.flush()
                    os.fsync(file.fileno())
                sync_directory(path.parent)
        except BaseException:
            path.unlink(missing_ok=True)  # no snapshot will name it
            raise
        written = path.read_bytes()
        return name, len(written), crc32c(written)

    # ── as Spark calls it ────────────────────────────────────────────────────────────────────────

    def __call__(self, group: tuple[Any, ...], batch: pa.Table) -> pa.Table:
        """For applyInArrow on groups of `BUCKET`: one row of JSON with what became of it."""
        pa = require()
        merged = self.merge(group[0].as_py(), batch)
        bucket = None if merged.bucket is None else asdict(merged.bucket)
        return pa.table({"outcome": [json.dumps({"ends": merged.ends, "bucket": bucket})]})


OUTCOME_DDL: Final = "outcome string"


def decoded(outcome: str) -> Merged:
    document = json.loads(outcome)
    bucket = None if document["bucket"] is None else Bucket(**document["bucket"])
    ends = {stream: {int(number): end for number, end in found.items()} for stream, found in document["ends"].items()}
    return Merged(ends, bucket)


def _ends(rows: pa.Table) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    places = rows.group_by(["stream", "partition"]).aggregate([("offset", "max")])
    for place in places.to_pylist():
        found.setdefault(place["stream"], {})[place["partition"]] = place["offset_max"] + 1
    return found


def _newest_us(rows: pa.Table) -> int:
    import pyarrow as pa
    import pyarrow.compute as pc

    return int(pc.max(rows["timestamp"].cast(pa.int64())).as_py())
