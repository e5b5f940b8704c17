"""Values as producers with a schema registry write them: a frame names the schema in front of the encoded value.

    ┌────────┬───────────────┬──────────────
    │ 0    u8│ schema_id u32 │ value …            big-endian, as Confluent's serializers write it
    └────────┴───────────────┴──────────────

A value of Avro can only be read with the schema that wrote it. The options therefore name the ids under which the registry has that
schema, and a value with another id is malformed; no registry is asked.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Any, Final, NamedTuple

import pyarrow as pa

from bascule.spark.values.decoding import Decode, Undecodable

_HEAD: Final = struct.Struct(">BI")
_MAGIC: Final = 0


class Frame(NamedTuple):
    """A value without its frame."""

    schema_id: int
    value: bytes


def unframed(value: bytes) -> Frame | None:
    """The parts of a framed value; None for bytes without a frame."""
    if len(value) < _HEAD.size or value[0] != _MAGIC:
        return None
    _, schema_id = _HEAD.unpack_from(value)
    return Frame(schema_id, value[_HEAD.size :])


def framed_decoder(decode: Decode, schema_ids: Collection[int]) -> Decode:
    """The decoder of framed values. Without `schema_ids` every id is decoded."""
    wanted = frozenset(schema_ids)
    listed = ", ".join(map(str, sorted(wanted)))

    def framed(value: bytes) -> dict[str, Any]:
        frame = unframed(value)
        if frame is None:
            raise Undecodable(
                "it does not begin with a frame of a schema registry, which is a byte 0 and four bytes of a schema id"
            )
        if wanted and frame.schema_id not in wanted:
            raise Undecodable(f"it was written with schema id {frame.schema_id}, and `valueSchemaIds` has {listed}")
        return decode(frame.value)

    return framed


def hinting_decoder(decode: Decode) -> Decode:
    """The same decoder, whose error says so if the value is malformed only because it has a frame."""

    def plain(value: bytes) -> dict[str, Any]:
        try:
            return decode(value)
        except Undecodable as error:
            frame = unframed(value)
            if frame is None or not _decodes(decode, frame.value):
                raise
            raise Undecodable(
                f"{error}; it has the frame of a schema registry with schema id {frame.schema_id}: set `valueFraming` to `confluent`"
            ) from None

    return plain


def _decodes(decode: Decode, value: bytes) -> bool:
    try:
        decode(value)
    except Undecodable:
        return False
    return True


def schema_ids_of(values: pa.Array) -> pa.Array:
    """The schema id of each value; null for a value without a frame."""
    frames = (None if value is None else unframed(value) for value in values.to_pylist())
    return pa.array([None if frame is None else frame.schema_id for frame in frames], pa.int64())
