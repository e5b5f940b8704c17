"""The segments of a log, oldest first; the last one is active. Changes need the log's lock, reads need none.

Every change replaces the tuple, so a reader sees a constant list. If a segment of it is removed or replaced meanwhile, reading it
raises FileGone, and the reader looks the segment up again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from bascule.log.segments.segment import Segment


class SegmentList:
    __slots__ = ("_segments", "active")

    def __init__(self, segments: Iterable[Segment]) -> None:
        self._become(tuple(segments))

    def _become(self, segments: tuple[Segment, ...]) -> None:
        assert segments, "a log has at least its active segment"
        self._segments = segments
        self.active = segments[-1]

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    @property
    def oldest(self) -> Segment:
        return self._segments[0]

    @property
    def sealed(self) -> tuple[Segment, ...]:
        return self._segments[:-1]

    def holding(self, offset: int) -> Segment:
        """Return the segment whose range holds `offset`; the oldest one for earlier offsets."""
        segments = self._segments
        if offset >= segments[-1].base_offset:
            return segments[-1]
        slot = bisect_right(segments, offset, key=lambda segment: segment.base_offset)
        return segments[max(0, slot - 1)]

    def after(self, segment: Segment) -> Segment | None:
        """Return the first segment with a higher base offset, or None."""
        segments = self._segments
        slot = bisect_right(segments, segment.base_offset, key=lambda each: each.base_offset)
        return segments[slot] if slot < len(segments) else None

    def before(self, base_offset: int) -> Segment | None:
        """Return the last segment with a lower base offset, or None."""
        older = [segment for segment in self._segments if segment.base_offset < base_offset]
        return older[-1] if older else None

    def roll(self, segment: Segment) -> None:
        """Make `segment` the active one."""
        assert segment.base_offset >= self.active.next_offset
        self._become((*self._segments, segment))

    def replace_active(self, segment: Segment) -> Segment:
        """Replace the active segment and return the old one."""
        old = self.active
        self._become((*self.sealed, segment))
        return old

    def drop_oldest(self, count: int) -> tuple[Segment, ...]:
        assert count < len(self._segments)
        dropped = self._segments[:count]
        self._become(self._segments[count:])
        return dropped

    def drop_newest(self, count: int) -> tuple[Segment, ...]:
        """Remove and return the newest segments, newest first. The last remaining one becomes active."""
        kept = len(self._segments) - count
        assert kept > 0
        dropped = self._segments[kept:]
        self._become(self._segments[:kept])
        return dropped[::-1]

    def replace(self, old: tuple[Segment, ...], new: Segment | None) -> None:
        """Replace the adjacent sealed segments `old` by `new`."""
        at = self._segments.index(old[0])
        assert self._segments[at : at + len(old)] == old and old[-1] is not self.active
        self._become(self._segments[:at] + (() if new is None else (new,)) + self._segments[at + len(old) :])

    def replace_all(self, segment: Segment) -> tuple[Segment, ...]:
        dropped = self._segments
        self._become((segment,))
        return dropped
