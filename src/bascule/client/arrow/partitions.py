"""Assigns the rows of an Arrow batch to the partitions of a stream."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bascule.client.arrow.message_columns import Numbers, key_partitions


class RoundRobinRows:
    """Partitions in turn for the rows that name none and have no key; each stream has its own turn."""

    def __init__(self, first: int = 0) -> None:
        self._first = first
        self._next: dict[str, int] = {}

    def take(self, stream: str, rows: int, count: int) -> Numbers:
        first = self._next.get(stream, self._first % count)
        self._next[stream] = (first + rows) % count
        return (first + np.arange(rows, dtype=np.int64)) % count


def automatic_partitions(stream: str, rows: pa.RecordBatch, count: int, turns: RoundRobinRows) -> Numbers:
    """Return the partition of each row: of the column `partition` if it is not null, else by the key, else round robin."""
    names = rows.schema.names
    given = rows.column("partition") if "partition" in names else None
    if given is not None and not given.null_count:
        return integers(given)
    if count == 1 and given is None:
        return np.zeros(rows.num_rows, np.int64)
    key = rows.column("key") if "key" in names else None
    if key is None or key.null_count == rows.num_rows:
        found = turns.take(stream, rows.num_rows, count)
    else:
        found = key_partitions(key, count)
        if key.null_count:
            keyless = pc.is_null(key).to_numpy(zero_copy_only=False)
            found[keyless] = turns.take(stream, int(keyless.sum()), count)
    if given is not None:
        is_given = pc.is_valid(given).to_numpy(zero_copy_only=False)
        found[is_given] = integers(pc.fill_null(given, 0))[is_given]
    return found


def by_partition(rows: pa.RecordBatch, chosen: Numbers) -> Iterator[tuple[int, pa.RecordBatch, Numbers]]:
    """Yield each partition, its rows in their order, and their places in the batch. The batch must have rows."""
    if int(chosen.min()) == int(chosen.max()):
        yield int(chosen[0]), rows, np.arange(rows.num_rows, dtype=np.int64)
        return
    order = np.argsort(chosen, kind="stable")
    ordered = chosen[order]
    starts = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(ordered)]
    sorted_rows = rows.take(pa.array(order))
    for start, end in pairwise(starts):
        yield int(ordered[start]), sorted_rows.slice(start, end - start), order[start:end]


def integers(column: pa.Array) -> Numbers:
    found: Numbers = column.cast(pa.int64()).to_numpy().astype(np.int64)
    return found
