"""What goes into a log and where it landed: builders with the limits that every log enforces, and the answer to an append."""

from __future__ import annotations

from dataclasses import dataclass

from bascule import limits
from bascule.kernels.builder import BatchBuilder


@dataclass(frozen=True, slots=True)
class Appended:
    """Where an append landed."""

    base_offset: int
    last_offset: int
    timestamp: int


def new_batch() -> BatchBuilder:
    """An empty builder with the limits every log enforces."""
    return BatchBuilder(
        key_bytes_max=limits.RECORD_KEY_BYTES_MAX,
        value_bytes_max=limits.RECORD_VALUE_BYTES_MAX,
        headers_max=limits.RECORD_HEADERS_MAX,
        headers_bytes_max=limits.RECORD_HEADERS_BYTES_MAX,
        subject_bytes_max=limits.RECORD_SUBJECT_BYTES_MAX,
        batch_bytes_max=limits.BATCH_BYTES_MAX,
        records_max=limits.BATCH_RECORDS_MAX,
    )
