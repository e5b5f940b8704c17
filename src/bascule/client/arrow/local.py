"""Reading the log of a broker on the same machine: the broker hands over open files, the record batches are made here.

It is an optimisation: anything unexpected raises `NoShortCut`, and the reader requests record batches from its position. The same
checks are made as in the broker: each checksum, and that no offset is missing.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from bascule import limits
from bascule.flight.schema import take_batch, wanted_bits
from bascule.flight.tickets import ReadTicket
from bascule.kernels.arrow import columns as kernel
from bascule.kernels.arrow.columns import Columns
from bascule.kernels.records import records

if TYPE_CHECKING:
    import pyarrow as pa

ANSWER_BYTES_MAX: Final = 4096


class NoShortCut(Exception):
    """The rest has to be requested as record batches; the text says why, for the debug log."""


@dataclass(frozen=True, slots=True)
class Files:
    """What the broker has opened: handles, and which bytes of them; they hold everything below `next_offset`."""

    ranges: tuple[tuple[int, int, int], ...]
    next_offset: int

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        for handle, _, _ in self.ranges:
            os.close(handle)


def read_local(name: str, ticket: ReadTicket, start: int, end: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Record batches of `start <= offset < end`, and with each up to where the range is covered. Raises NoShortCut."""
    made = Columns(ticket.stream.encode(), ticket.partition, wanted_bits(ticket.columns))
    rows = _LocalRows(made, ticket, end)
    while start < end:
        with ask(name, replace(ticket, start=start, end=end)) as files:
            for place in files.ranges:
                for covered in rows.of_file(start, *place):
                    yield covered, take_batch(made, ticket.columns)
                    start = covered
            start = files.next_offset
    yield end, take_batch(made, ticket.columns)


class _LocalRows:
    """Fills columns from files. ColumnRows of one file may be taken together with those of the next."""

    def __init__(self, made: Columns, ticket: ReadTicket, end: int) -> None:
        self._made = made
        self._ticket = ticket
        self._end = end
        self._buffer = bytearray(limits.FLIGHT_READ_BYTES)
        self._next_offset = 0

    def of_file(self, start_offset: int, handle: int, position: int, stop: int) -> Iterator[int]:
        """Up to where rows are there, each time that they are to be taken."""
        self._next_offset = max(self._next_offset, start_offset)
        while position < stop and self._next_offset < self._end:
            batches, used = self._checked(handle, position, stop)
            self._made.load(batches, self._next_offset, self._end)
            while (outcome := self._made.fill(self._ticket.batch_rows, self._ticket.batch_bytes)) == kernel.FULL:
                yield self._made.next_offset
            if outcome == kernel.DAMAGED:
                raise NoShortCut("a batch that is sealed, or passes its checksum and cannot be read")
            self._next_offset = self._made.next_offset
            position += used
            if not used and self._next_offset < self._end:
                raise NoShortCut("a batch is after the range: a hole, or damage")

    def _checked(self, handle: int, position: int, stop: int) -> tuple[memoryview, int]:
        """Whole batches from `position` on that are what they should be, and how many bytes that is; 0 behind the range."""
        data = self._bytes(handle, position, stop)
        found = records.select(data, self._next_offset, self._end, len(data))
        if found.reason not in (None, "incomplete"):
            raise NoShortCut(f"damage: {found.reason}")
        if found.stop == 0 and found.reason is not None:
            self._make_room(data, stop - position)
            return self._checked(handle, position, stop)
        # Batches before the first that counts were passed over by what their headers say.
        if found.start and records.scan(data[: found.start], 0, gap=True).end != found.start:
            raise NoShortCut("damage in front of the range")
        if found.start < found.stop and (position or found.start):
            self._must_go_on(records.read_header(data, found.start))
        return data[found.start : found.stop], found.stop

    def _bytes(self, handle: int, position: int, stop: int) -> memoryview:
        data = memoryview(self._buffer)[: stop - position]
        try:
            found = os.preadv(handle, [data], position)
        except OSError as error:
            raise NoShortCut(str(error)) from None
        if found != len(data):
            raise NoShortCut("the file is shorter than it was")
        return data

    def _must_go_on(self, header: records.BatchHeader) -> None:
        """A hole that compaction left is marked, except at the beginning of a file."""
        if header.base_offset > self._next_offset and not header.attributes & records.FOLLOWS_GAP:
            raise NoShortCut(f"offset {self._next_offset} is missing")

    def _make_room(self, data: memoryview, available: int) -> None:
        """For a batch that is larger than the buffer."""
        try:
            length = records.read_header(data).length
        except records.BatchError as error:
            raise NoShortCut(f"damage: {error.reason}") from None
        if not len(data) < length <= available:
            raise NoShortCut("a batch that is not whole")
        self._buffer = bytearray(length)


def ask(name: str, ticket: ReadTicket) -> Files:
    """The files of the beginning of a range. Raises NoShortCut when there is no such broker here, or it does not want to."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(limits.FLIGHT_LOCAL_SECONDS)
            connection.connect(f"\0{name}")
            connection.send(ticket.encode())
            said, handles, _, _ = socket.recv_fds(
                connection, ANSWER_BYTES_MAX, limits.FLIGHT_LOCAL_FILES, socket.MSG_CMSG_CLOEXEC
            )
    except OSError as error:
        raise NoShortCut(f"no broker answers here: {error}") from None
    return _files(said, handles)


def _files(said: bytes, handles: list[int]) -> Files:
    try:
        answer = json.loads(said)
        places = zip(handles, answer["files"], strict=True)
        return Files(tuple((handle, start, stop) for handle, (start, stop) in places), answer["next_offset"])
    except (ValueError, KeyError):
        for handle in handles:
            os.close(handle)
        raise NoShortCut(f"refused: {said[:200]!r}") from None
