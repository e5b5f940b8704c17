"""The archive job: streams, continuously or once, into Parquet files, each message exactly once.

Every micro-batch is written by Spark's tasks and then becomes part of the archive with one commit. A crash before the commit leaves
files that no commit names; the next start removes them. The archive itself is the only memory: the job's own query always starts at its
end, with a checkpoint that does not outlive it. A query that has another memory, as that of a pipeline, may repeat batches or begin
after the archive's end: what is there already is left out, and what is missing is read from the log, or the batch fails.

`ArchiveJob.write` is what a query's foreachBatch calls, this job's own or any other's that hands on messages as the source gave them.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from bascule.errors import (
    BasculeError,
    CallerError,
    CheckpointMismatch,
    DiskFull,
    InvalidOption,
    StreamNotFound,
    StreamRecreated,
)
from bascule.flight.schema import COLUMNS
from bascule.lake.archive import FOLDER, Archive
from bascule.lake.compaction import Compaction
from bascule.lake.delta.place import LakePlace
from bascule.lake.facts import ArchiveState, Commit, Covered, DataFile, Lost
from bascule.lake.files import FILE_BYTES_DEFAULT, STATS_DDL, WriteTask, from_stats
from bascule.lake.housekeeping import RETENTION_SECONDS_DEFAULT, Housekeeping
from bascule.pipeline.jobs.archive_losses import Floors, begun_by, covered_by, not_read
from bascule.pipeline.jobs.archive_ranges import Plan, RangesTask, RowsTask, noted_plan, noted_ranges
from bascule.spark.errors.failures import from_spark
from bascule.spark.errors.full_disk import with_folder
from bascule.spark.options.declaration import STREAMING, read_section
from bascule.spark.options.positions import EARLIEST_OFFSET, OTHERS
from bascule.spark.options.reading import ConnectionOptions, SourceOptions, source_options
from bascule.spark.read.batch_reader import ReadRange
from bascule.spark.read.cluster import stream_state
from bascule.spark.read.resolve import INTERNAL_PREFIX, covers_subject
from bascule.spark.read.state import StreamState
from bascule.spark.read.state import lost as lost_error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from bascule.client.arrow.reader import FlightConnection
    from bascule.client.blocking import BlockingClient

TRIGGER_SECONDS_DEFAULT: Final = 10.0
PATIENCE_SECONDS: Final = 10.0
"""How long a job that starts waits for brokers."""
REACH_SECONDS: Final = 0.2
CURSOR_SECONDS_MAX: Final = 2.0
"""How long a cursor, which is advice, may hold up the next batch."""
MERGED_BYTES_MAX: Final = 64 << 20
"""Files that the job merges by itself do not get larger: `bascule pipeline compact` does the rest."""
COMPACT_BYTES_MAX: Final = 64 << 20
"""About so much is merged at a time: a second of one core."""
COMPACT_EVERY_DEFAULT: Final = 10
COMPRESSIONS: Final = ("zstd", "snappy", "gzip", "lz4", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOptions:
    path: str
    streams: tuple[str, ...] = ()
    pattern: str | None = None
    """In place of names: a regular expression for them."""
    subject: str | None = None
    """In place of names: a NATS subject with wildcards that covers the streams' subjects."""
    servers: str = "127.0.0.1:9292"
    file_bytes: int = FILE_BYTES_DEFAULT
    compression: str = "zstd"
    trigger_seconds: float = TRIGGER_SECONDS_DEFAULT
    source: dict[str, str] = field(default_factory=dict)
    """More options of the source: limits, TLS, what happens on a loss."""
    storage: dict[str, str] = field(default_factory=dict, repr=False)
    """Options of the object store, beside those of the environment."""
    checkpoint: str | None = None
    """Of the query whose batches are written, if it is not the job's own."""
    compact_every: int = COMPACT_EVERY_DEFAULT
    """Merge small files after so many commits; 0 for never."""
    keep_replaced_seconds: float = RETENTION_SECONDS_DEFAULT
    """How long replaced files stay, for readers that have planned with them."""
    cursor: str | None = None
    """Its progress in the brokers, as a cursor of this name: `archive:<folder>` without one, no cursor for ""."""

    def __post_init__(self) -> None:
        chosen = [name for name in ("streams", "pattern", "subject") if getattr(self, name)]
        if len(chosen) != 1:
            said = "nothing says" if not chosen else f"`{'` and `'.join(chosen)}` both say"
            raise InvalidOption(f"{said} which streams to archive", hint="name streams, or give one pattern or subject")
        LakePlace.of(self.path)  # raises for a scheme that is not supported
        if self.file_bytes < 1:
            raise InvalidOption(f"`file_bytes` is {self.file_bytes}", hint="it must be 1 or more")
        if self.compression not in COMPRESSIONS:
            raise InvalidOption(
                f"`compression` is `{self.compression}`", hint=f"it must be one of {', '.join(COMPRESSIONS)}"
            )
        if self.compact_every < 0:
            raise InvalidOption(f"`compact_every` is {self.compact_every}", hint="it must be 1 or more, or 0 for never")
        if not self.keep_replaced_seconds >= 0:
            raise InvalidOption(
                f"`keep_replaced_seconds` is {self.keep_replaced_seconds:g}", hint="it must be 0 or more"
            )
        if not self.trigger_seconds > 0:
            raise InvalidOption(f"`trigger_seconds` is {self.trigger_seconds:g}", hint="it must be more than 0")
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise InvalidOption(
                    f"`pattern` is `{self.pattern}`", hint=f"it must be a regular expression: {error}"
                ) from None

    @property
    def place(self) -> LakePlace:
        return LakePlace.of(self.path, self.storage)

    @property
    def checkpoint_path(self) -> Path:
        """Of the query. The job's own is of no use after it, so it may lie on this machine."""
        if self.checkpoint is not None:
            return Path(self.checkpoint.removeprefix("file://"))
        if self.place.local is not None:
            return self.place.local / FOLDER / "checkpoint"
        name = hashlib.sha256(self.place.uri.encode()).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"bascule-archive-{name}-{os.getpid()}"

    @property
    def cursor_name(self) -> str:
        return f"archive:{self.place.name}" if self.cursor is None else self.cursor

    def source_options(self) -> dict[str, str]:
        """As the source wants them."""
        chosen = {
            "subscribe": ",".join(self.streams) or None,
            "subscribePattern": self.pattern,
            "subjectPattern": self.subject,
        }
        which = {name: value for name, value in chosen.items() if value}
        return {"servers": self.servers, "startingOffsets": "earliest", **which, **self.source}

    def _credentials(self) -> dict[str, Any]:
        return read_section(ConnectionOptions, self.source).credentials

    def tables(self) -> FlightConnection:
        """A connection with what the source is given."""
        from bascule.client.arrow.reader import FlightConnection

        return FlightConnection(self.servers, **self._credentials(), patience=PATIENCE_SECONDS)

    def client(self) -> BlockingClient:
        """One for small things."""
        from bascule.client import blocking

        return blocking.connect(
            self.servers, **self._credentials(), timeout=CURSOR_SECONDS_MAX, patience=CURSOR_SECONDS_MAX
        )

    def stream_ids(self) -> dict[str, int]:
        """Of the streams there are. Raises StreamNotFound for one that is named and is not, Unavailable when no broker answers."""
        with self.tables() as tables:
            found = tables.offsets(self.streams or None)
        return {name: int(stream["id"]) for name, stream in found.items() if self._is_meant(name, stream["subject"])}

    def _is_meant(self, name: str, subject: str) -> bool:
        if self.streams:
            return True
        if name.startswith(INTERNAL_PREFIX):
            return False
        if self.pattern is not None:
            return re.fullmatch(self.pattern, name) is not None
        return covers_subject((self.subject or "").split("."), subject.split("."))


class ArchiveJob:
    """Lives in the driver. Holds the archive's lock between `open` and `close`."""

    def __init__(
        self, spark: SparkSession, options: ArchiveOptions, on_commit: Callable[[Commit], None] = lambda _: None
    ) -> None:
        self._spark = spark
        self._options = options
        self._on_commit = on_commit
        self.archive = Archive(options.place)
        self.failure: Exception | None = None
        """Why the query has ended, if it was a batch."""
        self._held = contextlib.ExitStack()
        self._is_open = False
        self._state = ArchiveState()
        self._stream_ids: dict[str, int] = {}
        self._cursors = ArchiveCursors(options)
        self._housekeeping = Housekeeping(self.archive, options.keep_replaced_seconds)
        self._compaction = Compaction(
            self.archive, target_bytes=min(options.file_bytes, MERGED_BYTES_MAX), compression=options.compression
        )
        self._appended = 0
        self._not_merged = ""
        self._is_own_query = False
        self._passed: dict[tuple[str, int], int] = {}
        """Ends of planned ranges in which there was nothing to archive."""

    def open(self) -> None:
        options = self._options
        there = options.stream_ids()  # before anything is made: a misspelt stream leaves no folder
        self._stream_ids = dict(there)
        self.archive.create(list(options.streams), pattern=options.pattern, subject=options.subject)
        with contextlib.ExitStack() as held:
            held.enter_context(self.archive.writing())
            held.callback(self._cursors.close)
            self._state = self._housekeeping.begin()
            self.archive.must_be_as(self._state)
            self._notice_lost_commits()
            for stream, stream_id, _ in self._state.next_offsets:
                self._must_be_the_same(stream, stream_id, self._stream_ids.get(stream, stream_id))
                self._stream_ids[stream] = stream_id
            if options.checkpoint is None or not any((options.checkpoint_path / "offsets").glob("[0-9]*")):
                must_go_on(options, {(key[0], key[2]): end for key, end in self._state.next_offsets.items()}, there)
            self._held = held.pop_all()
        self._is_open = True

    def close(self) -> None:
        self._is_open = False
        self._held.close()

    def _notice_lost_commits(self) -> None:
        head = self.archive.head()
        if head is not None and head.version > self._state.number:
            print(
                f"bascule: {self.archive.place} ends at commit {self._state.number}, but commit {head.version} was made: the newest "
                "ones are lost; continuing from there with the log",
                file=sys.stderr,
            )

    def _must_be_the_same(self, stream: str, known: int, found: int) -> None:
        if found != known:
            raise StreamRecreated(
                f"{stream!r} was deleted and created again since {self.archive.place} was begun",
                hint="archive it into another folder: offsets of the former stream are not those of this one",
            )

    # ── running ──────────────────────────────────────────────────────────────────────────────────

    def start(self, *, once: bool = False) -> StreamingQuery:
        """Begin; with `once` it ends when everything is archived that was there at the start."""
        options = self._options
        must_be_the_driver(self._spark)
        named = ", ".join(options.streams) or options.pattern or options.subject
        self._is_own_query = options.checkpoint is None
        source = options.source_options()
        if self._is_own_query:
            if (
                self._state.next_offsets
            ):  # before the first commit, only the checkpoint knows where the archive was to begin
                shutil.rmtree(options.checkpoint_path, ignore_errors=True)
            source["startingOffsets"] = self._starting_offsets(source["startingOffsets"])
        writer = (
            self._spark.readStream.format("bascule")
            .options(**source)
            .load()
            .writeStream.queryName(f"archive {named}")
            .option("checkpointLocation", str(options.checkpoint_path))
            .foreachBatch(self._take)
        )
        if once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{options.trigger_seconds:g} seconds").start()

    def _starting_offsets(self, otherwise: str) -> str:
        """The archive's end, for the source; `otherwise` for a new archive."""
        ends = {(stream, number): end for (stream, _, number), end in self._state.next_offsets.items()}
        if not ends or otherwise != "earliest":
            return otherwise
        found: dict[str, dict[str, int]] = {OTHERS: {"0": EARLIEST_OFFSET}}
        with self._options.tables() as tables:
            for stream in sorted({stream for stream, _ in ends} & self._options.stream_ids().keys()):
                logs = must_reach(tables, self.archive.place, stream, ends)
                found[stream] = {str(number): ends.get((stream, number), EARLIEST_OFFSET) for number in logs}
        return json.dumps(found)

    def _take(self, batch: DataFrame, batch_id: int) -> None:
        """Of what is raised here, Spark hands on a text."""
        try:
            self.write(batch, batch_id)
        except Exception as error:
            self.failure = error
            raise

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Make the messages of a batch part of the archive. Of one that comes again what is there already is left out, all of it if
        all is there. `batch` has the columns of the source as they were read; others beside them do not matter.
        """
        if not self._is_open:
            raise CallerError(
                "the archive is written while it is open", hint="call `open` before, and `close` at the end"
            )
        must_be_messages(batch)
        for stream, stream_id in self._noted_ids(batch_id).items():
            # Before anything is left out because the archive has its offset: of another stream.
            self._must_be_the_same(stream, self._stream_ids.get(stream, stream_id), stream_id)
        try:
            self._append(batch, batch_id)
        except Exception as error:
            if isinstance(from_spark(error), DiskFull):
                self._give_back_room()
            raise

    def _give_back_room(self) -> None:
        """After a batch that found no room: remove the files that its other tasks have finished. The commits are read again, because
        one may be there although writing it raised an error."""
        with contextlib.suppress(BasculeError, OSError):
            self._housekeeping.begin()

    def _append(self, batch: DataFrame, batch_id: int) -> None:
        floors = {(stream, partition): end for (stream, _, partition), end in self._state.next_offsets.items()}
        floors = {key: max(end, self._passed.get(key, 0)) for key, end in floors.items()}
        plan = noted_plan(self._options.checkpoint_path, batch_id)
        task = WriteTask(self.archive.place.absolute, floors, self._options.file_bytes, self._options.compression)
        before, lost = self._refilled(plan, floors, task, batch_id)
        files, not_there = from_stats(row.asDict() for row in self._written(batch, batch_id, task).collect())
        if self._skips_lost and not self._is_own_query:
            not_there += not_read(self.archive.place, plan, floors, files, self._noted_ids(batch_id), self._logs)
        files, lost = before + files, lost + not_there
        if files or lost:
            ids = self._ids_of({one.stream for one in files} | {one.stream for one in lost}, batch_id)
            now_ns = time.time_ns()
            self._commit(
                tuple(replace(one, stream_id=ids[one.stream]) for one in files),
                tuple(replace(one, stream_id=ids[one.stream], at_ns=now_ns) for one in lost),
                plan,
                batch_id,
            )
        self._passed |= {key: one.end for key, one in plan.items()}

    def _refilled(
        self, plan: Plan, floors: Floors, task: WriteTask, batch_id: int
    ) -> tuple[list[DataFile], list[Lost]]:
        """The offsets between the archive's end and a batch that begins after it: the archive has lost commits, or the query its notes.
        They are read from the log. Raises DataLost if the log no longer has them, unless that is allowed."""
        ids = self._noted_ids(batch_id)
        ranges = tuple(
            ReadRange(stream, ids.get(stream, self._stream_ids.get(stream)), number, floors[stream, number], one.start)
            for (stream, number), one in sorted(plan.items())
            if one.start > floors.get((stream, number), one.start)
        )
        if not ranges:
            return [], []
        source = source_options(self._options.source_options(), STREAMING)
        return from_stats(row.asDict() for row in self._ranged(task, source, ranges).collect())

    def _ranged(self, task: WriteTask, source: SourceOptions, ranges: tuple[ReadRange, ...]) -> DataFrame:
        numbers = self._spark.range(0, len(ranges), 1, max(1, len(ranges)))
        return numbers.mapInArrow(RangesTask(task, source, ranges), STATS_DDL)

    @functools.cached_property
    def _skips_lost(self) -> bool:
        return source_options(self._options.source_options(), STREAMING).skips_lost

    def _logs(self, streams: Collection[str]) -> dict[str, StreamState]:
        found = {}
        with self._options.tables() as tables:
            for name in streams:
                with contextlib.suppress(StreamNotFound):
                    found[name] = stream_state(name, tables.offsets([name])[name])
        return found

    def _written(self, batch: DataFrame, batch_id: int, task: WriteTask) -> DataFrame:
        """What tasks say of the files that they write: of the rows of a batch or, in this job's own query, of what they read."""
        if self._is_own_query:
            source = source_options(self._options.source_options(), STREAMING)
            ranges = noted_ranges(self._options.checkpoint_path, batch_id, source, task.next_offsets)
            if ranges is not None:
                return self._ranged(task, source, tuple(ranges))
        return batch.select(*COLUMNS).mapInArrow(RowsTask(task), STATS_DDL)

    def _ids_of(self, streams: set[str], batch_id: int) -> dict[str, int]:
        """Which streams of these names the batch was read from: Spark's note on the batch says it. Without such a note, which a batch
        of another kind has not, brokers are asked about streams that are new."""
        found = self._noted_ids(batch_id)
        if streams - found.keys() - self._stream_ids.keys():
            found = {**self._options.stream_ids(), **found}
        for stream in streams:
            if stream not in found and stream not in self._stream_ids:
                raise StreamNotFound(f"messages of `{stream}` are to be archived, and there is no such stream any more")
            known = self._stream_ids.setdefault(stream, found.get(stream, self._stream_ids.get(stream, 0)))
            self._must_be_the_same(stream, known, found.get(stream, known))
        return {stream: self._stream_ids[stream] for stream in streams}

    def _noted_ids(self, batch_id: int) -> dict[str, int]:
        return read_stream_ids(self._options.checkpoint_path / "offsets" / str(batch_id))

    def _commit(self, files: tuple[DataFile, ...], lost: tuple[Lost, ...], plan: Plan, batch_id: int) -> None:
        covered = covered_by(files, lost)
        commit = Commit(
            self._state.number + 1,
            "append",
            time.time_ns(),
            self._options.cursor_name,
            batch_id,
            files,
            (),
            covered,
            lost,
            begun_by(covered, plan, self._state.next_offsets.keys()),
        )
        commit = self.archive.commit(commit, self._state)
        self._state.apply(commit)
        self._on_commit(commit)
        self._cursors.set(commit.covered)
        self._housekeeping.after(commit, self._state)
        self._appended += 1
        if self._options.compact_every and self._appended % self._options.compact_every == 0:
            self._compact()

    def _compact(self) -> None:
        """Merge small files, a little at a time, because a batch waits for it. Files that cannot be merged stay, with a warning."""
        try:
            commit = self._compaction.round(self._state, COMPACT_BYTES_MAX)
        except BasculeError as error:
            if error.message != self._not_merged:
                print(f"bascule: files of {self.archive.place} were not merged: {error}", file=sys.stderr)
            self._not_merged = error.message
            return
        if commit is not None:
            self._on_commit(commit)
            self._housekeeping.after(commit, self._state)


class ArchiveCursors:
    """Tell brokers how far the archive is. It is advice: whatever comes of it, the archive goes on, and waits for a moment at most."""

    def __init__(self, options: ArchiveOptions) -> None:
        self._options = options
        self._client: BlockingClient | None = None
        self._waiting: dict[tuple[str, int], int] = {}
        self._failed = ""

    def set(self, covered: tuple[Covered, ...]) -> None:
        if not self._options.cursor_name:
            return
        self._waiting |= {(one.stream, one.partition): one.end - 1 for one in covered}
        self._send()

    def _send(self) -> None:
        """The oldest first; what takes too long is left for the next time."""
        deadline = time.monotonic() + CURSOR_SECONDS_MAX
        try:
            if self._client is None:
                self._client = self._options.client()
            while self._waiting and time.monotonic() < deadline:
                (stream, partition), offset = next(iter(self._waiting.items()))
                self._client.set_cursor(self._options.cursor_name, stream, partition, offset)
                del self._waiting[stream, partition]
            self._failed = ""
        except BasculeError as error:
            if error.message != self._failed:  # once, not with every batch
                print(f"bascule: cursor `{self._options.cursor_name}` was not set: {error}", file=sys.stderr)
            self._failed = error.message

    def close(self) -> None:
        if self._client is not None:
            if self._waiting:
                self._send()
            self._client.close()
            self._client = None


def read_stream_ids(noted: Path) -> dict[str, int]:
    """What Spark noted of a batch before it ran it: a line of JSON for each source, of ours with the ids of its streams."""
    try:
        lines = noted.read_text("utf-8").splitlines()[2:]
    except OSError:
        return {}
    found: dict[str, int] = {}
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, AttributeError):
            found |= {name: int(stream["id"]) for name, stream in json.loads(line).items() if "id" in stream}
    return found


def must_be_the_driver(spark: SparkSession) -> None:
    """Raises CallerError with Spark Connect: the process that holds the lock must be the one that writes."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise CallerError(
            "this process would hold the archive, and with Spark Connect another one would write it",
            hint="use `local[*]` or a cluster's master such as `spark://…`; or a pipeline's file, whose sinks the server opens",
        )


def must_go_on(options: ArchiveOptions, next_offsets: dict[tuple[str, int], int], there: Collection[str]) -> None:
    """Raises DataLost if retention removed records after the last commit: a query without a checkpoint starts at the start of the log,
    and would not notice. `there` are the streams that exist."""
    archived = {key: end for key, end in next_offsets.items() if key[0] in there}
    if not archived or source_options(options.source_options(), STREAMING).skips_lost:
        return
    with options.tables() as tables:
        logs = tables.offsets({stream for stream, _ in archived})
    for (name, number), end in archived.items():
        log = stream_state(name, logs[name])
        if log.partitions[number].log_start_offset > end:
            raise lost_error(name, number, end, log.partitions[number].log_start_offset, log.retention)


def must_reach(
    tables: FlightConnection, place: LakePlace, stream: str, ends: dict[tuple[str, int], int]
) -> dict[int, Any]:
    """The partitions of a stream, whose logs reach the archive's ends. A new leader may learn its high watermark late, so it is
    waited for. Raises CheckpointMismatch for a log that is shorter than the archive."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        logs: dict[int, Any] = tables.offsets([stream])[stream]["partitions"]
        short = [number for number, log in logs.items() if log["high_watermark"] + 1 < ends.get((stream, number), 0)]
        if not short:
            return logs
        number = short[0]
        log, end = logs[number], ends[stream, number]
        log_end = log["high_watermark"] + 1
        if time.monotonic() > deadline or log["log_end"] < end:
            raise CheckpointMismatch(
                f"the archive {place} has offsets up to {end - 1} of `{stream}`/{number}, but the log ends at {log_end}",
                hint="the cluster lost records, the log was restored from an older copy, or the archive is another cluster's",
            )
        time.sleep(REACH_SECONDS)


def must_be_messages(batch: DataFrame) -> None:
    types = dict(batch.dtypes)
    missing = [name for name in COLUMNS if name not in types]
    if missing:
        raise CallerError(
            f"a batch without the column `{missing[0]}` cannot be archived", hint="hand on messages as they were read"
        )
    if types["value"] != "binary":
        raise CallerError(
            f"the column `value` is {types['value'][:60]}, an archive keeps it as it was published: binary",
            hint="archive before values are decoded, or leave out `valueFormat`",
        )


def run_archive(spark: SparkSession, options: ArchiveOptions, *, once: bool, **callbacks: Any) -> ArchiveState:
    """The whole job: returns when the query has ended, with the archive as it is then."""
    must_be_the_driver(spark)
    job = ArchiveJob(spark, options, **callbacks)
    job.open()
    try:
        run_query(job, options.checkpoint_path, once=once)
    finally:
        job.close()
        if options.place.local is None:
            shutil.rmtree(options.checkpoint_path, ignore_errors=True)
    return job.archive.state()


class QueryJob(Protocol):
    """What has a query, and knows why its last batch failed."""

    failure: Exception | None

    def start(self, *, once: bool = False) -> StreamingQuery: ...


def run_query(job: QueryJob, checkpoint: Path, *, once: bool) -> None:
    """Until it ends. Raises the error that ended it, as ours."""
    query = None
    try:
        query = job.start(once=once)
        query.awaitTermination()
    except BasculeError:
        raise
    except Exception as error:
        raise with_folder(from_spark(job.failure or error), checkpoint) from None
    finally:
        if query is not None:
            query.stop()
