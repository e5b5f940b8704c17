"""The writer of a table of latest messages: gives tasks what they need, and makes one snapshot of what they have written.

After a crash before the snapshot, its files are named by no snapshot and the batch is repeated. After a crash after the snapshot, all
offsets of the repeated batch are below those that the table has read to. A query that starts again from an earlier offset changes
nothing either.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from bascule.errors import InvalidOption, InvalidSchema, StreamRecreated
from bascule.lake.latest.bucket import BucketTask, Merged
from bascule.lake.latest.merge import ORDER
from bascule.lake.latest.table import BUCKETS_DEFAULT, BUCKETS_MAX, KEEP_SECONDS_DEFAULT, LatestStore, TableSnapshot

if TYPE_CHECKING:
    import pyarrow as pa

EXPIRE_SECONDS_MAX: Final = 60.0
NULL_KEYS: Final = ("keep", "skip", "fail")


class LatestWriter:
    """Holds the table's lock between `open` and `close`."""

    def __init__(
        self,
        path: str,
        *,
        buckets: int = BUCKETS_DEFAULT,
        keep_seconds: float = KEEP_SECONDS_DEFAULT,
        null_keys: str = "keep",
        compression: str = "zstd",
    ) -> None:
        if not 1 <= buckets <= BUCKETS_MAX:
            raise InvalidOption(f"`buckets` is {buckets}", hint=f"it must be from 1 to {BUCKETS_MAX}")
        if not keep_seconds >= 0:
            raise InvalidOption(f"`keep_seconds` is {keep_seconds:g}", hint="it must be 0 or more")
        if null_keys not in NULL_KEYS:
            raise InvalidOption(f"`null_keys` is `{null_keys}`", hint=f"it must be one of {', '.join(NULL_KEYS)}")
        self.store = LatestStore(path)
        self._wanted_buckets = buckets
        self._keep_seconds = keep_seconds
        self._null_keys = null_keys
        self._compression = compression
        self._held = contextlib.ExitStack()
        self._expires_at = 0.0
        self.snapshot = TableSnapshot()
        self.buckets = buckets
        """As the table has them: how many there are was settled when it was made."""

    def open(self, streams: Iterable[str], key: str, deleted: str | None = None) -> None:
        rules = {"key": key, "deleted": deleted, "null_keys": self._null_keys}
        described = self.store.create(list(streams), self._wanted_buckets, **rules)
        self.buckets = int(described["buckets"])
        with contextlib.ExitStack() as held:
            held.enter_context(self.store.writing())
            self.store.remove_leftovers()
            self.snapshot = self.store.snapshot()
            self._held = held.pop_all()

    def close(self) -> None:
        self._held.close()

    # ── a batch ──────────────────────────────────────────────────────────────────────────────────

    def task(self, schema: pa.Schema, key: str) -> BucketTask:
        """For the tasks of one batch whose rows have this schema."""
        self._must_fit(schema)
        return BucketTask(
            str(self.store.path.resolve()),
            _nullable(schema).serialize().to_pybytes(),
            key,
            self.snapshot.floors(),
            self.snapshot.buckets,
            self._null_keys,
            self._compression,
        )

    def _must_fit(self, schema: pa.Schema) -> None:
        missing = [name for name in ORDER if name not in schema.names]
        if missing:
            raise InvalidSchema(
                f"the rows have no column `{missing[0]}`, which tells the newest message of a key",
                hint=f"keep the columns {', '.join(ORDER)}",
            )
        if not self.snapshot.number:
            return
        known, given = _types(self.snapshot.arrow_schema()), _types(schema)
        if known != given:
            names = [name for name in {**known, **given} if known.get(name) != given.get(name)]
            raise InvalidSchema(
                f"the rows are not those of {self.store.path}: `{names[0]}` is {given.get(names[0], 'missing')} now, "
                f"it was {known.get(names[0], 'not there')}",
                hint="write them into another folder, or select the columns that the table has",
            )

    def commit(
        self, merged: Iterable[Merged], batch: int, stream_ids: Mapping[str, int], schema: pa.Schema
    ) -> TableSnapshot | None:
        """Make what the tasks have written the table. None if they have changed nothing."""
        outcomes = list(merged)
        changed = [one.bucket for one in outcomes if one.bucket is not None]
        if not changed:
            return None
        ends: dict[tuple[str, int, int], int] = {}
        for one in outcomes:
            for stream, found in one.ends.items():
                for partition, end in found.items():
                    place = stream, stream_ids[stream], partition
                    ends[place] = max(end, ends.get(place, 0))
        self.must_be_the_same({stream: stream_ids[stream] for stream, _, _ in ends})
        following = self.snapshot.following(time.time_ns(), batch, _nullable(schema), changed, ends)
        self.store.commit(following)
        self.snapshot = following
        self._expire()
        return following

    def _expire(self) -> None:
        """Not with every batch: all snapshots that are kept are read for it, and a fast query makes thousands."""
        now = time.monotonic()
        if now >= self._expires_at:
            self.store.expire(self._keep_seconds, time.time_ns())
            self._expires_at = now + min(self._keep_seconds / 10, EXPIRE_SECONDS_MAX)

    def must_be_the_same(self, stream_ids: Mapping[str, int]) -> None:
        """Raises StreamRecreated for a stream that is not the one that the table was made of."""
        for stream, known, _ in self.snapshot.next_offsets:
            if stream_ids.get(stream, known) != known:
                raise StreamRecreated(
                    f"{stream!r} was deleted and created again since {self.store.path} was begun",
                    hint="give another folder: offsets of the former stream are not those of this one",
                )


def _types(schema: pa.Schema) -> dict[str, Any]:
    return {column.name: column.type for column in schema}


def _nullable(schema: pa.Schema) -> pa.Schema:
    """What may be null may differ from query to query; a table holds both."""
    import pyarrow as pa

    return pa.schema([column.with_nullable(True) for column in schema])
