"""What writers were told and readers were shown of one partition, and whether the logs of its replicas keep all of it.

A value is made of its writer and its number, so whoever finds one can tell whether it is whole:
    writer u16 · number u64 · crc32 of everything else u32 · some bytes that follow from writer and number

Kept in arrays, some tens of bytes a message: a run of minutes has millions.
"""

from __future__ import annotations

import struct
import time
import zlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

HEAD: Final = struct.Struct("!HQI")
NAME: Final = struct.Struct("!HQ")
_FILLING: Final = bytes(range(256)) * 64
SIZES: Final = (0, 20, 100, 100, 100, 250, 1000, 4000)
ALL: Final = "all"
LEADER: Final = "leader"
EXAMPLES_MAX: Final = 5


def value_of(writer: int, number: int) -> bytes:
    start = (number * 37 + writer) % 256
    body = _FILLING[start : start + SIZES[(number * 2654435761 >> 7) % len(SIZES)]]
    return HEAD.pack(writer, number, zlib.crc32(NAME.pack(writer, number) + body)) + body


def read_value(value: bytes) -> tuple[int, int] | None:
    """Writer and number; None when nobody ever wrote this."""
    if len(value) < HEAD.size:
        return None
    writer, number, _ = HEAD.unpack_from(value)
    return (writer, number) if value == value_of(writer, number) else None


def digest(value: bytes, timestamp: int) -> int:
    """Changes with the content and with the time at which the message was received."""
    return zlib.crc32(value, timestamp & 0xFFFFFFFF)


class Writer:
    """What one writer sent, and what it was told. Its messages are numbered from 0."""

    def __init__(self, identity: int, kind: str, policy: str, clock: AckClock) -> None:
        self.identity = identity
        self.kind = kind
        self.policy = policy
        self.sent_at = array("d")
        self.acked_at = array("d")
        self.offsets = array("q")
        self.lives = array("L")
        """In which life of the writer's connection it was sent: those of one life must not change places."""
        self.never_sent: set[int] = set()
        """Of which we were told that they surely are not stored."""
        self.acked = 0
        self.life = 0
        self._clock = clock

    def begin(self, *, anywhere: bool = False) -> tuple[int, bytes]:
        """Number and content of the next message, which is sent now; `anywhere` when nobody knows over which connection."""
        number = len(self.sent_at)
        self.life += anywhere
        self.acked_at.append(0.0)
        self.offsets.append(-1)
        self.lives.append(self.life)
        self.sent_at.append(time.monotonic())
        return number, value_of(self.identity, number)

    def settle(self, number: int, offset: int) -> None:
        """An ack came."""
        now = time.monotonic()
        self.offsets[number] = offset
        self.acked_at[number] = now
        self.acked += 1
        if self.policy == ALL:
            self._clock.tick(now)


class AckClock:
    """How long there was no ALL ack."""

    def __init__(self) -> None:
        self.last = time.monotonic()
        self.longest_seconds = 0.0

    def tick(self, now: float) -> None:
        self.longest_seconds = max(self.longest_seconds, now - self.last)
        self.last = max(self.last, now)


class Reader:
    """What one reader was shown, from offset 0 on."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.digests = array("L")
        self.faults: list[str] = []

    @property
    def next_offset(self) -> int:
        return len(self.digests)

    def take(self, offset: int, value: bytes, timestamp: int) -> None:
        if offset != len(self.digests) and len(self.faults) < EXAMPLES_MAX:
            self.faults.append(f"{self.name} was shown offset {offset} where {len(self.digests)} is next")
        if read_value(value) is None and len(self.faults) < EXAMPLES_MAX:
            self.faults.append(f"{self.name} was shown {value[:20].hex()}… at offset {offset}, which nobody wrote")
        self.digests.append(digest(value, timestamp))


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


class PartitionHistory:
    def __init__(self, stream: str, partition: int = 0) -> None:
        self.stream = stream
        self.partition = partition
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
    def _with_all(self) -> list[Writer]:
        return [writer for writer in self.writers if writer.policy == ALL]

    # ── checking ─────────────────────────────────────────────────────────────────────────────────

    def violations(self, logs: Iterable[FinalLog]) -> list[str]:
        """What was promised and is not so. `logs` are those of all replicas, read when nothing moves any more."""
        found: list[str] = [fault for reader in self.readers for fault in reader.faults]
        replicas = list(logs)
        for log in replicas:
            found += _log_faults(log)
            for writer in self._with_all:
                found += _lost(writer, log)
            for reader in self.readers:
                found += _changed(reader, log)
        found += _unequal(replicas)
        found += _never_sent(self.writers, replicas[0])
        found += [fault for writer in self._with_all for fault in _changed_places(writer)]
        found += _out_of_order(self._with_all)
        return [f"{self.name}: {fault}" for fault in dict.fromkeys(found)]

    def lost_leader_acks(self, log: FinalLog) -> tuple[int, int]:
        """A LEADER ack promises less: how many messages are not there, and how many have another offset than was said."""
        stored = set(zip(log.writers, log.numbers, strict=True))
        missing = [
            (writer.identity, number) in stored
            for writer in self.writers
            if writer.policy == LEADER
            for number, _ in _missing(writer, log)
        ]
        return missing.count(False), missing.count(True)


def _missing(writer: Writer, log: FinalLog) -> Iterable[tuple[int, int]]:
    """Messages that were acked and are not where they should be: number and offset."""
    for number, offset in enumerate(writer.offsets):
        if offset < 0:
            continue
        is_there = (
            offset < len(log) and log.writers[offset] == writer.identity and log.numbers[offset] == number
        )  # offsets are dense, see _log_faults
        if not is_there:
            yield number, offset


def _lost(writer: Writer, log: FinalLog) -> list[str]:
    missing = list(_missing(writer, log))
    return [
        f"message {number} of {writer.kind} writer {writer.identity} was acked at offset {offset}, and {log.replica} has "
        + (f"{log.writers[offset]}:{log.numbers[offset]} there" if offset < len(log) else f"only {len(log)} messages")
        + f" ({len(missing)} like this)"
        for number, offset in missing[:EXAMPLES_MAX]
    ]


def _log_faults(log: FinalLog) -> list[str]:
    found = []
    seen: set[tuple[int, int]] = set()
    for place, offset in enumerate(log.offsets):
        if offset != place:
            found.append(f"{log.replica} has offset {offset} at place {place}: offsets are not dense")
            break
    for offset, what in enumerate(zip(log.writers, log.numbers, strict=True)):
        if what == (-1, -1):
            found.append(f"{log.replica} has something at offset {offset} that nobody wrote")
        elif what in seen:
            found.append(f"{log.replica} has message {what[1]} of writer {what[0]} twice, again at offset {offset}")
        seen.add(what)
    return found[:EXAMPLES_MAX]


def _changed(reader: Reader, log: FinalLog) -> list[str]:
    """Nobody may be shown a record before it is certain for ever."""
    if len(reader.digests) > len(log):
        return [f"{reader.name} was shown {len(reader.digests)} messages, {log.replica} has {len(log)}"]
    if reader.digests == log.digests[: len(reader.digests)]:
        return []
    where = next(place for place, one in enumerate(reader.digests) if one != log.digests[place])
    return [f"{reader.name} was shown a record at offset {where} that is another one on {log.replica}"]


def _unequal(logs: list[FinalLog]) -> list[str]:
    first = logs[0]
    return [
        f"{first.replica} has {len(first)} messages and {other.replica} {len(other)}, or not the same"
        for other in logs[1:]
        if other.digests != first.digests
    ]


def _never_sent(writers: list[Writer], log: FinalLog) -> list[str]:
    promised = {(writer.identity, number) for writer in writers for number in writer.never_sent}
    found = promised & set(zip(log.writers, log.numbers, strict=True)) if promised else set()
    return [
        f"message {number} of writer {writer} was surely not sent, it was said, and is there"
        for writer, number in list(found)[:EXAMPLES_MAX]
    ]


def _changed_places(writer: Writer) -> list[str]:
    """What one connection sent in an order has to be stored in that order."""
    last, life = -1, -1
    for number, offset in enumerate(writer.offsets):
        if writer.lives[number] != life:
            last, life = -1, writer.lives[number]
        if offset >= 0:
            if offset <= last:
                return [
                    f"message {number} of {writer.kind} writer {writer.identity} is at {offset}, behind one at {last}"
                ]
            last = offset
    return []


def _out_of_order(writers: list[Writer]) -> list[str]:
    """Who sends after somebody else was acked is stored behind it, whoever the two are."""
    acks = sorted((at, offset) for one in writers for at, offset in zip(one.acked_at, one.offsets, strict=True) if at)
    sends = sorted(
        (sent, offset) for one in writers for sent, offset in zip(one.sent_at, one.offsets, strict=True) if offset >= 0
    )
    found, highest, place = [], -1, 0
    for sent, offset in sends:
        while place < len(acks) and acks[place][0] < sent:
            highest = max(highest, acks[place][1])
            place += 1
        if offset <= highest:
            found.append(f"offset {offset} was sent after {highest} had been acked")
    return found[:EXAMPLES_MAX]
