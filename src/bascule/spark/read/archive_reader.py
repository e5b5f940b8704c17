"""The read of a task with an archive: offsets of one partition, from the archive and from the log, each once and in order.

A task gets offsets, and the files in which the driver has seen them. A file that is gone when it is opened was replaced by a compaction
of the archive: the task then reads the commits itself and continues at its offset. Records that the log no longer has may be in the
archive by now. Records that the archive has lost are read from the log, and are missing if the log does not have them either.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from bascule.errors import ArchiveDamaged, DataLost, OffsetBelowStart, StreamNotFound, StreamRecreated
from bascule.lake.archive import Archive
from bascule.lake.coverage import ArchiveFollower, Coverage
from bascule.lake.delta.place import LakePlace
from bascule.lake.facts import DataFile
from bascule.lake.holes import Span
from bascule.lake.ranges import read_rows
from bascule.spark.options.reading import SourceOptions
from bascule.spark.read import cluster
from bascule.spark.read.state import PartitionState, StreamState, held, lost, lost_everywhere

if TYPE_CHECKING:
    import pyarrow as pa


class RangeReader:
    """Reads offsets of one partition from the archive and from the log. Lives as long as a task."""

    def __init__(
        self,
        place: LakePlace,
        options: SourceOptions,
        stream: str,
        stream_id: int | None,
        partition: int,
        columns: tuple[str, ...],
        log: cluster.Cluster | None = None,
    ) -> None:
        """`log` is the connection to read the log with; without it, that of this process."""
        self._path = place
        self._options = options
        self._stream = stream
        self._stream_id = stream_id
        self._partition = partition
        self._columns = columns
        self._log = log
        self._position = 0
        self._archived: Coverage | None = None

    def read(self, start: int, end: int, archived: Coverage | None) -> Iterator[pa.RecordBatch]:
        """The rows from `start` to before `end`, once and in order. `archived` is what the driver has seen of the archive."""
        self._position, self._archived = start, archived
        while self._position < end:
            first, following = self._next_held(self._archived, end)
            if self._archived is not None and first == self._position:
                yield from self._from_archive(self._archived, following)
            else:
                yield from self._from_log(first, end)

    def _next_held(self, known: Coverage | None, end: int) -> Span:
        """The next offsets that an archive has; empty, at the end of the range, if it has no more of the range."""
        held = [] if known is None else known.held(self._position, end)
        return held[0] if held else (end, end)

    # ── the archive ──────────────────────────────────────────────────────────────────────────────

    def _from_archive(self, archived: Coverage, end: int) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for one in archived.files_in(self._position, end):
            try:
                yield from self._from_file(one, end)
            except OSError as error:
                self._look_again(error, one)
                return
            except pa.ArrowException as error:
                raise damaged(self._path, one, str(error)) from None
        self._position = end

    def _from_file(self, one: DataFile, end: int) -> Iterator[pa.RecordBatch]:
        is_whole = self._position <= one.first_offset and one.last_offset < end
        rows = 0
        for following, batch in read_rows(self._path, one, self._position, end, self._columns):
            self._position = following
            rows += batch.num_rows
            yield batch
        if is_whole and rows != one.rows:
            raise damaged(self._path, one, f"it has {rows} rows, {one.rows} were written")
        self._position = max(self._position, min(end, one.last_offset + 1))

    def _look_again(self, error: OSError, one: DataFile) -> None:
        follower = follow(self._path)
        if self._sees_anew(follower, one):
            return
        look_again(follower, error, one)
        self._sees_anew(follower, one)

    def _sees_anew(self, follower: ArchiveFollower, gone: DataFile) -> bool:
        """Whether the commits that this process has read name other files than the driver did."""
        known = self._coverage(follower)
        if known is None or any(one.path == gone.path for one in known.files):
            return False
        self._archived = known
        return True

    def _coverage(self, follower: ArchiveFollower) -> Coverage | None:
        by_id = follower.stream(self._stream)
        stream_id = max(by_id, default=0) if self._stream_id is None else self._stream_id
        return by_id.get(stream_id, {}).get(self._partition)

    # ── the log ──────────────────────────────────────────────────────────────────────────────────

    def _from_log(self, until: int, end: int) -> Iterator[pa.RecordBatch]:
        asked = self._columns if "offset" in self._columns else (*self._columns, "offset")
        live = self._log or cluster.connect(self._options.connection)
        try:
            for batch in live.read(
                self._stream, self._partition, self._position, until, stream_id=self._stream_id, columns=asked
            ):
                if batch.num_rows:
                    self._position = batch.column(asked.index("offset"))[-1].as_py() + 1
                    yield batch if asked == self._columns else batch.select(list(self._columns))
            self._position = until
        except OffsetBelowStart as error:
            self._instead_of_removed(error.log_start_offset)
        except StreamNotFound as error:
            self._instead_of_deleted(error, end)
        except StreamRecreated:
            if not self._options.skips_lost:
                raise
            self._step_over(end)

    def _step_over(self, end: int) -> None:
        """The stream is gone: continue with the offsets of the range that the archive has."""
        self._position, _ = self._next_held(self._archived, end)

    def _instead_of_removed(self, log_start_offset: int) -> None:
        """Retention removed records before this task read them: read those that were archived since the range was planned."""
        known = self._now_archived()
        has_it = known is not None and self._position in known
        if has_it and (self._options.falls_back or self._options.skips_lost):
            self._archived = known
        elif self._options.skips_lost:
            following, _ = self._next_held(known, log_start_offset)
            self._archived, self._position = known, max(self._position + 1, following)
        elif has_it:
            error = lost(self._stream, self._partition, self._position, log_start_offset)
            error.hint = f"the archive {self._path} has them: set `onDataLoss` to `archive` to read them from there"
            raise error
        else:
            raise self._lost(known, log_start_offset)

    def _instead_of_deleted(self, error: StreamNotFound, end: int) -> None:
        if self._options.skips_lost:
            self._step_over(end)
            return
        if not self._options.falls_back:
            raise error
        known = self._now_archived()
        if known is None or self._position not in known:
            raise DataLost(
                f"`{self._stream}`/{self._partition} was to be read from offset {self._position} to {end - 1}, but the stream is "
                f"deleted and the archive {self._path} has {held(known)}",
                hint="what was not archived is gone; to go on without it set `onDataLoss` to `skip`",
            )
        self._archived = known

    def _now_archived(self) -> Coverage | None:
        follower = follow(self._path)
        follower.look()
        return self._coverage(follower)

    def _lost(self, known: Coverage | None, log_start_offset: int) -> DataLost:
        """The error that planning would raise."""
        live = self._log or cluster.connect(self._options.connection)
        found = live.streams([self._stream]).get(self._stream)
        state = PartitionState(
            log_start_offset=log_start_offset,
            end_offset=log_start_offset,
            log_end_offset=log_start_offset,
            size_bytes=0,
            archived=known,
        )
        stream = StreamState(
            name=self._stream,
            id=self._stream_id or 0,
            subject="",
            partitions={self._partition: state},
            retention={} if found is None else found.retention,
            archive=str(self._path),
        )
        following, _ = self._next_held(known, log_start_offset)
        return lost_everywhere(stream, self._partition, (self._position, following))


# ── the folder ───────────────────────────────────────────────────────────────────────────────────

_followed: dict[tuple[int, LakePlace], ArchiveFollower] = {}


def follow(place: LakePlace) -> ArchiveFollower:
    """The archive as this process has last read it. Kept, because Spark reuses its Python workers."""
    key = os.getpid(), place
    return _followed.setdefault(key, ArchiveFollower(Archive(place)))


def look_again(follower: ArchiveFollower, error: OSError, one: DataFile | None = None) -> None:
    """Read new commits after a file was not found: they name its successor. Raises ArchiveDamaged if there is none."""
    before = follower.version
    if error.errno in (errno.ENOENT, errno.ESTALE):
        follower.look()
        if follower.version != before:
            return
    raise damaged(follower.archive.place, one, error.strerror or str(error)) from None


def damaged(place: LakePlace, one: DataFile | None, why: str) -> ArchiveDamaged:
    """The error for a file that is not what was written."""
    named = "a file"
    if one is not None:
        named = (
            f"{one.path}, which has offsets {one.first_offset} to {one.last_offset} of `{one.stream}`/{one.partition},"
        )
    return ArchiveDamaged(
        f"{named} of the archive {place} cannot be read: {why}",
        hint="run `bascule pipeline verify`; without `history` only the log is read",
    )
