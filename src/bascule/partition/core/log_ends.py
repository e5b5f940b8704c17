"""The bounds of a replica's log at one moment, as events report them. The cores hold no log."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogEnds:
    log_start_offset: int
    log_end_offset: int
    synced_end_offset: int
    """Offsets below it survive a power failure."""
    high_watermark: int
    latest_epoch: int
    """The largest leader epoch that the log knows, with or without records; 0 for none."""
