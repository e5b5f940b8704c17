"""Merges a batch into the rows of a table, keeping the newest message of each key: a function of Arrow tables, without files.

A key's newest message is the last one by time, then leader epoch and offset. Times never go back within a partition, so there it is the
order of the log; between partitions, whose offsets are independent, it is the only order. A deleted key leaves a grave, the key with
the place of the message that deleted it: without it, an older message of another partition that arrives later would restore the key.

Messages without a key are all kept, as compaction keeps them in the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bascule.flight.arrow import require

if TYPE_CHECKING:
    import pyarrow as pa

ORDER: Final = ("timestamp", "leaderEpoch", "offset", "stream", "partition")
"""The columns that order messages; every table has them. Stream and partition settle what nothing else does."""
DELETED: Final = "_deleted"
"""The column of a batch that says whether a message deletes its key. It is not kept."""

Floors = Mapping[tuple[str, int], int]
"""By stream and partition: what lies below has been merged before."""


@dataclass(frozen=True, slots=True)
class KeptRows:
    """What a table, or a bucket of it, holds. No key is in both, and none is twice in one."""

    rows: pa.Table
    graves: pa.Table
    """Key and `ORDER` of messages that deleted their key."""


def graves_schema(schema: pa.Schema, key: str) -> pa.Schema:
    names = [key, *(name for name in ORDER if name != key)]
    return require().schema([schema.field(name) for name in names])


def empty(schema: pa.Schema, key: str) -> KeptRows:
    return KeptRows(schema.empty_table(), graves_schema(schema, key).empty_table())


def merge(kept: KeptRows, batch: pa.Table, key: str, floors: Floors, *, graves_from_us: int = 0) -> KeptRows | None:
    """What there is with the batch, or None if it changes nothing. The batch has the columns of the rows and `DELETED`.

    Graves older than `graves_from_us` (of the messages' own times) are filled in when something changes anyway.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    batch = _above(batch, floors)
    has_key = pc.is_valid(batch[key])
    unkeyed = batch.filter(pc.and_not(pc.invert(has_key), batch[DELETED]))  # nothing to show, nothing to delete
    incoming = _newest(batch.filter(has_key), key)
    incoming = _without_older(_without_older(incoming, kept.rows, key), kept.graves, key)
    if not incoming.num_rows and not unkeyed.num_rows:
        return None
    dead = incoming.filter(incoming[DELETED])
    live = incoming.filter(pc.invert(incoming[DELETED]))
    replaced = incoming[key].combine_chunks()
    rows = pa.concat_tables(
        [_without_keys(kept.rows, key, replaced), *(part.select(kept.rows.column_names) for part in (live, unkeyed))]
    )
    graves = pa.concat_tables([_without_keys(kept.graves, key, replaced), dead.select(kept.graves.column_names)])
    return KeptRows(rows.combine_chunks(), _filled(graves, graves_from_us).combine_chunks())


def _above(batch: pa.Table, floors: Floors) -> pa.Table:
    """Without what was merged before."""
    import pyarrow.compute as pc

    for (stream, partition), floor in floors.items():
        ours = pc.and_(pc.equal(batch["stream"], stream), pc.equal(batch["partition"], partition))
        batch = batch.filter(pc.invert(pc.and_(ours, pc.less(batch["offset"], floor))))
    return batch


def _newest(rows: pa.Table, key: str) -> pa.Table:
    """The newest row of each key."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if not rows.num_rows:
        return rows
    sort_keys: list[Any] = [(name, "ascending") for name in ORDER]
    rising = pc.sort_indices(rows, sort_keys=sort_keys).to_numpy()
    keys = rows[key].combine_chunks().dictionary_encode()
    newest = np.zeros(len(keys.dictionary), np.int64)
    newest[keys.indices.to_numpy()[rising]] = rising  # of all that are assigned to one place the last one stays
    return rows.take(pa.array(newest))


def _without_older(incoming: pa.Table, known: pa.Table, key: str) -> pa.Table:
    """Incoming rows whose key is not known, or known by an older row."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not incoming.num_rows or not known.num_rows:
        return incoming
    places = pc.index_in(incoming[key], value_set=known[key].combine_chunks())
    is_known = pc.is_valid(places)
    older = known.select(ORDER).take(pc.fill_null(places, pa.scalar(0, places.type)))
    return incoming.filter(pc.or_(pc.invert(is_known), _is_newer(incoming, older)))


def _is_newer(left: pa.Table, right: pa.Table) -> Any:
    """For each row, whether the left message is newer than the right one."""
    import pyarrow.compute as pc

    found: Any = None
    for name in reversed(ORDER):
        greater = pc.greater(left[name], right[name])
        found = greater if found is None else pc.or_(greater, pc.and_(pc.equal(left[name], right[name]), found))
    return found


def _without_keys(rows: pa.Table, key: str, keys: pa.Array) -> pa.Table:
    import pyarrow.compute as pc

    if not rows.num_rows or not len(keys):
        return rows
    return rows.filter(pc.invert(pc.is_in(rows[key], value_set=keys)))


def _filled(graves: pa.Table, from_us: int) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not graves.num_rows or from_us <= 0:
        return graves
    return graves.filter(pc.greater_equal(graves["timestamp"].cast(pa.int64()), from_us))
