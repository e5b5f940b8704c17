"""What the cluster, and an archive if there is one, say of the streams that are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from bascule.lake.coverage import Coverage


def weight(size_bytes: int, offsets: int) -> Fraction:
    """Bytes of one offset, rounded up to what 1024 divides: numbers that have one denominator are added up fast."""
    return Fraction(-(-size_bytes * 1024 // offsets), 1024) if offsets > 0 else Fraction(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """A partition as its leader knows it."""

    log_start_offset: int
    end_offset: int
    """Behind the last committed record: what can be read ends here."""

    log_end_offset: int
    size_bytes: int
    last_timestamp_ns: int | None = None
    archived: Coverage | None = None
    """What an archive has of it, if one is read too."""

    @property
    def first_offset(self) -> int:
        """The oldest that can be read, from the log or from the archive."""
        start = self.log_start_offset
        return start if self.archived is None else min(start, self.archived.start)

    @property
    def bytes_per_offset(self) -> Fraction:
        """Of the log, on average."""
        return weight(self.size_bytes, self.log_end_offset - self.log_start_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """A stream; `retention` says in words what is removed from it."""

    name: str
    id: int
    subject: str
    partitions: Mapping[int, PartitionState]
    retention: str = ""
    archive: str = ""
    """The folder of the archive that is read too; "" for none."""

    is_live: bool = True
    """False for a stream that is deleted and read from its archive alone."""

    def only(self, numbers: tuple[int, ...]) -> StreamState:
        return replace(self, partitions={number: self.partitions[number] for number in numbers})


Streams = Mapping[str, StreamState]
