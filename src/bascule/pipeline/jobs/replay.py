"""The replay job: messages of an archive or a log once more into a stream, each exactly once, in their order.

No Spark: a record batch of Arrow Flight or Parquet becomes publish requests in a kernel, so that one process does what brokers can
take, and starts at once. Keys, values and headers are those of the original; its time is in a header `bascule-timestamp`, since a
message's own time is when it was stored. Messages are numbered, and the target itself says how far a replay has come (see
replay_trace.py): one that died is run again with its id and goes on.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from bascule.client.arrow.columns import ColumnPublisher, MessageColumns, Producer, column_publisher
from bascule.errors import (
    CallerError,
    InvalidOption,
    OutOfSequence,
    ProducerFenced,
    RowsChanged,
    StreamExists,
    StreamNotFound,
)
from bascule.pipeline.jobs.replay_source import Position, ReplaySource, Span
from bascule.pipeline.jobs.replay_trace import ReplayIdentity, chunk_end, chunk_start, find_chunks

if TYPE_CHECKING:
    from array import array

    import pyarrow as pa

    from bascule.client.arrow.message_columns import Numbers
    from bascule.client.arrow.reader import FlightConnection
    from bascule.client.blocking import BlockingClient

WAYS: Final = ("same", "key", "round-robin")
WINDOW: Final = 32_768
"""Messages under way to a broker."""
PUBLISH_SECONDS_MAX: Final = 120.0
PIECE_SECONDS: Final = 0.1
"""With a rate, messages are sent in pieces of so much time."""
PIECE_ROWS_MAX: Final = 32_768
ATTEMPTS_MAX: Final = 5
AGAIN_SECONDS: Final = 0.2

_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,32}")
_MADE_ID: Final = re.compile(r"r([0-9a-f]{8})-[0-9a-f]{6}")
_CLOCKS_APART_SECONDS: Final = 3600


def new_id() -> str:
    """A new id for a replay. It contains the time, so that a search for its messages need not look further back."""
    return f"r{int(time.time()):08x}-{secrets.token_hex(3)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    target: str
    id: str | None = None
    """Of a replay that may have been begun; without it, it is a new one."""
    start: Position = None
    end: Position = None
    way: str = "same"
    """Which partition a message goes to: that of the original (`same`), by its `key`, or `round-robin`, by its offset."""
    rate: float | None = None
    """Messages in a second; without it, as many as brokers take."""
    create: bool = False
    """Make the target if it is not there, with as many partitions as the source has or `partitions` says."""
    partitions: int | None = None

    def __post_init__(self) -> None:
        if self.id is not None and not _ID.fullmatch(self.id):
            raise InvalidOption(f"`id` is `{self.id}`", hint="it must be 1 to 32 letters, digits, `.`, `_` or `-`")
        if self.way not in WAYS:
            raise InvalidOption(f"`way` is `{self.way}`", hint=f"it must be one of {', '.join(WAYS)}")
        if self.rate is not None and not self.rate > 0:
            raise InvalidOption(f"`rate` is {self.rate:g}", hint="it must be more than 0 messages in a second")
        if self.partitions is not None and self.partitions < 1:
            raise InvalidOption(f"`partitions` is {self.partitions}", hint="it must be 1 or more")
        start: Any = self.start
        end: Any = self.end
        if start is not None and type(start) is type(end) and start > end:
            raise InvalidOption(f"`start` is {start}, behind `end`, {self.end}", hint="give the earlier one first")


@dataclass(slots=True)
class ReplayReport:
    id: str
    messages: int = 0
    """That were sent, and are stored."""
    duplicates: int = 0
    """Of these: how many were there already, from a run before."""
    resumed: dict[int, int] = field(default_factory=dict)
    """By partition of the source: the offset at which this run went on."""
    lost: int = 0
    """Offsets that retention removed before they were archived, in a job with `onDataLoss=skip`."""
    seconds: float = 0.0


class Replay:
    def __init__(
        self, client: BlockingClient, tables: FlightConnection, source: ReplaySource, options: ReplayOptions
    ) -> None:
        self._client = client
        self._tables = tables
        self._source = source
        self._options = options
        self.id = options.id or new_id()
        self._identity = ReplayIdentity(self.id, source.name, options.way)
        self._pace = _Pace(options.rate)
        self._report = ReplayReport(self.id)

    def run(self, on_progress: Callable[[int, int], None] = lambda _done, _total: None) -> ReplayReport:
        """Until all of it is stored. `on_progress` hears how many offsets are done, and of how many."""
        begun = time.monotonic()
        is_begun = self._options.id is not None
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                self._run(on_progress, is_begun)
                break
            except ProducerFenced as error:
                # Messages of a crashed run were stored after we looked at the target, or another run is active: look again.
                if attempt == ATTEMPTS_MAX:
                    raise ProducerFenced(
                        f"another run of the replay `{self.id}` is further than this one: {error.message}",
                        hint="let that one go on, or give another id for another replay",
                    ) from None
                is_begun = True
                time.sleep(AGAIN_SECONDS)
        self._report.seconds = time.monotonic() - begun
        return self._report

    def _run(self, on_progress: Callable[[int, int], None], is_begun: bool) -> None:
        spans = self._source.spans(self._options.start, self._options.end)
        newest = self._prepare(spans)
        lanes = self._lanes(spans, newest, is_begun)
        self._report.lost = sum(self._source.lost(number, span) for number, span in spans.items())
        total = sum(max(0, span.end - span.start) for span in spans.values())
        publisher = column_publisher(self._client, window=WINDOW, timeout=PUBLISH_SECONDS_MAX)
        try:
            self._pump(lanes, publisher, lambda: on_progress(sum(one.done for one in lanes), total))
        except OutOfSequence as error:
            raise OutOfSequence(
                f"the target does not know any more how far the replay `{self.id}` is: {error.message}",
                hint="more than 4,096 others have published to it since, or it was cut; replay into a new stream",
            ) from None
        finally:
            publisher.close()

    # ── before ───────────────────────────────────────────────────────────────────────────────────

    def _prepare(self, spans: dict[int, Span]) -> dict[int, int]:
        """The target, checked or made: by partition, its newest offset."""
        options = self._options
        needed = max(spans, default=-1) + 1
        if options.target == self._source.name.rpartition("#")[0] and self._is_the_same_stream():
            raise CallerError(f"`{options.target}` would be replayed into itself", hint="give another target")
        try:
            found = self._tables.offsets([options.target])[options.target]["partitions"]
        except StreamNotFound:
            if not options.create:
                raise StreamNotFound(
                    f"there is no stream `{options.target}` to replay into",
                    hint="create it first, or have it created with `--create`",
                ) from None
            found = self._create(options.partitions or max(1, needed))
        if options.way == "same" and len(found) < needed:
            raise CallerError(
                f"`{options.target}` has {len(found)} partitions, the source has messages of partition {needed - 1}",
                hint="choose partitions by `key` or `round-robin`, or a target with as many",
            )
        return {number: int(one["log_end"]) - 1 for number, one in found.items()}

    def _is_the_same_stream(self) -> bool:
        try:
            there = self._tables.offsets([self._options.target])[self._options.target]["id"]
        except StreamNotFound:
            return False
        return self._source.name == f"{self._options.target}#{there}"

    def _create(self, partitions: int) -> dict[int, Any]:
        with contextlib.suppress(StreamExists):  # another process has created it
            self._client.create_stream(self._options.target, partitions=partitions)
        found: dict[int, Any] = self._tables.offsets([self._options.target])[self._options.target]["partitions"]
        return found

    def _lanes(self, spans: dict[int, Span], newest: dict[int, int], is_begun: bool) -> list[_ReplayLane]:
        is_empty = all(offset < 0 for offset in newest.values())
        begun = self._found(spans, newest) if is_begun and not is_empty else {}
        lanes = []
        for number, span in sorted(spans.items()):
            start = begun.get(number, span.start)
            if number in begun:
                self._report.resumed[number] = start
            if start < span.end:
                lanes.append(_ReplayLane(self, number, Span(start, span.end), newest, is_resumed=number in begun))
                lanes[-1].skipped = max(0, start - span.start)
        return lanes

    def _found(self, spans: dict[int, Span], newest: dict[int, int]) -> dict[int, int]:
        everybody = set(spans)
        wanted = {
            number: {number} & everybody if self._options.way == "same" else everybody
            for number in newest
            if self._options.way != "same" or number in spans
        }
        made = _MADE_ID.fullmatch(self.id)
        since_ns = (int(made[1], 16) - _CLOCKS_APART_SECONDS) * 1_000_000_000 if made else None
        return find_chunks(self._tables, self._options.target, self._identity, wanted, since_ns)

    # ── sending ──────────────────────────────────────────────────────────────────────────────────

    def _pump(self, lanes: list[_ReplayLane], publisher: ColumnPublisher, on_piece: Callable[[], None]) -> None:
        """A piece of each partition in turn: it is read while those of the others, and its own former one, are under way."""
        waiting = deque(lanes)
        while waiting:
            lane = waiting.popleft()
            piece = lane.next_piece()
            lane.settle()
            on_piece()
            if piece is not None:
                self._pace.wait(piece.num_rows)
                lane.send(piece, publisher)
                waiting.append(lane)


class _ReplayLane:
    """One partition of the source: its position, and what is under way. One piece at a time, so that nothing overtakes."""

    def __init__(self, job: Replay, number: int, span: Span, newest: dict[int, int], *, is_resumed: bool) -> None:
        self._job = job
        self._number = number
        self._newest = newest
        self._span = span
        self._pieces = self._cut(span, job._pace.rows_max)
        self._chunk = span.start
        self._is_repeating = is_resumed
        self._sequences: dict[int, int] = {}
        self._under_way: list[tuple[int, pa.RecordBatch, Future[array[int]]]] = []
        self._settled = self._sent = span.start
        self.skipped = 0

    @property
    def done(self) -> int:
        """Offsets that need no more thought."""
        return self.skipped + self._settled - self._span.start

    def _cut(self, span: Span, rows_max: int) -> Iterator[pa.RecordBatch]:
        """Pieces of at most so many rows, none of which crosses the end of a chunk."""
        import numpy as np

        for batch in self._job._source.read(self._number, span.start, span.end):
            offsets = batch["offset"].to_numpy()
            at = 0
            while at < batch.num_rows:
                end = int(np.searchsorted(offsets, chunk_end(int(offsets[at]))))
                end = min(end, at + rows_max)
                yield batch.slice(at, end - at)
                at = end

    def next_piece(self) -> pa.RecordBatch | None:
        return next(self._pieces, None)

    def send(self, piece: pa.RecordBatch, publisher: ColumnPublisher) -> None:
        first = piece["offset"][0].as_py()
        if first >= chunk_end(self._chunk):
            self._chunk, self._sequences, self._is_repeating = chunk_start(first), {}, False
        self._sent = piece["offset"][-1].as_py() + 1
        for number, rows in self._routed(piece):
            sequence = self._sequences.get(number, 0)
            self._sequences[number] = sequence + rows.num_rows
            who = Producer(self._job._identity.producer(self._number).encode(), self._chunk, sequence)
            columns = replace(replayed_columns(rows), producer=who)
            self._under_way.append((number, rows, publisher.publish(self._job._options.target, number, columns)))

    def settle(self) -> None:
        """Wait until what is under way is stored."""
        for number, rows, future in self._under_way:
            offsets = future.result()
            self._job._report.messages += rows.num_rows
            if self._is_repeating:
                self._check(number, rows, offsets)
        self._under_way = []
        self._settled = self._sent

    def _routed(self, piece: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        count = len(self._newest)
        way = self._job._options.way
        if way == "same" or count == 1:
            yield self._number if way == "same" else 0, piece
            return
        yield from _grouped(piece, _partitions(piece, way, count))

    def _check(self, number: int, rows: pa.RecordBatch, offsets: array[int]) -> None:
        """Brokers go by numbers and drop what has a number they know. A source whose chunk is not what it was has other messages under
        these numbers: that is found here, and not hidden."""
        old = [(row, at) for row, at in enumerate(offsets) if at <= self._newest[number]]
        self._job._report.duplicates += len(old)
        known = {at: row for row, at in old if at >= 0}
        if not known:
            return
        target = self._job._options.target
        for batch in self._job._tables.read(target, number, min(known), max(known) + 1, ("offset", "key", "value")):
            for at, key, value in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                row = known.get(at)
                if row is None or (key or b"", value) == (rows["key"][row].as_py() or b"", rows["value"][row].as_py()):
                    continue
                raise RowsChanged(
                    f"the source is not what it was when the replay `{self._job.id}` began: offset "
                    f"{rows['offset'][row].as_py()} of partition {self._number} is not the message that is stored at "
                    f"`{target}`/{number}, offset {at}",
                    hint="compaction or retention have changed it; replay it anew into another stream",
                )


def _partitions(piece: pa.RecordBatch, way: str, count: int) -> Numbers:
    """By key, where there is one; else in turns, by the offset, so that it is the same whenever it is sent."""
    import numpy as np
    import pyarrow.compute as pc

    from bascule.client.arrow.message_columns import key_partitions

    turns: Numbers = piece["offset"].to_numpy().astype(np.int64) % count
    if way == "round-robin":
        return turns
    return np.where(pc.is_null(piece["key"]).to_numpy(zero_copy_only=False), turns, key_partitions(piece["key"], count))


def _grouped(piece: pa.RecordBatch, chosen: Numbers) -> Iterator[tuple[int, pa.RecordBatch]]:
    import numpy as np
    import pyarrow as pa

    for number in np.unique(chosen).tolist():
        yield number, piece.take(pa.array(np.flatnonzero(chosen == number)))


def replayed_columns(rows: pa.RecordBatch) -> MessageColumns:
    """As they were, with their times in a header. One that has a time there already, from a replay before, keeps that."""
    import numpy as np
    import pyarrow.compute as pc

    from bascule.client.arrow.message_columns import PRODUCER_HEADERS, TIMESTAMP_HEADER, header_entries, message_columns

    headers = rows["headers"]
    places = headers.offsets.to_numpy()
    names = headers.keys.slice(int(places[0]), int(places[-1] - places[0]))
    at = pc.indices_nonzero(pc.equal(names, TIMESTAMP_HEADER)).to_numpy()
    columns = message_columns(rows)
    if not len(at):
        return columns
    times: Any = np.array(columns.timestamps)
    times[np.searchsorted(places - places[0], at, side="right") - 1] = -1
    return replace(columns, headers=header_entries(headers, PRODUCER_HEADERS), timestamps=times)


class _Pace:
    """So many messages in a second, and no burst after a pause."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._due = 0.0

    @property
    def rows_max(self) -> int:
        """Of one piece."""
        return PIECE_ROWS_MAX if self._rate is None else max(1, min(PIECE_ROWS_MAX, int(self._rate * PIECE_SECONDS)))

    def wait(self, rows: int) -> None:
        if self._rate is None:
            return
        now = time.monotonic()
        if self._due > now:
            time.sleep(self._due - now)
        self._due = max(self._due, now) + rows / self._rate
