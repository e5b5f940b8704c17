"""A cursor as a record of `__cursors` holds it, and the stream that it belongs to.

A cursor belongs to a stream, not to a name: after the stream was deleted and created again, its former cursors count as never set.
Servers therefore store the identity of the stream with every cursor. A cursor without one was set by an older server, or while there
was no such stream; it belongs to the present stream if it was stored after the stream was created. Without a stream of that name, every
cursor is valid: clients may use cursors for anything.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from bascule.kernels.records.records import Record
from bascule.metadata.core.model.streams import Stream
from bascule.proto.internal_pb2 import Cursor

NONE: Final = -1
"""The offset of a cursor that was never set."""


class CursorPosition(NamedTuple):
    """A cursor's offset, -1 for none, and the identity of the stream, 0 if there is no such stream."""

    offset: int
    stream_id: int


class StoredCursor(NamedTuple):
    offset: int
    stream_id: int
    """0: not known."""
    timestamp_ns: int
    """When the leader of its partition stored it."""
    at: int
    """The offset of its record in `__cursors`."""

    @classmethod
    def deleted(cls, record: Record) -> StoredCursor:
        return cls(NONE, 0, record.timestamp, record.offset)

    def belongs_to(self, stream: Stream | None) -> bool:
        """`stream` is the present one of its name."""
        if stream is None:
            return True
        return self.stream_id == stream.id if self.stream_id else self.timestamp_ns >= stream.created_ns


def cursor_in(record: Record) -> tuple[Cursor, StoredCursor] | None:
    """The cursor of a record with a value; None if the record is not ours: a client may publish to the stream's subject."""
    if not record.value:
        return None
    try:
        cursor = Cursor.FromString(record.value)
    except DecodeError:
        return None
    return cursor, StoredCursor(cursor.offset, cursor.stream_id, record.timestamp, record.offset)


def cursor_key(cursor_id: str, stream: str, partition: int) -> bytes:
    """The key in `__cursors`. FF stands for a comma in the name of a stream, and occurs in no UTF-8 text: otherwise the cursors `a,b`
    of the stream `c` and `a` of `b,c` would have the same key."""
    return b"%b,%b,%d" % (cursor_id.encode(), stream.encode().replace(b",", b"\xff"), partition)


class CursorName(NamedTuple):
    """What a cursor is found by."""

    cursor_id: str
    stream: str
    partition: int


def name_in(key: bytes) -> CursorName | None:
    """The name in a cursor's key; None if it is not a key of ours."""
    parts = key.rsplit(b",", 2)
    if len(parts) != 3:
        return None
    try:
        return CursorName(parts[0].decode(), parts[1].replace(b"\xff", b",").decode(), int(parts[2]))
    except ValueError:
        return None
