"""Rows of Arrow as messages to publish: buffers and the places where each message's end, without an object for any of them."""

from __future__ import annotations

import zlib
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bascule.client.arrow.columns import HeaderEntries, MessageColumns

Numbers = NDArray[np.int64]

PRODUCER_HEADERS: Final = frozenset({"bascule-producer", "bascule-epoch", "bascule-sequence"})
"""Of the producer that a row was read from, perhaps: on a message of ours they would be lies."""
TIMESTAMP_HEADER: Final = "bascule-timestamp"


def message_columns(rows: pa.RecordBatch) -> MessageColumns:
    names = rows.schema.names
    values, value_ends = bytes_and_ends(rows.column("value"))
    keys = key_ends = None
    if "key" in names and rows.column("key").null_count < rows.num_rows:
        keys, key_ends = bytes_and_ends(rows.column("key"))
    dropped = PRODUCER_HEADERS | ({TIMESTAMP_HEADER} if "timestamp" in names else frozenset())
    headers = header_entries(rows.column("headers"), dropped) if "headers" in names else None
    times: Any = timestamps_ns(rows.column("timestamp")) if "timestamp" in names else None
    return MessageColumns(
        values, value_ends, keys, key_ends, headers, times, tombstones=tombstones(rows.column("value"))
    )


def tombstones(values: pa.Array) -> Any:
    """A byte for each value, 1 if it is null; None without a null."""
    return values.is_null().to_numpy(zero_copy_only=False).astype(np.uint8) if values.null_count else None


def bytes_and_ends(array: pa.Array) -> tuple[Any, Any]:
    """An array of binaries or strings as one buffer, and where each of them ends. Null is empty."""
    if array.null_count:
        array = pc.fill_null(array, "" if pa.types.is_string(array.type) else b"")
    if not pa.types.is_binary(array.type) and not pa.types.is_string(array.type):
        array = array.cast(pa.binary())
    if not len(array):
        return b"", np.empty(0, np.int64)
    _, offsets, data = array.buffers()
    places = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    first, last = int(places[0]), int(places[-1])
    return b"" if data is None else memoryview(data)[first:last], places[1:] - first


def header_entries(array: pa.Array, dropped: frozenset[str]) -> HeaderEntries:
    """Headers as a map, or as a list of pairs of key and value, without those that are not the caller's to give. Null is none."""
    if array.null_count:
        array = array.take(pa.array(np.arange(len(array))))  # what lies below a null is gone then
    places = array.offsets.to_numpy().astype(np.int64)
    first, count = int(places[0]), int(places[-1] - places[0])
    is_map = pa.types.is_map(array.type)
    names = (array.keys if is_map else array.values.field(0)).slice(first, count)
    values = (array.items if is_map else array.values.field(1)).slice(first, count)
    row_ends: Any = places[1:] - first
    kept = pc.invert(pc.is_in(names, value_set=pa.array(sorted(dropped), names.type)))
    if count and not pc.all(kept).as_py():
        names, values = names.filter(kept), values.filter(kept)
        row_ends = np.concatenate(([0], np.cumsum(kept.to_numpy(zero_copy_only=False))))[row_ends]
    return row_ends, *bytes_and_ends(names), *bytes_and_ends(values)


def timestamps_ns(array: pa.Array) -> Numbers:
    """Times in ns; negative for null, and for what was before 1970, which no header can say."""
    micros = array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64())
    found: Numbers = pc.fill_null(micros, -1).to_numpy().astype(np.int64)
    return np.where(found < 0, -1, found * 1_000)


def key_partitions(keys: pa.Array, count: int) -> Numbers:
    """CRC-32 of IEEE modulo the number of partitions, as `bascule.client.publish.partitioner` has it. No key counts as an empty one."""
    if count == 1:
        return np.zeros(len(keys), np.int64)
    data, ends = bytes_and_ends(keys)
    view, crc32, start = memoryview(data), zlib.crc32, 0
    found = np.empty(len(keys), np.int64)
    for row, end in enumerate(ends.tolist()):
        found[row] = crc32(view[start:end])
        start = end
    return found % count
