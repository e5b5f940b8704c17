"""The segments of a log, oldest first; the last one is active. Changed under the log's lock, read by anybody at any time.

Every change puts a new tuple in place, so a reader that holds one never sees it move. Its segments may meanwhile have been
removed or replaced: then reading them raises FileGone, and the reader looks again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from bascule.log.segments.segment import Segment


class SegmentList:
    __slots__ = ("_segments",)

    def __init__(self, segments: Iterable[Segment]) -> None:
        self._segments = tuple(segments)
        assert self._segments, "a log has at least its active segment"

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    @property
    def active(self) -> Segment:
        return self._segments[-1]

    @property
    def oldest(self) -> Segment:
        return self._segments[0]

    @property
    def sealed(self) -> tuple[Segment, ...]:
        return self._segments[:-1]

    def holding(self, offset: int) -> Segment:
        """The segment whose range holds `offset`; the oldest for anything before it."""
        segments = self._segments
        slot = bisect_right(segments, offset, key=lambda segment: segment.base_offset)
        return segments[max(0, slot - 1)]

    def behind(self, segment: Segment) -> Segment | None:
        """The first segment with a higher base offset."""
        segments = self._segments
        slot = bisect_right(segments, segment.base_offset, key=lambda each: each.base_offset)
        return segments[slot] if slot < len(segments) else None

    def before(self, base_offset: int) -> Segment | None:
        """The last segment with a lower base offset."""
        older = [segment for segment in self._segments if segment.base_offset < base_offset]
        return older[-1] if older else None

    def roll(self, segment: Segment) -> None:
        """Make `segment` the active one."""
        assert segment.base_offset >= self.active.next_offset
        self._segments = (*self._segments, segment)

    def replace_active(self, segment: Segment) -> Segment:
        """Put another segment in place of the active one, which is returned."""
        old, self._segments = self.active, (*self.sealed, segment)
        return old

    def drop_oldest(self, count: int) -> tuple[Segment, ...]:
        assert count < len(self._segments)
        dropped, self._segments = self._segments[:count], self._segments[count:]
        return dropped

    def drop_newest(self, count: int) -> tuple[Segment, ...]:
        """The newest ones, the last first; what is left ends with the new active one."""
        kept = len(self._segments) - count
        assert kept > 0
        dropped, self._segments = self._segments[kept:], self._segments[:kept]
        return dropped[::-1]

    def replace(self, old: tuple[Segment, ...], new: Segment | None) -> None:
        """Put `new` where the neighbouring sealed segments `old` are."""
        at = self._segments.index(old[0])
        assert self._segments[at : at + len(old)] == old and old[-1] is not self.active
        self._segments = self._segments[:at] + (() if new is None else (new,)) + self._segments[at + len(old) :]

    def replace_all(self, segment: Segment) -> tuple[Segment, ...]:
        dropped, self._segments = self._segments, (segment,)
        return dropped
