"""What a partition knows of idempotent producers, in plain Python: written from the table of docs/internals/idempotence.md."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

NEW, DUPLICATE, FENCED, OUT_OF_SEQUENCE = range(4)
RUNS_MAX = 64
ID_BYTES_MAX = 64
DIGITS_MAX = 18

ID, EPOCH, SEQUENCE = b"bascule-producer", b"bascule-epoch", b"bascule-sequence"


class Malformed(Exception):
    pass


def producer_of(headers: tuple[tuple[bytes, bytes], ...]) -> tuple[bytes, int, int] | None:
    """Id, epoch and sequence that a message carries. Raises Malformed."""
    found = {name: value for name, value in headers if name in (ID, EPOCH, SEQUENCE)}
    if not found:
        return None
    if len(found) < 3 or not 0 < len(found[ID]) <= ID_BYTES_MAX or not is_text(found[ID]):
        raise Malformed
    return found[ID], number(found[EPOCH]), number(found[SEQUENCE])


def is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def number(digits: bytes) -> int:
    if not 0 < len(digits) <= DIGITS_MAX or any(byte not in b"0123456789" for byte in digits):
        raise Malformed
    return int(digits)


@dataclass
class Producer:
    epoch: int
    offsets: dict[int, int] = field(default_factory=dict)
    """Of the sequences of this epoch, in the order in which they were stored."""

    @property
    def last_sequence(self) -> int:
        return next(reversed(self.offsets))

    def runs(self) -> list[tuple[int, int, int]]:
        """Consecutive sequences at consecutive offsets: first sequence, first offset, how many. Only the latest are known."""
        runs: list[tuple[int, int, int]] = []
        for sequence, offset in self.offsets.items():
            if runs and (sequence, offset) == (runs[-1][0] + runs[-1][2], runs[-1][1] + runs[-1][2]):
                runs[-1] = (*runs[-1][:2], runs[-1][2] + 1)
            else:
                runs.append((sequence, offset, 1))
        return runs[-RUNS_MAX:]


class Producers:
    def __init__(self, producers_max: int) -> None:
        self.producers_max = producers_max
        self.known: OrderedDict[bytes, Producer] = OrderedDict()

    def judge(self, producer: bytes, epoch: int, sequence: int) -> tuple[int, int]:
        """The verdict, and where the original of a duplicate is, −1 when that is not known."""
        known = self.known.get(producer)
        if known is None or epoch > known.epoch:
            return (NEW if sequence == 0 else OUT_OF_SEQUENCE), -1
        if epoch < known.epoch:
            return FENCED, -1
        if sequence > known.last_sequence:
            return (NEW if sequence == known.last_sequence + 1 else OUT_OF_SEQUENCE), -1
        for first, offset, count in known.runs():
            if first <= sequence < first + count:
                return DUPLICATE, offset + sequence - first
        return DUPLICATE, -1

    def note(self, producer: bytes, epoch: int, sequence: int, offset: int) -> None:
        known = self.known.get(producer)
        if known is None and len(self.known) == self.producers_max:
            self.known.popitem(last=False)
        if known is None or epoch != known.epoch or sequence <= known.last_sequence:
            known = self.known[producer] = Producer(epoch)
        known.offsets[sequence] = offset
        self.known.move_to_end(producer)

    def entries(self) -> list[tuple[bytes, int, int, list[tuple[int, int, int]]]]:
        return [(name, one.epoch, one.last_sequence, one.runs()) for name, one in self.known.items()]
