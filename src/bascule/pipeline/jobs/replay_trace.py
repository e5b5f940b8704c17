"""How far a replay has come: the stream that it writes says it.

Every message of a replay carries who published it, in the headers of idempotent publishing:

    bascule-producer   replay:<id>:<source>:<way>:<partition>   of the source; <source> and <way> tell if the replay is the same one
    bascule-epoch      the source's offset at which a chunk begins
    bascule-sequence   which message of the chunk, for this partition of the target

A chunk begins when all of the one before it is stored, so everything before the highest epoch that is found is there. The chunk itself
is sent again from its first message, and brokers drop what they have of it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bascule.errors import CallerError

if TYPE_CHECKING:
    import pyarrow as pa

    from bascule.client.arrow.reader import FlightConnection

CHUNK_OFFSETS: Final = 65_536
"""Chunks end at multiples of this, with any options: a chunk that is sent again never ends earlier."""
WINDOW_OFFSETS: Final = 32_768
WINDOW_OFFSETS_MAX: Final = 1 << 20


def chunk_start(offset: int) -> int:
    """Of a chunk that a replay comes to from the one before. The first one begins wherever the replay does."""
    return offset // CHUNK_OFFSETS * CHUNK_OFFSETS


def chunk_end(offset: int) -> int:
    """Where the chunk ends that an offset belongs to."""
    return (offset // CHUNK_OFFSETS + 1) * CHUNK_OFFSETS


@dataclass(frozen=True, slots=True)
class ReplayIdentity:
    """Of a replay: the same id may go on only with the same source, target and way to choose partitions."""

    id: str
    source: str
    way: str

    @property
    def prefix(self) -> str:
        return f"replay:{self.id}:"

    def producer(self, partition: int) -> str:
        """At most 64 bytes, so the way has one letter."""
        return f"{self.prefix}{zlib.crc32(self.source.encode()):08x}:{self.way[0]}:{partition}"

    def partition_of(self, producer: str) -> int | None:
        """Of the source; None for another's. Raises CallerError for this id with another source or way."""
        if not producer.startswith(self.prefix):
            return None
        head, _, number = producer.rpartition(":")
        if f"{head}:" != self.producer(0)[:-1]:
            raise CallerError(
                f"the replay `{self.id}` was begun with another source or another `--partition`",
                hint="give the same ones, or another id for another replay",
            )
        return int(number)


def find_chunks(
    tables: FlightConnection, target: str, identity: ReplayIdentity, wanted: dict[int, set[int]], since_ns: int | None
) -> dict[int, int]:
    """By partition of the source: the offset at which its last chunk begins; nothing for those that have not begun.

    `wanted` says which partitions of the source each partition of the target gets messages of. The target is read from its end, back to
    its start or to `since_ns`, until all are found.
    """
    found: dict[int, int] = {}
    asked = None if since_ns is None else {target: dict.fromkeys(wanted, since_ns)}
    ends = tables.offsets([target], asked)[target]["partitions"]
    for number, sources in wanted.items():
        first = ends[number]["log_start"] if since_ns is None else ends[number]["timestamp_offset"]
        left = set(sources)
        for window in _windows(first, ends[number]["high_watermark"] + 1):
            for partition, epoch in _last_epochs(tables, target, number, window, identity).items():
                if partition in left:
                    left.discard(partition)
                    found[partition] = max(epoch, found.get(partition, -1))
            if not left:
                break
    return found


def _windows(first: int, end: int) -> Iterator[tuple[int, int]]:
    """From the end to the start, larger and larger."""
    size = WINDOW_OFFSETS
    while end > first:
        start = max(first, end - size)
        yield start, end
        end, size = start, min(size * 2, WINDOW_OFFSETS_MAX)


def _last_epochs(
    tables: FlightConnection, target: str, number: int, window: tuple[int, int], identity: ReplayIdentity
) -> dict[int, int]:
    found: dict[int, int] = {}
    for batch in tables.read(target, number, *window, ("headers",)):
        for producer, headers in _last_of_producers(batch["headers"]):
            partition = identity.partition_of(producer)
            if partition is not None:
                found[partition] = int(dict(headers)["bascule-epoch"])
    return found


def _last_of_producers(headers: pa.MapArray) -> Iterator[tuple[str, Any]]:
    """Each producer that there is, with the headers of its last message."""
    import numpy as np
    import pyarrow.compute as pc

    places = headers.offsets.to_numpy()
    first = int(places[0])
    names = headers.keys.slice(first, int(places[-1]) - first)
    at = pc.indices_nonzero(pc.equal(names, "bascule-producer")).to_numpy().astype(np.int64) + first
    if not len(at):
        return
    producers = headers.items.take(at).dictionary_encode()
    last = np.zeros(len(producers.dictionary), np.int64)
    last[producers.indices.to_numpy()] = at  # of all that are assigned to one place the last one stays
    for producer, entry in zip(producers.dictionary.to_pylist(), last.tolist(), strict=True):
        row = int(np.searchsorted(places, entry, side="right")) - 1
        yield producer.decode("utf-8", "replace"), headers[row].as_py()
