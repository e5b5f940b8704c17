"""Verifies that a table of latest messages equals its streams: the log is read again into a dict.

For each key the table must hold the newest message below the offsets that it has read to, and no row for a key whose newest message
deletes it. Rows whose message retention or compaction have removed cannot be compared; the report counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bascule.flight.schema import COLUMNS
from bascule.kernels.wire.checksum import crc32c
from bascule.lake.latest.merge import ORDER
from bascule.lake.latest.table import LatestStore, TableSnapshot
from bascule.lake.log_proof import Fault
from bascule.lake.verification import Report

if TYPE_CHECKING:
    import pyarrow as pa

    from bascule.client.arrow.reader import FlightConnection

KeyOf = Callable[["pa.RecordBatch"], Iterable[Any]]
NAMED_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class _Newest:
    order: tuple[Any, ...]
    deletes: bool
    content: bytes


@dataclass(slots=True)
class _Log:
    """What the log says of each key."""

    newest: dict[Any, _Newest] = field(default_factory=dict)
    later: set[Any] = field(default_factory=set)
    """Keys of messages that the table has not read yet: compaction may have removed older ones for them."""
    starts: dict[tuple[str, int], int] = field(default_factory=dict)
    rows: int = 0


def verify_latest(path: str | Path, tables: FlightConnection | None, key_of: KeyOf | None = None) -> Report:
    """Compare a table with its log; without `tables` with its own checksums alone.

    Keys that are expressions of SQL can be computed by `key_of` only, from the messages of a batch; without it the log is not asked,
    nor where an expression says which messages delete. For tables of messages as they were read: rows that a pipeline has
    filtered or changed are not in the log.
    """
    return _TableVerification(LatestStore(path), tables, key_of).run()


class _TableVerification:
    def __init__(self, store: LatestStore, tables: FlightConnection | None, key_of: KeyOf | None) -> None:
        self._store = store
        self._tables = tables
        self._report = Report()
        described = store.describe()
        self._key = str(described["key"])
        self._deleted = described.get("deleted")
        self._null_keys = described.get("null_keys", "keep")
        self._key_of = key_of or (_message_keys if self._key == "key" else None)

    def run(self) -> Report:
        snapshot = self._store.snapshot()
        rows = list(self._rows(snapshot))
        self._report.rows = len(rows)
        if self._tables is None:
            self._report.unchecked.append("the log was not asked")
        elif self._key_of is None:
            self._report.unchecked.append(f"the key is `{self._key}`: whether rows are the newest is not known here")
        elif self._deleted is not None:
            self._report.unchecked.append(f"`{self._deleted}` deletes: whether rows are the newest is not known here")
        elif snapshot.number:
            self._compare(snapshot, rows, self._tables, self._key_of)
        return self._report

    def _fault(self, kind: str, text: str) -> None:
        self._report.faults.append(Fault(kind, text))

    # ── the table ────────────────────────────────────────────────────────────────────────────────

    def _rows(self, snapshot: TableSnapshot) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Key and columns of each row; faults of files on the way."""
        key_column = self._key if not snapshot.number or self._key in snapshot.arrow_schema().names else "latestKey"
        seen: dict[Any, str] = {}
        for _, bucket in sorted(snapshot.buckets.items()):
            if not bucket.path:
                continue
            self._report.files += 1
            for row in self._file(bucket.path, bucket.rows, bucket.crc32c):
                key = _identity(row[key_column], row)
                if key in seen:
                    self._fault("rows-doubled", f"key {_shown(key)} is in {seen[key]} and in {bucket.path}")
                seen[key] = bucket.path
                yield key, row

    def _file(self, name: str, rows: int, crc: int) -> list[dict[str, Any]]:
        import pyarrow.parquet as pq

        path = self._store.path / name
        if not path.exists():
            self._fault("file-missing", f"{name} is gone, and with it {rows} rows")
            return []
        if crc32c(path.read_bytes()) != crc:
            self._fault("file-changed", f"{name} is not what was written")
        try:
            found: list[dict[str, Any]] = pq.ParquetFile(path).read().to_pylist()
        except Exception as error:
            self._fault("file-unreadable", f"{name} cannot be read: {error}")
            return []
        return found

    # ── the log ──────────────────────────────────────────────────────────────────────────────────

    def _compare(
        self,
        snapshot: TableSnapshot,
        rows: list[tuple[Any, dict[str, Any]]],
        tables: FlightConnection,
        key_of: KeyOf,
    ) -> None:
        names = tuple(name for name in COLUMNS if _is_raw(snapshot.arrow_schema(), name))
        log = self._log(snapshot, names, tables, key_of)
        self._report.rows_compared = log.rows
        unknown = 0
        for key, row in rows:
            newest = log.newest.pop(key, None)
            order = tuple(row[name] for name in ORDER)
            if newest is not None and newest.order > order:
                what = "was deleted by" if newest.deletes else "has a newer message,"
                self._fault("rows-stale", f"key {_shown(key)} at {_place(order)} {what} {_place(newest.order)}")
            elif newest is not None and newest.order == order:
                if newest.content != _content(row, names):
                    self._fault("rows-changed", f"key {_shown(key)}: the row is not the message at {_place(order)}")
            elif row["offset"] < log.starts.get((row["stream"], row["partition"]), 1 << 62) or key in log.later:
                unknown += 1
            else:
                self._fault("rows-invented", f"key {_shown(key)}: the log has no message at {_place(order)}")
        missing = [(key, one) for key, one in log.newest.items() if not one.deletes]
        for key, one in missing[:NAMED_MAX]:
            self._fault("rows-missing", f"key {_shown(key)} is not there, its message is at {_place(one.order)}")
        if len(missing) > NAMED_MAX:
            self._fault("rows-missing", f"and {len(missing) - NAMED_MAX} more keys")
        if unknown:
            self._report.unchecked.append(f"{unknown} rows whose messages the log no longer has")

    def _log(self, snapshot: TableSnapshot, names: tuple[str, ...], tables: FlightConnection, key_of: KeyOf) -> _Log:
        found = _Log()
        logs = tables.offsets(sorted({stream for stream, _, _ in snapshot.next_offsets}))
        for (stream, stream_id, partition), end in sorted(snapshot.next_offsets.items()):
            if logs[stream]["id"] != stream_id:
                self._report.unchecked.append(f"{stream} was deleted and created again")
                continue
            found.starts[stream, partition] = logs[stream]["partitions"][partition]["log_start"]
            for batch in tables.read(stream, partition):
                for key, row in zip(key_of(batch), batch.to_pylist(), strict=True):
                    self._note(found, _identity(key, row), row, end, names)
        return found

    def _note(self, log: _Log, key: Any, row: dict[str, Any], end: int, names: tuple[str, ...]) -> None:
        if row["offset"] >= end:
            log.later.add(key)
            return
        if len(key) > 2 and self._null_keys == "skip":
            return
        log.rows += 1
        order = tuple(row[name] for name in ORDER)
        known = log.newest.get(key)
        if known is None or order > known.order:
            log.newest[key] = _Newest(order, row["value"] is None, _content(row, names))


def _message_keys(batch: pa.RecordBatch) -> Iterable[Any]:
    keys: list[Any] = batch["key"].to_pylist()
    return keys


def _identity(key: Any, row: dict[str, Any]) -> Any:
    """Messages without a key are identified by their place."""
    return ("key", key) if key is not None else (row["stream"], row["partition"], row["offset"])


def _is_raw(schema: pa.Schema, name: str) -> bool:
    """Whether a column of the table is that of the stream: values may have been decoded, columns left out."""
    from bascule.flight.schema import table_schema

    return name in schema.names and bool(schema.field(name).type == table_schema().field(name).type)


def _content(row: dict[str, Any], names: tuple[str, ...]) -> bytes:
    return blake2b(repr([row[name] for name in names]).encode(), digest_size=16).digest()


def _shown(key: Any) -> str:
    return repr(key[1])[:60] if len(key) == 2 else f"of {key[0]}/{key[1]} at {key[2]}, which has none,"


def _place(order: tuple[Any, ...]) -> str:
    _, _, offset, stream, partition = order
    return f"offset {offset} of {stream}/{partition}"
