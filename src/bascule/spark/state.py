"""What the cluster says of the streams that are read: the typed form of the Flight action `offsets`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """A partition as its leader knows it."""

    log_start_offset: int
    end_offset: int
    """Behind the last committed record: what can be read ends here."""

    log_end_offset: int
    size_bytes: int
    last_timestamp_ns: int | None = None

    @property
    def bytes_per_offset(self) -> Fraction:
        """Rounded up to what 1024 divides: numbers that have one denominator are added up fast."""
        span = self.log_end_offset - self.log_start_offset
        return Fraction(-(-self.size_bytes * 1024 // span), 1024) if span > 0 else Fraction(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """A stream; `retention` says in words what is removed from it."""

    name: str
    id: int
    subject: str
    partitions: Mapping[int, PartitionState]
    retention: str = ""

    def only(self, numbers: tuple[int, ...]) -> StreamState:
        return replace(self, partitions={number: self.partitions[number] for number in numbers})


Streams = Mapping[str, StreamState]
