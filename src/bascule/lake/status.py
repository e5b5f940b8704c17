"""How far an archive is: what it holds, and what its streams have that it does not, in offsets, bytes and seconds.

    {"messages": 1500, "files": 3, "bytes": 64230, "commits": 2, "last_commit": "2026-11-15T09:30:00Z",
     "lag": {"offsets": 20, "bytes": 2600, "seconds": 3.2}, "lost": 15,
     "partitions": [{"stream": "orders", "partition": 0, "began": 0, "next_offset": 500, "log_start": 0, "high_watermark": 519,
                     "behind": 20, "behind_bytes": 2600, "behind_seconds": 3.2, "lost": 15, "problem": "…",
                     "lost_ranges": [{"first": 30, "last": 44, "since": "2026-11-15T09:30:00Z", "reason": "removed"}]}]}

Seconds are the age of the oldest message that is not archived. `lost` counts offsets that were gone before they were archived: those
that commits name, in `lost_ranges`, and those that retention has removed since. `began` is null where an archive did not note it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from bascule.errors import BasculeError, StreamNotFound
from bascule.lake import holes

if TYPE_CHECKING:
    from bascule.client.arrow.reader import FlightConnection
    from bascule.lake.facts import ArchiveState, PartitionId

PROBES_MAX: Final = 64
"""Partitions whose oldest waiting message is looked at for one report; each is a request."""


def archive_status(state: ArchiveState, tables: FlightConnection | None, streams: Iterable[str] = ()) -> dict[str, Any]:
    """`streams` are streams that may have nothing in the archive yet. Without `tables` brokers are not asked: the lag is None."""
    partitions = list(_partitions(state, tables, set(streams)))
    return {
        "messages": state.rows,
        "files": len(state.files),
        "bytes": state.bytes,
        "commits": state.number,
        "last_commit": _iso(state.last_commit_ns) if state.number else None,
        "lag": None if tables is None else _total(partitions),
        "lost": sum(one["lost"] or 0 for one in partitions),
        "partitions": partitions,
    }


def _total(partitions: list[dict[str, Any]]) -> dict[str, Any]:
    ages = [one["behind_seconds"] for one in partitions if one["behind_seconds"] is not None]
    return {
        "offsets": sum(one["behind"] or 0 for one in partitions),
        "bytes": sum(one["behind_bytes"] or 0 for one in partitions),
        "seconds": max(ages, default=0.0),
    }


def _partitions(state: ArchiveState, tables: FlightConnection | None, streams: set[str]) -> Iterator[dict[str, Any]]:
    archived: dict[str, dict[tuple[int, int], int]] = {}
    for (stream, stream_id, number), end in state.next_offsets.items():
        archived.setdefault(stream, {})[stream_id, number] = end
    probes = PROBES_MAX
    names = sorted(streams | archived.keys())
    logs = _logs(tables, names)
    problem = "not asked for" if tables is None else "the stream does not exist any more"
    for stream in names:
        log = logs.get(stream)
        here = archived.get(stream, {})
        missing = set() if log is None else {(log["id"], number) for number in log["partitions"]} - here.keys()
        for stream_id, number in sorted(here.keys() | missing):
            next_offset = here.get((stream_id, number))
            if log is None or log["id"] != stream_id:
                recreated = "the stream was deleted and created again"
                row = _row(stream, number, next_offset, problem if log is None else recreated)
                yield _with_holes(row, state, (stream, stream_id, number))
                continue
            row = _behind(stream, number, next_offset, log["partitions"][number])
            row = _with_holes(row, state, (stream, stream_id, number))
            if row["behind"] and probes and tables is not None:
                probes -= 1
                row["behind_seconds"] = _age_seconds(tables, row, stream_id)
            yield row


def _with_holes(row: dict[str, Any], state: ArchiveState, key: PartitionId) -> dict[str, Any]:
    """With what commits say of the partition: where it began, and what of it is lost."""
    lost = state.lost.get(key, [])
    ranges = [{"first": one.start, "last": one.end - 1, "since": _iso(one.at_ns), "reason": one.reason} for one in lost]
    found = {**row, "began": state.began.get(key), "lost_ranges": ranges}
    if lost:
        count = sum(one.end - one.start for one in lost)
        last = holes.named(lost[-1].start, lost[-1].end)
        said = f"{count} offsets were never archived, at last {last}"
        found["lost"] = count + (row["lost"] or 0)
        found["problem"] = said if row["problem"] is None else f"{row['problem']}; {said}"
    return found


def _logs(tables: FlightConnection | None, streams: list[str]) -> dict[str, Any]:
    """The streams as the brokers have them, those that are there: asked for together unless one is not."""
    if tables is None or not streams:
        return {}
    try:
        return tables.offsets(streams)
    except StreamNotFound:
        if len(streams) == 1:
            return {}
        half = len(streams) // 2
        return {**_logs(tables, streams[:half]), **_logs(tables, streams[half:])}


def _row(stream: str, number: int, next_offset: int | None, problem: str | None) -> dict[str, Any]:
    return {
        "stream": stream,
        "partition": number,
        "next_offset": next_offset or 0,
        "log_start": None,
        "high_watermark": None,
        "behind": None,
        "behind_bytes": None,
        "behind_seconds": None,
        "lost": None,
        "problem": problem,
    }


def _behind(stream: str, number: int, next_offset: int | None, ends: dict[str, Any]) -> dict[str, Any]:
    log_start, log_end, watermark = ends["log_start"], ends["log_end"], ends["high_watermark"]
    position = log_start if next_offset is None else max(next_offset, log_start)
    behind = max(0, watermark + 1 - position)
    size = ends["size_bytes"] / (log_end - log_start) if log_end > log_start else 0.0
    lost = 0 if next_offset is None else max(0, log_start - next_offset)
    return {
        **_row(stream, number, next_offset, f"{lost} offsets were removed before they were archived" if lost else None),
        "log_start": log_start,
        "high_watermark": watermark,
        "behind": behind,
        "behind_bytes": round(behind * size),
        "behind_seconds": 0.0 if not behind else None,
        "lost": lost,
    }


def _age_seconds(tables: FlightConnection, row: dict[str, Any], stream_id: int) -> float | None:
    """Of the oldest message that is not archived; None when it cannot be looked at."""
    start = max(row["next_offset"], row["log_start"])
    rows = tables.read(
        row["stream"],
        row["partition"],
        start,
        row["high_watermark"] + 1,
        ("timestamp",),
        stream_id=stream_id,
        batch_rows=1,
    )
    try:
        first = next(rows, None)
    except BasculeError:
        return None
    finally:
        rows.close()  # type: ignore[attr-defined]
    if first is None:
        return 0.0  # compaction has left nothing of it
    written_us: int = first.column(0)[0].value
    return round(max(0.0, time.time() - written_us / 1e6), 3)


def _iso(timestamp_ns: int) -> str:
    return datetime.fromtimestamp(timestamp_ns / 1e9, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
