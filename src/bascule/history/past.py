"""The archive of a stream beside its log: where a read begins, and the rows up to where the log alone goes on.

Which offset is read from where, and which ones are lost, is decided as for `format("bascule")` with `history`: the same functions.
Everything here blocks; a subscription calls it in threads.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from bascule.client.arrow.reader import FlightConnection
from bascule.client.connection.options import TlsOptions, wrong
from bascule.errors import BasculeError, StreamNotFound
from bascule.flight.arrow import require
from bascule.spark.options.declaration import BATCH
from bascule.spark.options.positions import Position
from bascule.spark.options.reading import OnDataLoss, SourceOptions, TimestampStrategy, source_options
from bascule.spark.read.archive_reader import RangeReader
from bascule.spark.read.cluster import FlightCluster
from bascule.spark.read.one_stream import OneStream
from bascule.spark.read.resolve import require as must_exist
from bascule.spark.read.resolve import select, starting_offsets
from bascule.spark.read.state import PartitionState, StreamState, must_be_there, resume

if TYPE_CHECKING:
    import pyarrow as pa

_LOSS_RIGHT: Final = "'fail', 'skip' or 'archive'"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveChoice:
    """What a caller says about the archive and the cluster."""

    path: str | os.PathLike[str]
    storage: Mapping[str, str] | None = field(default=None, repr=False)
    on_data_loss: str = "fail"
    servers: str | Iterable[str]
    tls: bool | TlsOptions | None = None
    token: str | None = field(default=None, repr=False)
    timeout: float = 5.0

    def options(self, stream: str) -> SourceOptions:
        """Checked. Raises InvalidOption, and MissingExtra without pyarrow."""
        require()
        if self.on_data_loss not in set(OnDataLoss):
            raise wrong("on_data_loss", self.on_data_loss, _LOSS_RIGHT)
        if not isinstance(self.tls, bool | TlsOptions | None):
            raise wrong("tls", type(self.tls).__name__, "True or `TlsOptions` where `history` is read")
        given = {"stream": stream, "history": os.fspath(self.path), "onDataLoss": self.on_data_loss}
        if self.storage:
            given["storageOptions"] = json.dumps(dict(self.storage))
        return source_options(given, BATCH)

    def connect(self) -> FlightConnection:
        return FlightConnection(self.servers, tls=self.tls, token=self.token, reach=self.timeout)


class Past:
    """One stream: its archive and its log. Holds a connection until it is closed."""

    def __init__(self, choice: ArchiveChoice, stream: str) -> None:
        self._options = choice.options(stream)
        self._stream = stream
        self._live = FlightCluster(self._options.connection, choice.connect())
        self._joined = OneStream(self._live, self._options.history.place, self._options)

    def close(self) -> None:
        """End reads; nothing of it can be used afterwards."""
        self._live.close()

    # ── where ────────────────────────────────────────────────────────────────────────────────────

    def look(self) -> StreamState:
        """The stream as it is now, with what is archived. Raises StreamNotFound, and what is wrong with the archive."""
        with _in_our_words():
            streams = select(self._options.streams, self._joined)
            return must_exist(self._options.streams, streams)[self._stream]

    def start(self, stream: StreamState, number: int, position: Position) -> int:
        """Where a partition is begun. Raises DataLost for offsets that are neither archived nor in the log."""
        given = replace(
            self._options.start, starting_offsets=position, strategy=TimestampStrategy.LATEST, starting_timestamp=None
        )
        options = replace(self._options, start=given)
        with _in_our_words():
            found = starting_offsets(options, {self._stream: stream.only((number,))}, self._joined)
        return found.streams[self._stream].next[number]

    def offset_at(self, stream: StreamState, number: int, moment_ns: int) -> int | None:
        """The first offset that is not older; None if all are."""
        return self._joined.offsets_at({stream.name: {number: moment_ns}})[stream.name][number]

    def archived_end(self, stream: StreamState, number: int, position: int) -> int:
        """Where the log alone has what follows: `position` if that is so already. Raises DataLost for what is lost before it."""
        state = _partition(stream, number)
        end = max(position, position if state.archived is None else state.archived.end)
        if not self._options.skips_lost:
            with _in_our_words():
                must_be_there(stream, number, position, max(end, state.log_start_offset))
        return end

    def resumed(self, stream: StreamState, number: int, position: int) -> int:
        """The first offset from `position` on that can be read."""
        return resume(_partition(stream, number), position)

    # ── rows ─────────────────────────────────────────────────────────────────────────────────────

    def read(
        self, stream: StreamState, number: int, start: int, end: int, columns: tuple[str, ...]
    ) -> Iterator[pa.RecordBatch]:
        """Offsets of a partition, each once and in order, from where they are."""
        archived = _partition(stream, number).archived
        reader = RangeReader(
            self._options.history.place,
            self._options,
            self._stream,
            stream.id,
            number,
            columns,
            log=self._live,
        )
        with _in_our_words():
            yield from reader.read(start, end, None if archived is None else archived.within(start, end))

    @property
    def options(self) -> SourceOptions:
        return self._options

    @property
    def joined(self) -> OneStream:
        """Archive and log as one cluster."""
        return self._joined


@contextlib.contextmanager
def _in_our_words() -> Iterator[None]:
    """Errors name the option as this side has it."""
    try:
        yield
    except BasculeError as error:
        error.message = error.message.replace("onDataLoss", "on_data_loss")
        error.hint = None if error.hint is None else error.hint.replace("onDataLoss", "on_data_loss")
        error.args = (error.message,)
        raise


def _partition(stream: StreamState, number: int) -> PartitionState:
    found = stream.partitions.get(number)
    if found is None:
        raise StreamNotFound(f"the stream {stream.name!r} has no partition {number}, it has {len(stream.partitions)}")
    return found


def read_batches(
    choice: ArchiveChoice,
    stream: str,
    start: Any,
    end: Any,
    partitions: Iterable[int] | None,
    columns: tuple[str, ...],
) -> list[pa.RecordBatch]:
    """The rows of a stream between two positions, partition by partition: for `read_table`."""
    from bascule.history.positions import batch_options
    from bascule.spark.read.resolve import batch_ranges

    past = Past(choice, stream)
    try:
        found = past.look()
        numbers = list(found.partitions) if partitions is None else list(partitions)
        for number in numbers:
            _partition(found, number)
        ranges, _, streams = batch_ranges(batch_options(past.options, stream, numbers, start, end), past.joined)
        by_number = {key.partition: each for key, each in ranges.items()}
        return [
            batch
            for number in numbers
            for batch in past.read(streams[stream], number, by_number[number].start, by_number[number].end, columns)
        ]
    finally:
        past.close()
