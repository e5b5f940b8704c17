"""A cluster with an archive in front of its logs, for the option `history`. state.py decides which offsets are read from where.

The log is asked first and the archive after it: records that retention removes in between are in the archive by then. In the other
order, an archive that is being written would seem to have a hole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from bascule.errors import CheckpointMismatch, InvalidOption, StreamRecreated
from bascule.lake.coverage import Partitions
from bascule.lake.delta.place import LakePlace
from bascule.lake.ranges import offset_at
from bascule.spark.options.positions import ByPartition
from bascule.spark.options.reading import SourceOptions
from bascule.spark.read import cluster
from bascule.spark.read.archive_reader import RangeReader, follow, look_again
from bascule.spark.read.cluster import Cluster
from bascule.spark.read.state import PartitionState, Streams, StreamState, clipped, held, joined

if TYPE_CHECKING:
    import pyarrow as pa


def refreshed(options: SourceOptions, frozen: Streams) -> Streams:
    """Streams whose ends are fixed, with what has been archived of them meanwhile."""
    if options.history.path is None:
        return frozen
    return OneStream(cluster.connect(options.connection), options.history.place, options).refreshed(frozen)


class OneStream:
    """A cluster whose streams begin where their archive begins."""

    def __init__(self, live: Cluster, place: LakePlace, options: SourceOptions) -> None:
        self._live = live
        self._options = options
        self._path = place
        self._follower = follow(place)

    # ── which streams ────────────────────────────────────────────────────────────────────────────

    def subjects(self) -> Mapping[str, str]:
        found = dict(self._live.subjects())
        if self._options.falls_back:
            self._follower.look()
            found = dict.fromkeys(self._follower.streams, "") | found
        return found

    def streams(self, names: Collection[str]) -> Streams:
        live = self._live.streams(names)
        self._follower.look()
        self._must_be_of_one(names)
        found = {name: self._with_history(stream) for name, stream in live.items()}
        if self._options.falls_back:
            gone = (self._archived_alone(name) for name in names if name not in live)
            found |= {stream.name: stream for stream in gone if stream is not None}
        return {name: found[name] for name in names if name in found}

    def refreshed(self, frozen: Streams) -> Streams:
        self._follower.look()
        return {name: self._clipped(stream) for name, stream in frozen.items()}

    def _clipped(self, stream: StreamState) -> StreamState:
        archived = self._follower.stream(stream.name).get(stream.id, {})
        partitions = {number: clipped(state, archived.get(number)) for number, state in stream.partitions.items()}
        return replace(stream, partitions=partitions)

    def _with_history(self, stream: StreamState) -> StreamState:
        archived = self._archived(stream)
        partitions = stream.partitions.items()
        ahead = {n: archived[n] for n, state in partitions if n in archived and archived[n].end > state.log_end_offset}
        if ahead:
            self._must_have_grown(stream, ahead)
        return replace(
            stream,
            partitions={number: joined(state, archived.get(number)) for number, state in partitions},
            archive=str(self._path),
        )

    def _archived(self, stream: StreamState) -> Partitions:
        by_id = self._follower.stream(stream.name)
        if by_id and stream.id not in by_id and not self._options.skips_lost:
            raise StreamRecreated(
                f"the archive {self._path} is of a former stream `{stream.name}`, with id {max(by_id)}; "
                f"now there is one with id {stream.id}",
                hint="leave `history` out, or archive the present stream into another folder and name that; "
                "with `onDataLoss` set to `skip` it is read from its log alone",
            )
        return by_id.get(stream.id, {})

    def _must_have_grown(self, stream: StreamState, ahead: Partitions) -> None:
        """Between two questions a log may grow, and an archive with it. A log that is still shorter has lost what was archived."""
        again = self._live.streams([stream.name]).get(stream.name)
        if again is None or again.id != stream.id:
            return
        for number, archived in ahead.items():
            log_end_offset = again.partitions[number].log_end_offset
            if log_end_offset < archived.end:
                raise CheckpointMismatch(
                    f"the archive {self._path} has {held(archived)} of `{stream.name}`/{number}, but the log ends at {log_end_offset}",
                    hint="the cluster lost records, the log was restored from an older copy, or the archive is another cluster's",
                )

    def _archived_alone(self, name: str) -> StreamState | None:
        """A stream that is deleted, as far as it was archived."""
        by_id = self._follower.stream(name)
        if not by_id:
            return None
        stream_id = max(by_id)
        partitions = {
            number: PartitionState(
                log_start_offset=one.end, end_offset=one.end, log_end_offset=one.end, size_bytes=0, archived=one
            )
            for number, one in sorted(by_id[stream_id].items())
        }
        return StreamState(
            name=name, id=stream_id, subject="", partitions=partitions, archive=str(self._path), is_live=False
        )

    def _must_be_of_one(self, names: Collection[str]) -> None:
        """An archive that has nothing of any stream is the wrong one, unless it was just begun."""
        if not names or not self._follower.streams.isdisjoint(names):
            return
        described = self._follower.archive.describe()
        meant = described.get("streams") or []
        if self._follower.streams or (meant and set(meant).isdisjoint(names)):
            of = ", ".join(f"`{name}`" for name in sorted(self._follower.streams) or meant)
            read = ", ".join(f"`{name}`" for name in names)
            raise InvalidOption(
                f"option `history` is `{self._path}`, which is an archive of {of}, not of {read}",
                hint="it must be the archive of the streams that are read",
            )

    # ── when ─────────────────────────────────────────────────────────────────────────────────────

    def offsets_at(self, timestamps_ns: ByPartition) -> Mapping[str, Mapping[int, int | None]]:
        states = self.streams(list(timestamps_ns))
        live = {name: asked for name, asked in timestamps_ns.items() if name in states and states[name].is_live}
        answers = self._live.offsets_at(live) if live else {}
        return {
            name: {
                number: self._at(states[name], number, at, answers.get(name, {}).get(number))
                for number, at in asked.items()
            }
            for name, asked in timestamps_ns.items()
            if name in states
        }

    def _at(self, stream: StreamState, number: int, moment_ns: int, in_log: int | None) -> int | None:
        """The log's answer, or the archive's if that is before it."""
        if in_log is not None and in_log > stream.partitions[number].log_start_offset:
            return in_log  # the log has an older record than was asked for, so the archive has no older answer
        while True:
            coverage = self._follower.stream(stream.name).get(stream.id, {}).get(number)
            if coverage is None:
                return in_log
            try:
                found = offset_at(self._follower.archive.place, coverage, -(-moment_ns // 1_000))
            except OSError as error:
                look_again(self._follower, error)
                continue
            return min((offset for offset in (found, in_log) if offset is not None), default=None)

    # ── the rest ─────────────────────────────────────────────────────────────────────────────────

    def read(
        self, stream: str, partition: int, start: int, end: int, *, stream_id: int | None, columns: tuple[str, ...]
    ) -> Iterator[pa.RecordBatch]:
        by_id = self._follower.stream(stream)
        coverage = by_id.get(max(by_id, default=0) if stream_id is None else stream_id, {}).get(partition)
        archived = None if coverage is None else coverage.within(start, end)
        return RangeReader(self._path, self._options, stream, stream_id, partition, columns).read(start, end, archived)

    def fetch_cursor(self, cursor: str, stream: str, partition: int) -> int | None:
        return self._live.fetch_cursor(cursor, stream, partition)

    def set_cursor(self, cursor: str, stream: str, partition: int, offset: int) -> None:
        self._live.set_cursor(cursor, stream, partition, offset)

    def close(self) -> None:
        self._live.close()
