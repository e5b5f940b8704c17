"""The record of one partition: the answers that its writers got, and the messages that its readers got. cluster_checks.py compares it
with the logs of the replicas.

A value is made of its writer and its number, so every value shows whether it is whole:
    writer u16 · number u64 · crc32 of everything else u32 · some bytes that follow from writer and number

Kept in arrays, some tens of bytes a message: a run of an hour has millions.
"""

from __future__ import annotations

import struct
import time
import zlib
from array import array
from bisect import bisect_left
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

HEAD: Final = struct.Struct("!HQI")
NAME: Final = struct.Struct("!HQ")
_FILLING: Final = bytes(range(256)) * 64
SIZES: Final = (0, 20, 100, 100, 100, 250, 1000, 4000)
ALL: Final = "all"
LEADER: Final = "leader"
EXAMPLES_MAX: Final = 5
KEYS: Final = 101
"""Number of keys in a compacted stream."""


@dataclass(frozen=True, slots=True)
class Cleaning:
    """The messages that a stream may remove."""

    retained_min: int | None = None
    """Number of the newest messages that retention keeps at least; None for all."""
    is_compacted: bool = False
    """Compaction keeps the newest message of each key."""


KEEPS_ALL: Final = Cleaning()


def value_of(writer: int, number: int) -> bytes:
    start = (number * 37 + writer) % 256
    body = _FILLING[start : start + SIZES[(number * 2654435761 >> 7) % len(SIZES)]]
    return HEAD.pack(writer, number, zlib.crc32(NAME.pack(writer, number) + body)) + body


def read_value(value: bytes) -> tuple[int, int] | None:
    """Writer and number; None for a value that no writer sent."""
    if len(value) < HEAD.size:
        return None
    writer, number, _ = HEAD.unpack_from(value)
    return (writer, number) if value == value_of(writer, number) else None


def key_of(writer: int, number: int) -> int:
    """The number of the key that a message of a compacted stream has."""
    return (number * 7919 + writer * 13) % KEYS


def digest(value: bytes, timestamp: int) -> int:
    """Changes with the content and with the time at which the message was received."""
    return zlib.crc32(value, timestamp & 0xFFFFFFFF)


class Writer:
    """The messages of one writer, numbered from 0, and their answers."""

    def __init__(self, identity: int, kind: str, policy: str, clock: AckClock) -> None:
        self.identity = identity
        self.kind = kind
        self.policy = policy
        self.sent_at = array("d")
        self.acked_at = array("d")
        self.offsets = array("q")
        self.lives = array("L")
        """The life of the writer's connection in which each was sent: messages of one life must not change places."""
        self.refused: set[int] = set()
        """Messages whose answer says that they are surely not stored."""
        self.acked = 0
        self.life = 0
        self._clock = clock

    def begin(self, *, anywhere: bool = False) -> tuple[int, bytes]:
        """Number and content of the next message, which is sent now; `anywhere` if it may use any connection."""
        number = len(self.sent_at)
        self.life += anywhere
        self.acked_at.append(0.0)
        self.offsets.append(-1)
        self.lives.append(self.life)
        self.sent_at.append(time.monotonic())
        return number, value_of(self.identity, number)

    def settle(self, number: int, offset: int) -> None:
        """An ack came. The ack of a duplicate may have no offset."""
        now = time.monotonic()
        self.offsets[number] = offset
        self.acked_at[number] = now
        self.acked += 1
        if self.policy == ALL:
            self._clock.tick(now)


class AckClock:
    """The longest time without an ALL ack."""

    def __init__(self) -> None:
        self.last = time.monotonic()
        self.longest_seconds = 0.0

    def tick(self, now: float) -> None:
        self.longest_seconds = max(self.longest_seconds, now - self.last)
        self.last = max(self.last, now)


class Reader:
    """The messages that one reader got, from offset 0 on."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.offsets = array("q")
        self.digests = array("L")
        self.messages = array("Q")
        """Writer and number, see `name_of`."""
        self.gaps: list[tuple[int, int]] = []
        """Offsets that the reader did not get: the first, and the one after the last."""
        self.faults: list[str] = []

    @property
    def next_offset(self) -> int:
        return self.offsets[-1] + 1 if self.offsets else 0

    def take(self, offset: int, value: bytes, timestamp: int) -> None:
        expected = self.next_offset
        if offset < expected:
            self._complain(f"{self.name} got offset {offset} where {expected} is next")
            return
        if offset > expected:
            self.gaps.append((expected, offset))
        message = read_value(value)
        if message is None:
            self._complain(f"{self.name} got {value[:20].hex()}… at offset {offset}, which no writer sent")
        self.offsets.append(offset)
        self.digests.append(digest(value, timestamp))
        self.messages.append(name_of(*(message or (0, 0))))

    def _complain(self, fault: str) -> None:
        if len(self.faults) < EXAMPLES_MAX:
            self.faults.append(fault)


def name_of(writer: int, number: int) -> int:
    """Writer and number of a message as one number."""
    return writer << 48 | number


@dataclass
class FinalLog:
    """All records of one replica, in their order."""

    replica: str
    offsets: array[int] = field(default_factory=lambda: array("q"))
    writers: array[int] = field(default_factory=lambda: array("q"))
    numbers: array[int] = field(default_factory=lambda: array("q"))
    digests: array[int] = field(default_factory=lambda: array("L"))

    def add(self, offset: int, value: bytes, timestamp: int) -> None:
        writer, number = read_value(value) or (-1, -1)
        self.offsets.append(offset)
        self.writers.append(writer)
        self.numbers.append(number)
        self.digests.append(digest(value, timestamp))

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def start(self) -> int:
        return self.offsets[0] if self.offsets else 0

    @property
    def end(self) -> int:
        return self.offsets[-1] + 1 if self.offsets else 0

    def place(self, offset: int) -> int | None:
        """Where the record with this offset is, if the log has it."""
        guess = offset - self.start
        if 0 <= guess < len(self.offsets) and self.offsets[guess] == offset:
            return guess
        found = bisect_left(self.offsets, offset)
        return found if found < len(self.offsets) and self.offsets[found] == offset else None

    @cached_property
    def newest_of_key(self) -> dict[int, int]:
        """The last offset of each key of a compacted stream."""
        return {
            key_of(writer, number): offset
            for offset, writer, number in zip(self.offsets, self.writers, self.numbers, strict=True)
        }


class PartitionHistory:
    def __init__(self, stream: str, partition: int = 0, cleaning: Cleaning = KEEPS_ALL) -> None:
        self.stream = stream
        self.partition = partition
        self.cleaning = cleaning
        self.writers: list[Writer] = []
        self.readers: list[Reader] = []
        self.clock = AckClock()

    @property
    def name(self) -> str:
        return f"{self.stream}/{self.partition}"

    def new_writer(self, kind: str, policy: str) -> Writer:
        self.writers.append(writer := Writer(len(self.writers), kind, policy, self.clock))
        return writer

    def new_reader(self, kind: str) -> Reader:
        self.readers.append(reader := Reader(f"{kind} reader of {self.name}"))
        return reader

    def acked(self, policy: str) -> int:
        return sum(writer.acked for writer in self.writers if writer.policy == policy)

    @property
    def published(self) -> int:
        return sum(len(writer.sent_at) for writer in self.writers)

    @property
    def refused(self) -> int:
        return sum(len(writer.refused) for writer in self.writers)

    def key(self, writer: Writer, number: int) -> bytes | None:
        """The key that a writer gives its message."""
        return b"key %d" % key_of(writer.identity, number) if self.cleaning.is_compacted else None
